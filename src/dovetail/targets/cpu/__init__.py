"""The CPU target: kernels generated with LLVM for this machine, run by a pool of threads.

- What it keeps and fuses: `claims`, `anchors`, and of ops that users declare: `of_a_body`.
- Start of a run: `target`, `native`; as the shared runtime sees it:
  `backend`, `compiler`, `jit`, `records`, `code_view`, `fp16_fallback`.
- The machine: `isa`, `cores`, `tile_permission`; measured: `measure`. Weights without `denormals`.
- Kernels: `select` is the table of all of them. `gemm`, `conv`, `attention`, `pool`, `transpose`, and what hands the
  families of the loop language their tiles: `loops`. Epilogues on finished rows: `row_epilogue`.
- `threads` runs them. Programs in a file: `shipping` writes one, `shipped` runs it, `image` links its code.
"""
