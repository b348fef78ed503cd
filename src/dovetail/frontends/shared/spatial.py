"""Windows over the spatial axes of [n, c, *spatial], as nodes describe them: strides, dilations, pads and auto_pad."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.frontends.shared.site import AttributeGroup, Site
from dovetail.ir.dim import Size, floordiv, largest
from dovetail.ir.value import Value


@dataclass(frozen=True, slots=True)
class Spatial:
    """How a window slides: one number for each spatial axis, and the padding before all axes, then after all."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class ConvAttributes(AttributeGroup):
    """The attributes of a convolution, as nodes write them."""

    auto_pad: str = "NOTSET"
    dilations: tuple[int, ...] | None = None
    group: int = 1
    kernel_shape: tuple[int, ...] | None = None
    pads: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def window(self, n: Site, x: Value, w: Value) -> Spatial:
        """The window of weights [filters, c, *window] over x."""
        return spatial(
            n,
            x,
            w.shape[2:],
            strides=self.strides,
            dilations=self.dilations,
            pads=self.pads,
            auto_pad=self.auto_pad,
        )


def spatial(
    n: Site,
    x: Value,
    window: Sequence[Size],
    *,
    strides: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    auto_pad: str,
) -> Spatial:
    """The window of a node over x, with what it leaves out filled in."""
    steps, spread = per_axis(n, x, strides, "strides"), per_axis(n, x, dilations, "dilations")
    count = x.rank - 2
    if len(window) != count:
        raise n.malformed(f"a window of {len(window)} axes over {x.type}")
    if auto_pad == "VALID":
        return Spatial(steps, spread, (0,) * (2 * count))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        reaches = [(size - 1) * far + 1 for size, far in zip(window, spread, strict=True)]
        totals = [_same(length, s, r) for length, s, r in zip(x.shape[2:], steps, reaches, strict=True)]
        return Spatial(steps, spread, split_padding(totals, upper=auto_pad == "SAME_UPPER"))
    if auto_pad != "NOTSET":
        raise n.malformed(f"auto_pad is {auto_pad!r}", hint="use NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    padding = pads if pads else (0,) * (2 * count)
    if len(padding) != 2 * count:
        raise n.malformed(f"{len(padding)} pads for {count} spatial axes", hint="give both sides of each axis")
    return Spatial(steps, spread, padding)


def per_axis(n: Site, x: Value, numbers: tuple[int, ...] | None, what: str, default: int = 1) -> tuple[int, ...]:
    """One number for each spatial axis of x."""
    count = x.rank - 2
    if count < 1:
        raise n.malformed(f"windows over {x.type}", hint="it takes [n, c, *spatial]")
    if not numbers:
        return (default,) * count
    if len(numbers) != count:
        raise n.malformed(f"{what} has {len(numbers)} numbers for {count} spatial axes")
    return numbers


def split_padding(totals: Sequence[Size], *, upper: bool) -> tuple[Size, ...]:
    """Padding shared between both ends of each axis; where it is odd, `upper` puts more at the end."""
    less = [floordiv(total, 2) for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return (*less, *more) if upper else (*more, *less)


def _same(length: Size, stride: int, reach: Size) -> Size:
    """The padding with which a window has one position per stride."""
    if reach == 1:
        return 0
    needed = floordiv(length - 1, stride) * stride + reach - length
    # A window that reaches as far as it steps never needs less than nothing, and sizes stay simple.
    return needed if isinstance(reach, int) and reach >= stride and length != 0 else largest(needed, 0)
