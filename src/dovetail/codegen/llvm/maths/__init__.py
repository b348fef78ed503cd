"""Functions such as exp and erf, as polynomials in LLVM's text form."""
