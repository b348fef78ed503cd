"""What NumPy lacks, against published digits and Python's whole numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail.ir.dtype import FLOATS, INTEGERS, DType, bf16, bool_, c64, f16, f32, f64, i32
from dovetail.ops.special import erf, highest, lowest, whole, wide
from tests.ops.meaning import array


def test_erf_has_the_digits_of_the_tables() -> None:
    got = erf(np.array([0.1, 0.5, 1.0, 2.0]))
    np.testing.assert_allclose(got, [0.1124629160182849, 0.5204998778130465, 0.8427007929497149, 0.9953222650189527])


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 2)])
def test_erf_keeps_shape_and_dtype(shape: tuple[int, ...]) -> None:
    for dtype in FLOATS:
        got = erf(np.zeros(shape, dtype.numpy))
        assert got.shape == shape
        assert got.dtype == dtype.numpy


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_whole_numbers_from_floats_at_the_edges_of_the_range(dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    # The floats next to both limits, whichever of them fit.
    floats = [float(limits.min), float(limits.max), 0.0, -0.0, 1.9, -1.9, math.inf, -math.inf]
    floats += [math.nextafter(f, to) for f in floats[:2] for to in (-math.inf, math.inf)]
    expected = [min(max(int(f) if math.isfinite(f) else f, limits.min), limits.max) for f in floats]
    assert whole(np.array(floats), dtype.numpy).tolist() == expected
    assert whole(np.array([math.nan]), dtype.numpy).tolist() == [0]


def test_sums_are_kept_wide() -> None:
    assert [wide(d.numpy) for d in (f16, bf16, f32, f64)] == [np.dtype(np.float64)] * 4
    assert wide(c64.numpy) == np.dtype(np.complex128)
    assert wide(i32.numpy) == np.dtype(np.int32)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, bool_], ids=str)
def test_nothing_lies_outside_of_lowest_and_highest(dtype: DType) -> None:
    low, high = array(dtype, lowest(dtype.numpy)), array(dtype, highest(dtype.numpy))
    if dtype.is_float:
        assert (float(low), float(high)) == (-math.inf, math.inf)
    elif dtype is bool_:
        assert (bool(low), bool(high)) == (False, True)
    else:
        start = 0 if dtype.kind == "uint" else -(2 ** (dtype.bits - 1))
        assert (int(low), int(high)) == (start, start + 2**dtype.bits - 1)
