"""Functions such as exp and erf, as polynomials in LLVM's text form.

`functions` has those of scalars in f32, written as `text` with coefficients of `tables`; `f64` and `remainder` are for
GPUs, which have no C library; `wide` computes f32 in f64. On vectors: `vectors`, and several at once: `interleaved`.
"""
