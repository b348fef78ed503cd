"""Resampling of images."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Floats, rule
from dovetail.frontends.onnx.rules.resizing_in_run import Sampling, by_scales_in_run, by_sizes_in_run
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops.resize import simple_fraction

_CROP = "tf_crop_and_resize"


@dataclass(frozen=True, slots=True)
class _Along:
    """What becomes of one axis: a size, a scale, or a size with samples that lie as a scale says."""

    axis: int
    size: Size | None
    scale: float | None
    region: tuple[float, float] = (0.0, 1.0)

    def keeps(self, x: Value) -> bool:
        return self.scale in (None, 1.0) and self.size in (None, x.shape[self.axis]) and self.region == (0.0, 1.0)


@rule("Resize", since=11)
def resize(
    n: Node,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
    *,
    antialias: bool = False,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Value:
    """Axes brought to other sizes by nearest, linear or cubic interpolation."""
    listed = tuple(range(x.rank)) if axes is None else tuple(a + x.rank if a < 0 else a for a in axes)
    scaled, sized = _given(scales), _given(sizes)
    if (scaled is None) == (sized is None):
        raise n.malformed("scales and sizes at once, or neither", hint="give one of them")
    smooth = antialias and mode != "nearest"
    how = Sampling(mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, exclude_outside, smooth)
    if mode != "nearest" and not x.dtype.is_inexact:
        raise n.unsupported(f"{mode} interpolation of {x.dtype.name}", hint="cast to a float type first")
    if scaled is not None and n.known(scaled) is None:
        return by_scales_in_run(n, x, listed, scaled, how)
    if sized is not None and n.sizes(sized) is None:
        if keep_aspect_ratio_policy != "stretch":
            raise n.needs(sized, "sizes")
        return by_sizes_in_run(n, x, listed, sized, how)
    if scaled is not None:
        along = _by_scales(n, listed, scaled)
    else:
        along = _by_sizes(n, x, listed, sized, keep_aspect_ratio_policy)
    crops = coordinate_transformation_mode == _CROP
    if crops:
        along = _cropped(n, along, _given(roi))
    if scaled is not None and coordinate_transformation_mode in (_CROP, "align_corners"):
        x = _whole(n, x, along)
    # Places of this kind move by half a pixel even where the size stays.
    always = coordinate_transformation_mode == "tf_half_pixel_for_nn"
    moved = [a for a in sorted(along, key=lambda a: a.axis) if always or not a.keeps(x)]
    return _resized(
        n,
        x,
        moved,
        **asdict(how),
        roi=tuple(a.region[end] for end in (0, 1) for a in moved) if crops else None,
        extrapolation=extrapolation_value,
    )


def _given(value: Value | None) -> Value | None:
    """An input that is there; an empty one stands for none."""
    return None if value is None or value.tensor.count == 0 else value


def _by_scales(n: Node, axes: tuple[int, ...], scales: Value) -> list[_Along]:
    numbers = n.array(scales, "scales").reshape(-1).tolist()
    return [_Along(axis, None, scale) for axis, scale in zip(axes, numbers, strict=True)]


def _by_sizes(n: Node, x: Value, axes: tuple[int, ...], sizes: Value | None, policy: str) -> list[_Along]:
    numbers = None if sizes is None else n.sizes(sizes)
    if numbers is None:
        raise n.needs(sizes, "sizes") if sizes is not None else n.malformed("no sizes")
    along = [_Along(axis, size, None) for axis, size in zip(axes, numbers, strict=True)]
    if policy == "stretch":
        return along
    if policy not in ("not_larger", "not_smaller"):
        raise n.malformed(f"keep_aspect_ratio_policy is {policy!r}")
    from fractions import Fraction  # it imports decimal, and few models keep a ratio

    ratios: list[Fraction] = []
    for a in along:
        size, length = a.size, x.shape[a.axis]
        if not isinstance(size, int) or not isinstance(length, int):
            raise n.unsupported(f"keep_aspect_ratio_policy {policy} of sizes that the run finds", hint="fix the sizes")
        ratios.append(Fraction(size, length))
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    lengths = [length for length in (x.shape[a.axis] for a in along) if isinstance(length, int)]
    return [
        replace(a, size=int(scale * length + Fraction(1, 2)), scale=float(scale))
        for a, length in zip(along, lengths, strict=True)
    ]


def _cropped(n: Node, along: list[_Along], roi: Value | None) -> list[_Along]:
    if roi is None:
        raise n.malformed(f"{_CROP} without roi")
    numbers = n.array(roi, "roi").astype(float).reshape(-1).tolist()
    if len(numbers) != 2 * len(along):
        raise n.malformed(f"roi has {len(numbers)} numbers for {len(along)} axes", hint="give a start and an end each")
    return [replace(a, region=(numbers[i], numbers[len(along) + i])) for i, a in enumerate(along)]


def _whole(n: Node, x: Value, along: list[_Along]) -> Value:
    """x, whose axes scale to whole numbers: corners that are aligned to a fraction lie elsewhere for everybody."""
    for a in along:
        length = x.shape[a.axis]
        exact = simple_fraction(a.scale or 1.0) * simple_fraction(a.region[1] - a.region[0])
        whole = length // exact.denominator * exact.denominator
        if whole == length:
            continue
        if isinstance(length, int):
            raise n.unsupported(
                f"corners aligned where {length} is scaled by {a.scale}, which is no whole number",
                hint="give sizes: the specification and its implementations differ here",
            )
        x = ops.sized(x, axis=a.axis, size=whole)
    return x


def _resized(n: Node, x: Value, along: list[_Along], *, mode: str, **attrs: Any) -> Value:
    if not along:
        return x
    by_size, by_scale = [a.size for a in along], [a.scale for a in along]
    return ops.resize(
        x,
        axes=tuple(a.axis for a in along),
        sizes=None if None in by_size else by_size,
        scales=None if None in by_scale else by_scale,
        mode=mode,
        **attrs,
    )


@rule("Upsample", since=7, until=9)
def upsample(n: Node, x: Value, scales: Floats, *, mode: str = "nearest") -> Value:
    """Axes scaled up by nearest or linear interpolation."""
    return _scaled(n, x, scales, mode)


@rule("Resize", since=10, until=10)
def scale_axes(n: Node, x: Value, scales: Floats, *, mode: str = "nearest") -> Value:
    """Axes scaled by nearest or linear interpolation, from their first element on."""
    return _scaled(n, x, scales, mode)


def _scaled(n: Node, x: Value, scales: tuple[float, ...], mode: str) -> Value:
    if len(scales) != x.rank:
        raise n.malformed(f"{len(scales)} scales for {x.type}")
    linear = mode in ("linear", "bilinear")
    if not linear and mode != "nearest":
        raise n.unsupported(f"mode {mode!r}")
    smaller = [_Along(axis, None, scale) for axis, scale in enumerate(scales) if scale < 1.0]
    larger = [_Along(axis, None, scale) for axis, scale in enumerate(scales) if scale > 1.0]
    if linear:
        both = sorted(smaller + larger, key=lambda a: a.axis)
        return _resized(n, x, both, mode="linear", coordinates="asymmetric")
    # What these opsets leave open, their implementations agree on.
    shrunk = _resized(n, x, smaller, mode="nearest", coordinates="asymmetric", rounding="ceil")
    return _resized(n, shrunk, larger, mode="nearest", coordinates="asymmetric", rounding="floor")


@rule("Upsample", until=6)
def upsample_image(n: Node, x: Value, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Value:
    """The last two axes scaled up."""
    return _scaled(n, x, (*(1.0,) * (x.rank - 2), height_scale, width_scale), mode)
