"""Kernels for GPUs whose threads share tiles in shared memory: products of matrices and attention."""
