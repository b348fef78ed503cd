"""GEMM by cuBLASLt where it was measured to be faster ([0018](docs/design/0018-products-on-tensor-cores.md)).

Start at `choice`; `product` has the conditions, `trial` the measurement, `considered` the report. `cublaslt` and `call`
are the calls, `weights` what L2 holds.
"""
