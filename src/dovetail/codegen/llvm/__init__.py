"""LLVM's text form.

- What kernels are written with: `builder` (integers, memory, control flow; `folding`) on typed `handles`, `vector` for
  f32 and `simd` for any element; `amx`; a function (`function`), a kernel of several (`kernel`), its `arguments`, and
  the head of its workspace (`once`).
- Elements: `types`, `scalar`, `casts`; functions such as exp: `maths`.
- The printer of the loop language: `loops`; for GPUs `gpu`, with `nvptx` and `amdgpu`.
"""
