"""The Fourier transform against its sum."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, DType, f32, f64, i64
from dovetail.ir.graph import Graph
from dovetail.targets.reference.interpreter import evaluate
from tests.ops.meaning import Array, array, meaning
from tests.tolerances import assert_close


def summed(x: Array, inverse: bool) -> Array:
    """The transform by its definition, point by point."""
    points = x[..., 0].astype(np.float64) + 1j * x[..., 1].astype(np.float64)
    count: int = points.shape[-1]
    turns = np.outer(np.arange(count), np.arange(count)) / count
    spectrum = points @ np.exp((2j if inverse else -2j) * np.pi * turns) / (count if inverse else 1)
    return np.stack([spectrum.real, spectrum.imag], axis=-1)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_transform_is_its_sum(dtype: DType, inverse: bool) -> None:
    generator = np.random.default_rng(0)
    for shape in ((1, 2), (7, 2), (2, 3, 12, 2)):
        x = array(dtype, generator.normal(size=shape))
        got = meaning(ops.fourier, x, inverse=inverse)
        assert got.dtype == dtype.numpy
        assert_close(got, summed(x, inverse), dtype, scale=4.0)


def test_the_inverse_undoes_it_and_lifting_reaches_it() -> None:
    x = leaf.input("x", f32["b", "n", 2])
    graph = Graph.of(ops.fourier(ops.fourier(x), inverse=True))
    given = np.random.default_rng(1).normal(size=(2, 9, 2)).astype(np.float32)
    lifted = evaluate(graph, {"x": given}, lift=True)["y"]
    assert lifted.dtype == np.float64
    np.testing.assert_allclose(lifted, given, rtol=1e-14, atol=1e-15)


def test_types() -> None:
    assert ops.fourier(leaf.input("x", f64["b", "n", 2])).type == f64["b", "n", 2]
    for refused in (f32[2], f32[4, 3], i64[4, 2], f32[0, 2]):
        with pytest.raises(TypeRuleError):
            ops.fourier(leaf.input("x", refused))
