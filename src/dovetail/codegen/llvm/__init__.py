"""LLVM's text form: a typed builder, SIMD, scalars, maths functions, and the printer of the loop language."""
