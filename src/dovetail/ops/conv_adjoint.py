"""The adjoints of windows that slide: what convolution and pooling share in their gradients."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.ir.value import Value
from dovetail.ops import adjoint


def spread_back(
    g: Value,
    w: Value,
    shape: tuple[Size, ...],
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
    groups: int,
) -> Value:
    """Return the gradient of the image of a convolution, which has this shape."""
    count = len(shape) - 2
    spread = [(g.shape[2 + i] - 1) * strides[i] + (w.shape[2 + i] - 1) * dilations[i] + 1 for i in range(count)]
    # Pixels after the last window have no gradient; a window in ceil mode reaches beyond them.
    left = [shape[2 + i] + padding[i] - spread[i] for i in range(count)]
    options = {"strides": strides, "dilations": dilations, "groups": groups}
    after = [-n if isinstance(n, int) and n < 0 else 0 for n in left]
    extra = [n if isinstance(n, int) and n > 0 else 0 for n in left]
    if all(isinstance(n, int) for n in left) and all(isinstance(n, int) for n in padding):
        return ops.conv_transpose(g, w, **options, padding=(*padding[:count], *after), output_padding=tuple(extra))
    whole = ops.conv_transpose(g, w, **options)
    for i in range(count):
        axis = i - count
        room: Size = shape[2 + i] + padding[i]
        if whole.shape[axis] != room:
            whole = ops.pad(whole, 0.0, axis=axis, after=room) if not isinstance(left[i], int) else whole
            whole = ops.pad(whole, 0.0, axis=axis, after=extra[i]) if extra[i] else whole
        if padding[i] != 0 or whole.shape[axis] != room:
            whole = ops.slice_(whole, axis=axis, start=padding[i], stop=room)
    return adjoint.stated(whole, (*whole.shape[:2], *shape[2:]))


def kernel_gradient(
    image: Value,
    g: Value,
    shape: tuple[Size, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
    groups: int,
) -> Value:
    """Return the gradient of a convolution's weights: the image convolved with g, batch and channels exchanged."""
    rank = image.rank
    exchanged = (1 - rank, -rank, *range(2 - rank, 0))
    if groups == 1:
        columns = ops.permute(image, order=exchanged)
    else:
        # [n, groups * c, …] as [c, groups * n, …]: each group keeps its own images.
        apart = ops.split(image, axis=1 - rank, parts=groups)
        columns = ops.permute(apart, order=(1 - rank, -rank, -rank - 1, *range(2 - rank, 0)))
        columns = ops.merge(columns, axis=1 - rank)
    filters = ops.permute(g, order=exchanged)
    summed = ops.conv(columns, filters, strides=dilations, dilations=strides, padding=padding, groups=groups)
    return cut_to(ops.permute(summed, order=exchanged), shape)


def cut_to(x: Value, shape: tuple[Size, ...]) -> Value:
    """Cut each axis to its first elements, as many as the shape says."""
    for axis in range(-x.rank, 0):
        apart = x.shape[axis] - shape[axis]
        if not isinstance(apart, int) or apart > 0:
            x = ops.slice_(x, axis=axis, start=0, stop=shape[axis])
    return adjoint.stated(x, shape)


def windows_summed_back(
    g: Value,
    shape: tuple[Size, ...],
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[Size, ...],
) -> Value:
    """Return the adjoint of the sum over each window: every pixel gets the gradients of all windows that see it."""
    one = adjoint.reshaped(g, (g.shape[0] * g.shape[1], 1, *g.shape[2:]))
    taps = ones((1, 1, *window), g.dtype)
    flat = (shape[0] * shape[1], 1, *shape[2:])
    spread = spread_back(one, taps, flat, strides=strides, dilations=dilations, padding=padding, groups=1)
    return adjoint.reshaped(spread, shape)


def ones(shape: tuple[Size, ...], dtype: DType) -> Value:
    """Return a tensor of ones."""
    return adjoint.broadcast(ops.cast(ops.extent(size=1), dtype=dtype), shape)


__all__ = ["cut_to", "kernel_gradient", "ones", "spread_back", "windows_summed_back"]
