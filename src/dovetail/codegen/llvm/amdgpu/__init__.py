"""The printer of the loop language for AMD GPUs: CDNA (gfx90a, gfx942) and RDNA (gfx1100, gfx1201).

Start at `printer`; `machine` says what any GPU's printer calls; `amdgcn` has every name of LLVM's.
"""
