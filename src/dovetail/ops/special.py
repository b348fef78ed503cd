"""Functions that NumPy does not have."""

from __future__ import annotations

import math

import numpy as np

from dovetail.ir.literal import Array

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """The error function, exactly as the C library has it: slow and plain."""
    return _erf(x.astype(np.float64)).astype(np.float64).astype(x.dtype) if x.size else x
