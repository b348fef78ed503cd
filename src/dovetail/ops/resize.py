"""Resizing axes by nearest, linear or cubic interpolation, one axis after the other, as ONNX words it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size, evaluate, floordiv
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.dtype import FLOATS
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint, contraction, generate, movement
from dovetail.ops.gradient import Parts
from dovetail.ops.primitive import Array, Kind, Sizes, axis_from_end, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.sampling import cubic
from dovetail.ops.special import wide

if TYPE_CHECKING:
    from fractions import Fraction

Mode: TypeAlias = Literal["nearest", "linear", "cubic"]
Coordinates: TypeAlias = Literal[
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
]
"""How a place in the result is one in the input."""
Rounding: TypeAlias = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
"""Which element is the nearest; the two that round differ on halves."""


def _rising_axes(axes: Any, rank: int | None) -> tuple[int, ...]:
    normalized = tuple(axis_from_end(a, rank) for a in axes)
    if not normalized or any(a >= b for a, b in pairwise(normalized)):
        raise TypeRuleError(f"axes {tuple(axes)}", hint="name the axes to resize, each once, in rising order")
    return normalized


RisingAxes = Annotated[tuple[int, ...], Kind("ints", _rising_axes)]
Floats = Annotated[tuple[float, ...], Kind("floats", lambda numbers, rank: tuple(float(n) for n in numbers))]


def _resize(
    facts: Facts,
    x: Type,
    *,
    axes: tuple[int, ...],
    sizes: tuple[Size, ...] | None,
    scales: tuple[float, ...] | None,
    mode: Mode,
    coordinates: Coordinates,
    rounding: Rounding,
    a: float,
    exclude_outside: bool,
    antialias: bool,
    roi: tuple[float, ...] | None,
    extrapolation: float,
) -> Type:
    image = tensor(x)
    one_dtype(facts, [image], EVERY if mode == "nearest" else FLOATS)
    _check(facts, axes, sizes, scales, roi, coordinates)
    if antialias and mode == "nearest":
        raise TypeRuleError(f"{facts.op}: nearest with antialias", hint="antialias goes with linear and cubic")
    shape = list(image.shape)
    for i, axis in enumerate(axes):
        facts.at_least(image.shape[axis], 1, "an axis that is resized")
        if sizes is not None:
            facts.at_least(sizes[i], 0, "the size of a resized axis")
            shape[axis] = sizes[i]
        elif scales is not None:
            extent = 1.0 if roi is None else roi[len(axes) + i] - roi[i]
            shape[axis] = _scaled(image.shape[axis], scales[i] * extent)
    return TensorType(image.dtype, tuple(shape))


def _check(
    facts: Facts,
    axes: tuple[int, ...],
    sizes: tuple[Size, ...] | None,
    scales: tuple[float, ...] | None,
    roi: tuple[float, ...] | None,
    coordinates: Coordinates,
) -> None:
    if sizes is None and scales is None:
        raise TypeRuleError(f"{facts.op} to nothing", hint="pass sizes, or scales, or both")
    for what, numbers, expected in (
        ("sizes", sizes, len(axes)),
        ("scales", scales, len(axes)),
        ("roi", roi, 2 * len(axes)),
    ):
        if numbers is not None and len(numbers) != expected:
            raise TypeRuleError(
                f"{facts.op}: {what} has {len(numbers)} numbers for {len(axes)} axes", hint=f"give {expected}"
            )
    if scales is not None and not all(0 < s < float("inf") for s in scales):
        raise TypeRuleError(f"{facts.op}: scales {scales}", hint="scales are above 0")
    if (roi is not None) != (coordinates == "tf_crop_and_resize"):
        raise TypeRuleError(
            f"{facts.op}: roi is {roi} with {coordinates}",
            hint="a region goes with tf_crop_and_resize, and only with it",
        )


def _scaled(size: Size, scale: float) -> Size:
    """floor(size * scale)."""
    exact = simple_fraction(scale)
    return floordiv(size * exact.numerator, exact.denominator)


def simple_fraction(scale: float) -> Fraction:
    """Return a scale as a fraction. One that is a small fraction up to rounding, such as 1 / 3, is that fraction."""
    from fractions import Fraction  # it imports decimal and numbers, and few models scale

    exact = Fraction(scale)
    simple = exact.limit_denominator(1000)
    return simple if abs(simple - exact) <= exact * Fraction(1, 2**24) else exact


_TAPS = {"nearest": 0, "linear": 2, "cubic": 4}


def _flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return tensor(result).count * 2 * _TAPS[attrs["mode"]] * len(attrs["axes"])


def _resize_pull(
    g: Value,
    y: Value,
    x: Value,
    *,
    axes: tuple[int, ...],
    sizes: tuple[Size, ...] | None,
    scales: tuple[float, ...] | None,
    roi: tuple[float, ...] | None,
    extrapolation: float,
    **options: Any,
) -> Parts:
    """Along each axis the transposed matrix of weights, which is the unit matrix resized."""
    for i, axis in reversed(list(enumerate(axes))):
        length = x.shape[axis]
        weights = resize(
            generate.eye(rows=length, columns=length, dtype=x.dtype),
            axes=(-2,),
            sizes=(y.shape[axis],),
            scales=None if scales is None else (scales[i],),
            roi=None if roi is None else (roi[i], roi[len(axes) + i]),
            **options,
        )
        moved = (*(a for a in range(-x.rank, 0) if a != axis), axis)
        spread = contraction.matmul(adjoint.permuted(g, moved), weights) if x.rank > 1 else None
        if spread is None:  # a vector is a matrix of one row
            spread = movement.squeeze(contraction.matmul(movement.unsqueeze(g, axes=(-2,)), weights), axes=(-2,))
        g = adjoint.permuted(spread, tuple(moved.index(a) - x.rank for a in range(-x.rank, 0)))
    return (adjoint.stated(g, x.shape),)


@primitive(_resize, flops=_flops, pull=_resize_pull)
def resize(
    x: Array,
    *,
    axes: RisingAxes,
    sizes: Sizes | None = None,
    scales: Floats | None = None,
    mode: Mode = "nearest",
    coordinates: Coordinates = "half_pixel",
    rounding: Rounding = "round_prefer_floor",
    a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    roi: Floats | None = None,
    extrapolation: float = 0.0,
) -> Array:
    """Axes brought to other sizes by interpolation.

    `sizes` is authoritative; `scales` alone gives floor(size * scale), and with sizes it places the samples.
    """
    result = x if mode == "nearest" else x.astype(wide(x.dtype))
    samples = axis_samples(
        x.shape,
        axes=axes,
        sizes=sizes,
        scales=scales,
        mode=mode,
        coordinates=coordinates,
        rounding=rounding,
        a=a,
        exclude_outside=exclude_outside,
        antialias=antialias,
        roi=roi,
    )
    for along in samples:
        result = (
            np.take(result, along.index[:, 0], along.axis) if along.weights is None else _interpolated(result, along)
        )
    for along in samples:
        if along.outside is not None:
            cover = along.outside.reshape((-1, *(1,) * (-along.axis - 1)))
            result = np.where(cover, np.asarray(extrapolation).astype(result.dtype), result)
    return result.astype(x.dtype)


@dataclass(frozen=True, slots=True)
class AxisSamples:
    """What each place along a resized axis reads."""

    axis: int
    index: Array
    """[place, tap]: the element."""
    weights: Array | None
    """[place, tap]; None where each place is one element."""
    outside: Array | None
    """Whether a place is beyond the input, which then does not count; None where none can be."""


def axis_samples(
    shape: Sequence[int],
    *,
    axes: tuple[int, ...],
    sizes: tuple[Size, ...] | None,
    scales: tuple[float, ...] | None,
    mode: Mode,
    coordinates: Coordinates,
    rounding: Rounding,
    a: float,
    exclude_outside: bool,
    antialias: bool,
    roi: tuple[float, ...] | None,
) -> list[AxisSamples]:
    """Return the elements that a resize of this shape reads, axis by axis."""
    samples: list[AxisSamples] = []
    for i, axis in enumerate(axes):
        length = shape[axis]
        start, end = (0.0, 1.0) if roi is None else (roi[i], roi[len(axes) + i])
        scale = None if scales is None else scales[i]
        size: Size = sizes[i] if sizes is not None else _scaled(length, (scale or 1.0) * (end - start))
        axis_map = _AxisMap(length, evaluate(size, {}), scale, start, end)
        # Where a scale puts places between two pixels by its rounding alone, float32 decides, as it does elsewhere.
        at = axis_map.positions(coordinates, np.float32 if mode == "nearest" and scale is not None else np.float64)
        if mode == "nearest":
            index, weights = np.clip(_ROUND[rounding](at), 0, length - 1).astype(np.int64)[:, None], None
        else:
            narrow = min(axis_map.scale, 1.0) if antialias else 1.0
            index, weights = _weighed(length, at, _filter(mode, a), narrow, antialias, exclude_outside)
        outside = (at < 0) | (at > length - 1) if coordinates == "tf_crop_and_resize" else None
        samples.append(AxisSamples(axis, index, weights, outside))
    return samples


@dataclass(frozen=True, slots=True)
class _AxisMap:
    """One axis on its way from a length to a size; without a scale it is their quotient."""

    length: int
    size: int
    exact: float | None
    start: float
    end: float

    @property
    def scale(self) -> float:
        return self.size / self.length if self.exact is None else self.exact

    def stretched(self, at: Array) -> Array:
        """Return a distance in the result, as one in the input."""
        # Multiplied first: whole results stay whole, so that floor and ceil do not jump.
        return at * self.length / self.size if self.exact is None else at / at.dtype.type(self.exact)

    def positions(self, coordinates: Coordinates, precision: type[np.floating[Any]]) -> Array:
        """Return the place in the input of each element of the result."""
        at = np.arange(self.size, dtype=precision)
        last = self.length - 1
        match coordinates:
            case "half_pixel":
                return self.stretched(at + 0.5) - 0.5
            case "half_pixel_symmetric":
                # The middle of the result is the middle of the input, even where the size was cut to an integer.
                centre = self.length / 2 - self.stretched(np.asarray(self.size / 2, at.dtype))
                return centre + self.stretched(at + 0.5) - 0.5
            case "pytorch_half_pixel":
                return self.stretched(at + 0.5) - 0.5 if self.size > 1 else np.zeros_like(at)
            case "asymmetric":
                return self.stretched(at)
            case "tf_half_pixel_for_nn":
                return self.stretched(at + 0.5)
            case "align_corners":
                return at * last / (self.size - 1) if self.size > 1 else np.zeros_like(at)
            case "tf_crop_and_resize":
                if self.size > 1:
                    return self.start * last + at * (self.end - self.start) * last / (self.size - 1)
                return np.full_like(at, 0.5 * (self.start + self.end) * last)


_ROUND: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class _Filter:
    """The weight of an element by its distance, and the distance from which on it is 0."""

    reach: int
    weight: Callable[[Array], Array]


def _filter(mode: str, a: float) -> _Filter:
    return _Filter(1, lambda d: np.maximum(1 - d, 0)) if mode == "linear" else _Filter(2, lambda d: cubic(d, a))


def _weighed(
    length: int, at: Array, kernel: _Filter, narrow: float, antialias: bool, exclude_outside: bool
) -> tuple[Array, Array]:
    """Return the elements within reach and their weights; those beyond an end are the one at the end, or left out."""
    reach = int(np.ceil(kernel.reach / narrow))
    elements = np.floor(at)[:, None] + np.arange(1 - reach, reach + 1)
    weights = kernel.weight(np.abs(elements - at[:, None]) * narrow)
    if exclude_outside:
        weights = np.where((elements < 0) | (elements > length - 1), 0, weights)
    if antialias or exclude_outside:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(elements, 0, length - 1).astype(np.int64), weights


def _interpolated(x: Array, along: AxisSamples) -> Array:
    """Weighted sums along an axis."""
    axis, index, weights = along.axis, along.index, along.weights
    assert weights is not None
    shape = (-1, *(1,) * (-axis - 1))
    total = np.zeros((*x.shape[:axis], len(index), *(x.shape[axis:][1:])), x.dtype)
    for tap in range(index.shape[1]):
        weight = weights[:, tap].reshape(shape)
        # What has no weight is not read: 0 times infinity would be NaN.
        total = total + np.where(weight == 0, 0, np.take(x, index[:, tap], axis) * weight)
    return total


FAMILY = family(globals())

__all__ = ["resize"]
