"""The printer of the loop language for NVIDIA GPUs: what only they have, on top of the printer of any GPU.

Start at `ptx`; `machine` says what any GPU's printer calls. Instructions: `nvvm` (every name of LLVM's) `tensor_cores`
`pipeline` `words` `permuted` `fp8`. Persistent kernels: `persistent`.
"""
