"""Convolutions along fewer axes: axes of size 1 are dropped, and a third axis becomes batch or channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.value import Op, Value
from dovetail.ops import build, elementwise
from dovetail.passes.canonical.images import is_of_conv
from dovetail.passes.canonical.rule import listed, rule

_LONGEST = 12
"""Most elementwise ops between a convolution and its reader."""
_UNROLLED = 16
"""Most taps along the first axis that become channels."""


@rule(ops.conv, numerics="reassociated")
def without_axes_of_one_pixel(value: Value) -> Value | None:
    """Along an axis where image and result have one pixel, a convolution has one tap, and needs no axis.

    One spatial axis stays.
    """
    if not _is_known(value):
        return None
    x, w = value.operands
    count = value.rank - 2
    taps = {a: tap for a in range(count) if (tap := _one_tap(value, a)) is not None}
    if len(taps) == count:
        del taps[count - 1]
    if not taps:
        return None
    for a, tap in taps.items():
        if w.shape[2 + a] != 1:
            w = build.slice_axis(w, axis=2 + a, start=tap, stop=tap + 1)
    axes = tuple(a - count for a in taps)
    rest = [a for a in range(count) if a not in taps]
    made = ops.conv(ops.squeeze(x, axes=axes), ops.squeeze(w, axes=axes), **_along(value, rest))
    return ops.unsqueeze(made, axes=axes)


def _one_tap(value: Value, a: int) -> int | None:
    """The tap that reads the one pixel of an axis; None where there are more pixels, or no tap reads it."""
    x, w = value.operands
    before, dilation = value.attrs["padding"][a], value.attrs["dilations"][a]
    if x.shape[2 + a] != 1 or value.shape[2 + a] != 1 or before % dilation or before // dilation >= w.shape[2 + a]:
        return None
    return before // dilation


@rule(ops.conv, numerics="reassociated")
def adjacent_points_as_one_axis(value: Value) -> Value | None:
    """Adjacent axes along which a convolution reads its own pixel only are one axis.

    The first axis of an image that comes out of a batch goes back there instead.
    """
    if not _is_known(value) or value.rank < 5 or any(v.op is ops.permute for v in _axes_apart(value.operands[0])):
        return None
    x, w = value.operands
    count = value.rank - 2
    pair = next((a for a in range(count - 1) if _is_point(value, a) and _is_point(value, a + 1)), None)
    if pair is None:
        return None
    axis = pair + 1 - count
    rest = [a for a in range(count) if a != pair]
    made = ops.conv(ops.merge(x, axis=axis, count=2), ops.merge(w, axis=axis, count=2), **_along(value, rest))
    return build.reshape(made, value.shape)


@rule(ops.conv, numerics="reassociated")
def third_axis_as_batch(value: Value) -> Value | None:
    """A convolution along three axes or more is one along the last ones: its first axis joins the batch.

    The taps along that axis become channels.
    """
    if not _is_known(value) or value.rank < 5:
        return None
    x, w = value.operands
    count, taps = value.rank - 2, w.shape[2]
    if not isinstance(taps, int) or taps > _UNROLLED:
        return None
    if not _is_point(value, 0):
        x, w = _taps_as_channels(value, taps), ops.merge(w, axis=-count, count=2)
    else:
        w = ops.squeeze(w, axes=(-count,))
    order = (0, 2, 1, *range(3, x.rank))
    images = ops.merge(build.transpose(x, order), axis=-count - 1, count=2)
    made = ops.conv(images, w, **_along(value, range(1, count)))
    apart = build.reshape(made, (value.shape[0], value.shape[2], value.shape[1], *value.shape[3:]))
    return build.transpose(apart, order)


def _taps_as_channels(value: Value, taps: int) -> Value:
    """[n, c, d, …] as [n, c · taps, d of the result, …], padded along d."""
    x, attrs = value.operands[0], value.attrs
    count = value.rank - 2
    before, after = attrs["padding"][0], attrs["padding"][count]
    if (before, after) != (0, 0):
        x = ops.pad(x, leaf.scalar(0, x.dtype), axis=-count, before=before, after=after)
    stride, dilation, size = attrs["strides"][0], attrs["dilations"][0], value.shape[2]
    seen = [
        build.slice_axis(x, axis=2, start=t * dilation, stop=t * dilation + (size - 1) * stride + 1, step=stride)
        for t in range(taps)
    ]
    stacked = ops.concat(*(ops.unsqueeze(v, axes=(-count - 1,)) for v in seen), axis=-count - 1)
    return ops.merge(stacked, axis=-count - 1, count=2)


def _is_point(value: Value, a: int) -> bool:
    """Whether a convolution reads its own pixel only, along an axis."""
    count = value.rank - 2
    attrs = value.attrs
    still = attrs["padding"][a] == 0 == attrs["padding"][count + a] and attrs["strides"][a] == 1
    return still and value.operands[1].shape[2 + a] == 1


def _is_known(value: Value) -> bool:
    """Whether types, window and padding are known."""
    if value.known_type is None or not value.dtype.is_float:
        return False
    sizes: tuple[Size, ...] = (*value.operands[1].shape[2:], *value.attrs["padding"])
    return all(isinstance(size, int) for size in sizes)


def _along(value: Value, axes: Sequence[int]) -> dict[str, Any]:
    """The attributes of a convolution along some of the axes."""
    attrs, count = value.attrs, value.rank - 2
    padding = (*(attrs["padding"][a] for a in axes), *(attrs["padding"][count + a] for a in axes))
    strides, dilations = (tuple(attrs[name][a] for a in axes) for name in ("strides", "dilations"))
    return {"strides": strides, "dilations": dilations, "padding": padding, "groups": attrs["groups"]}


@rule(*elementwise.FAMILY)
def one_pixel_axis_later(value: Value) -> Value | None:
    """What is done to a convolution's result under an axis of size 1 is done to the result without the axis."""
    images = [v for v in value.operands if _is_conv_under_axes(v)]
    if not images or value.known_type is None or value.rank != images[0].rank:
        return None
    axes: tuple[int, ...] = images[0].attrs["axes"]
    if any(v.known_type is None or any(-a <= v.rank and v.shape[a] != 1 for a in axes) for v in value.operands):
        return None
    bare = tuple([_without(v, axes) for v in value.operands])
    return ops.unsqueeze(value.with_operands(bare), axes=axes)


def _without(value: Value, axes: tuple[int, ...]) -> Value:
    """A value without axes of size 1, those that it has."""
    if value.op is ops.unsqueeze and value.attrs["axes"] == axes:
        return value.operands[0]
    present = tuple(a for a in axes if -a <= value.rank)
    return ops.squeeze(value, axes=present) if present else value


def _is_conv_under_axes(value: Value) -> bool:
    """Whether spatial axes of size 1 were added to a convolution, maybe with elementwise ops after it."""
    if value.op is not ops.unsqueeze or value.known_type is None:
        return False
    inner = value.operands[0]
    if inner.known_type is None or min(value.attrs["axes"]) <= -value.rank + 1 or inner.rank < 3:
        return False
    for _ in range(_LONGEST):
        if inner.op is ops.conv:
            return True
        if not inner.op.elementwise or not inner.operands:
            return False
        inner = max(inner.operands, key=lambda v: v.rank)
    return False


@rule(*elementwise.FAMILY)
def third_axis_later(value: Value) -> Value | None:
    """What is done to a convolution along fewer axes is done before axes that were joined are taken apart again."""
    if value.known_type is None:
        return None
    views = next((views for v in value.operands if (views := _axes_apart(v))), None)
    if views is None or views[0].shape != value.shape:
        return None
    bare = [_under(v, views) for v in value.operands]
    if any(v is None for v in bare):
        return None
    made = value.with_operands(tuple([v for v in bare if v is not None]))
    for view in reversed(views):
        made = view.with_operands((made,))
    return made


_VIEWS = frozenset[Op]({ops.permute, ops.split, ops.unsqueeze})


def _axes_apart(value: Value) -> list[Value]:
    """The views that take axes of a convolution's result out of its batch or its pixels, the last one first."""
    if value.op not in _VIEWS:
        return []
    views, inner = list[Value](), value
    while inner.op in _VIEWS and inner.known_type is not None:
        views.append(inner)
        (inner,) = inner.operands
    orders = [v.attrs["order"] for v in views if v.op is ops.permute]
    apart = orders or any(v.op is ops.split for v in views)
    # Pixels of a row stay next to each other; channels that come last are another rule's.
    if not apart or len(orders) > 1 or any(order[-2:] != (-2, -1) for order in orders):
        return []
    return views if inner.known_type is not None and inner.rank in (3, 4) and is_of_conv(inner) else []


def _under(value: Value, views: Sequence[Value]) -> Value | None:
    """What becomes a value, or one that is broadcast to it, by views; None where that is no view of a vector."""
    if value.known_type is None:
        return None
    if value.rank == 0:
        return value
    own = _axes_apart(value)
    if own and [_step(v) for v in own] == [_step(v) for v in views]:
        return own[-1].operands[0]
    axes = [a for a in range(-value.rank, 0) if value.shape[a] != 1]
    if len(axes) > 1:
        return None
    axis = axes[0] if axes else -1
    size = value.shape[axis]
    for view in views:
        match view.op:
            case ops.permute:
                order = view.attrs["order"]
                axis = order[axis] if axis >= -len(order) else axis
            case ops.unsqueeze:
                if axis in view.attrs["axes"]:
                    return None
                axis += sum(a > axis for a in view.attrs["axes"])
            case _:
                last, more = view.attrs["axis"], view.rank - view.operands[0].rank
                if last - more <= axis <= last:
                    return None
                axis += more if axis < last else 0
    return build.reshape(value, (size, *(1,) * (-axis - 1)))


def _step(view: Value) -> tuple[object, ...]:
    """A view without what it is one of."""
    return view.op, view.shape, tuple(view.attrs.items())


RULES = listed(globals())
