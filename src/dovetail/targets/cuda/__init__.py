"""The CUDA target: elementwise ops, rows, reductions and copies run there; the rest is planned and priced."""
