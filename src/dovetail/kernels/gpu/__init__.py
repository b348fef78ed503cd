"""Kernels for GPUs whose threads share tiles in shared memory, a folder for each family.

`gemm`, `gemv` (few rows), `blocks` (weights in blocks), `conv`, `attention`, `order` (sort, scan, scatter). What they
share: `pipeline` (operands on their way through stages of shared memory) `policy` `hoisted`; epilogues of 16-bit
floats: `widened` `widened_rows`; casts to 8 bits: `fp8_cast`.
"""
