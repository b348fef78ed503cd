"""The discrete Fourier transform on a GPU, by its definition: a thread sums up one point of the spectrum.

The roots of unity are a table of f64, and sums are kept in f64. The work grows with the square of the points, so that
long transforms are left to the host.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dovetail.ir import leaf
from dovetail.ir.dim import product
from dovetail.ir.dtype import f64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.gpu.passes import for_each, in_passes, whole
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Call, Expr, Extent, Load, Loop, Name, Number, Set, Store, Tensor, indices, mul
from dovetail.kernels.spec import Job, TensorLocations

MOST_POINTS = 8192
"""Points of a transform, at most."""


def offer_fourier(of: StepProblem[object]) -> Offer | Refused:
    """The kernels of a transform."""
    value = of.value
    points = value.shape[-2]
    if not of.locations.target.scalars.has_dtype(value.dtype):
        return Refused("dtype_is_compiled", value.dtype.name)
    if not isinstance(points, int) or points > MOST_POINTS:
        return Refused("points_are_few", str(points), f"at most {MOST_POINTS}, known before a run")
    return Offer(lambda: _job(value, points, of.locations))


def _job(value: Value, points: int, locations: TensorLocations) -> Job:
    (x,) = value.operands
    inverse: bool = value.attrs["inverse"]
    roots = Tensor("roots", f64, (16, 8))
    rows = value.shape[:-2]
    k, total = Name("k"), (Name("real", f64), Name("imaginary", f64))
    read = Tensor("x", x.dtype, locations(x).strides)
    written = Tensor("y", value.dtype, locations(value).strides)
    row = indices(rows, Name("j0"))
    a, b = (cast_to(Load(read, (*row, k, Extent(part))), f64) for part in (0, 1))
    c, s = (Load(roots, (Name("turn"), Extent(part))) for part in (0, 1))
    scale = Number(1.0 / points if inverse else 1.0, f64)
    step = (
        Set("turn", whole("rem", mul(Name("j1"), k), Extent(points))),
        Set("real", _f64("add", total[0], _f64("sub", _f64("mul", a, c), _f64("mul", b, s)))),
        Set("imaginary", _f64("add", total[1], _f64("add", _f64("mul", a, s), _f64("mul", b, c)))),
    )
    body = (
        Set("real", Number(0.0, f64)),
        Set("imaginary", Number(0.0, f64)),
        Loop("k", Extent(points), step),
        *(
            Store(written, (*row, Name("j1"), Extent(part)), cast_to(_f64("mul", total[part], scale), value.dtype))
            for part in (0, 1)
        ),
    )
    kernel = for_each("fourier", (product(rows), points), ("x", "roots", "y"), ("y",), body)
    return in_passes([kernel], {"x": x, "roots": _roots(points, inverse), "y": value}, {})


@lru_cache(maxsize=32)
def _roots(points: int, inverse: bool) -> Value:
    """Cosines and sines of all multiples of a turn by a point."""
    angles = np.arange(points) * (2.0 if inverse else -2.0) * np.pi / points
    return leaf.constant(np.stack([np.cos(angles), np.sin(angles)], -1))


def _f64(op: str, *operands: Expr) -> Expr:
    return Call(op, operands, f64)


__all__ = ["offer_fourier"]
