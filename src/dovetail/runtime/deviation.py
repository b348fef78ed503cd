"""How far results lie apart: one number, the same wherever results are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dovetail.errors import DovetailError
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array

TOLERANCES = {"f16": 1e-2, "bf16": 5e-2}
"""How far outputs may lie apart, relative to the largest value; other floats 1e-4, all else not at all."""

ROUNDED = TOLERANCES["bf16"]
"""The same of a program that rounds factors of products."""


def difference(got: Array, wanted: Array) -> float:
    """The largest difference relative to the largest value; numbers that are not finite have to be the same."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        x, y = got.astype(wide), wanted.astype(wide)
        finite = np.isfinite(x) & np.isfinite(y)
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
            return float("inf")
        if not finite.any():
            return 0.0
        apart, most = np.abs(x[finite] - y[finite]).max(), np.abs(y[finite]).max()
    return float(apart / most if most > 0 else apart)


def deviations(run: Callable[[], Mapping[str, Array]], wanted: Mapping[str, Array]) -> dict[str, float]:
    """How far each output lies from what is wanted, which may be wider; infinitely where nothing can be computed."""
    try:
        got = run()
    except DovetailError:
        return dict.fromkeys(wanted, float("inf"))
    found: dict[str, float] = {}
    for name, array in wanted.items():
        # Floats that NumPy does not know are of no kind; what is no float is not converted.
        convert = array.dtype.kind in "fc"
        found[name] = difference(got[name].astype(array.dtype) if convert else got[name], array)
    return found


def tolerance_of(dtype: DType | None) -> float:
    """How far outputs of this dtype may lie apart."""
    if dtype is None or not dtype.is_inexact:
        return 0.0
    return TOLERANCES.get(dtype.name, 1e-4)


__all__ = ["ROUNDED", "TOLERANCES", "deviations", "difference", "tolerance_of"]
