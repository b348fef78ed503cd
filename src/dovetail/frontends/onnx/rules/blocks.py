"""Blocks of images as channels, and channels as blocks of images."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Sizes, rule
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.ops import build

_TO_SPACE = {"DCR": (0, 3, 4, 1, 5, 2), "CRD": (0, 1, 4, 2, 5, 3)}
_TO_DEPTH = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}


@rule("DepthToSpace")
def depth_to_space(n: Node, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """Channels laid out as blocks of an image, depth first or column and row first."""
    order = _order(n, _TO_SPACE, mode)
    batch, _, height, width = x.shape
    block = (blocksize, blocksize)
    split = (*block, -1) if mode == "DCR" else (-1, *block)
    y = build.transpose(build.reshape(x, (batch, *split, height, width)), order)
    return build.reshape(y, (batch, y.shape[1], height * blocksize, width * blocksize))


@rule("SpaceToDepth")
def space_to_depth(n: Node, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    """Blocks of an image laid out as channels, depth last or depth first."""
    order = _order(n, _TO_DEPTH, mode)
    batch, channels, _, _ = x.shape
    y = ops.split(ops.split(x, axis=-1, size=blocksize), axis=-3, size=blocksize)
    y = build.transpose(y, order)
    return build.reshape(y, (batch, channels * blocksize**2, *y.shape[-2:]))


def _order(n: Node, orders: Mapping[str, tuple[int, ...]], mode: str) -> tuple[int, ...]:
    if mode not in orders:
        raise n.malformed(f"the mode {mode!r}", hint="it takes DCR or CRD")
    return orders[mode]


@rule("Col2Im")
def col2im(
    n: Node,
    x: Value,
    image_shape: Sizes,
    block_shape: Sizes,
    *,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    """Columns of blocks put back into an image; where blocks overlap they are added."""
    rank = len(image_shape)
    dilation, stride = dilations or (1,) * rank, strides or (1,) * rank
    padding = pads or (0,) * (2 * rank)
    if {len(block_shape), len(dilation), len(stride), len(padding) // 2} != {rank}:
        raise n.malformed(f"an image of {rank} axes with other numbers of blocks, dilations, pads or strides")
    padded = [s + padding[i] + padding[i + rank] for i, s in enumerate(image_shape)]
    counts = [(whole - dilation[i] * (block_shape[i] - 1) - 1) // stride[i] + 1 for i, whole in enumerate(padded)]
    flat = _places(padded, block_shape, counts, dilation, stride)
    batch, columns, _ = x.shape
    block = product(block_shape)
    updates = build.reshape(x, (batch, columns // block, block * product(tuple(counts))))
    image = build.zeros((batch, columns // block, product(tuple(padded))), x.dtype)
    indices = build.broadcast_to(flat, updates.shape)
    image = ops.scatter_elements(image, indices, updates, axis=-1, reduction="add")
    image = build.reshape(image, (batch, columns // block, *padded))
    for i, axis in enumerate(range(-rank, 0)):
        image = build.cut(image, axis, padding[i], padding[i] + image_shape[i])
    return image


def _places(
    padded: list[Size],
    block: tuple[Size, ...],
    counts: list[Size],
    dilations: tuple[int, ...],
    strides: tuple[int, ...],
) -> Value:
    """For each place in a block and each block, where it lies in the image in the order of memory."""
    rank = len(padded)
    total: Value | None = None
    for i in range(rank):
        inside = build.expand_dims(ops.iota(size=block[i]) * dilations[i], range(1, 2 * rank - i))
        blocks = build.expand_dims(ops.iota(size=counts[i]) * strides[i], range(1, rank - i))
        step = product(tuple(padded[i + 1 :]))
        place = (inside + blocks) * (step if isinstance(step, int) else ops.extent(size=step))
        total = place if total is None else total + place
    assert total is not None
    return build.reshape(total, (product(block) * product(tuple(counts)),))
