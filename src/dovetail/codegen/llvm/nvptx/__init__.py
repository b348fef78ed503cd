"""The printer of the loop language for NVIDIA GPUs.

Start at `ptx`. Instructions: `nvvm` (every name of LLVM's) `tensor_cores` `pipeline` `exchange` `words` `permuted`
`fp8` `near`. Which accesses are apart: `scopes`. Persistent kernels: `persistent`.
"""
