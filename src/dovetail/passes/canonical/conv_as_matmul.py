"""A convolution whose window covers the image is a matmul; images of one pixel are rows."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ops import elementwise
from dovetail.passes.canonical.rule import listed, rule

_LONGEST = 12
"""Most elementwise ops between a convolution and its reader."""


@rule(ops.add, numerics="reassociated")
def conv_of_all_pixels(value: Value) -> Value | None:
    """A convolution whose filters are as large as the image, with its bias, is a product of rows with the filters.

    Without a bias it stays: a batch norm may follow, which convolutions take in.
    """
    for image, bias in (value.operands, value.operands[::-1]):
        if image.op is ops.conv and _is_given(bias) and (product := _product(image)) is not None:
            return ops.add(product, bias)
    return None


def _is_given(value: Value) -> bool:
    """Whether it is a parameter or a constant, in whatever shape."""
    while len(value.operands) == 1:
        value = value.operands[0]
    return value.op in (leaf.PARAM, leaf.CONST)


def _product(image: Value) -> Value | None:
    """A convolution that sees all of an image at once, as a product of rows with the filters."""
    if image.known_type is None or image.attrs["groups"] != 1 or any(image.attrs["padding"]):
        return None
    x, w = image.operands
    count = image.rank - 2
    whole = x.shape[2:] == w.shape[2:] and all(isinstance(size, int) for size in x.shape[2:])
    spread = any(d != 1 and n != 1 for d, n in zip(image.attrs["dilations"], w.shape[2:], strict=True))
    if not whole or spread or not x.dtype.is_float:
        return None
    rows, filters = (ops.merge(v, axis=-1, count=count + 1) for v in (x, w))
    product = ops.matmul(rows, ops.permute(filters, order=(-1, -2)))
    return ops.unsqueeze(product, axes=tuple(range(-count, 0)))


@rule(*elementwise.FAMILY)
def pixels_later(value: Value) -> Value | None:
    """What is done to rows that were made images of one pixel is done to the rows."""
    image = next((v for v in value.operands if _is_row_as_image(v)), None)
    if image is None or value.known_type is None or value.rank != image.rank:
        return None
    axes: tuple[int, ...] = image.attrs["axes"]
    if any(v.rank and (v.rank <= len(axes) or any(v.shape[a] != 1 for a in axes)) for v in value.operands):
        return None
    bare = tuple([_without(v, axes) if v.rank else v for v in value.operands])
    return ops.unsqueeze(value.with_operands(bare), axes=axes)


def _without(value: Value, axes: tuple[int, ...]) -> Value:
    """What stands under axes of size 1."""
    added = value.op is ops.unsqueeze and value.attrs["axes"] == axes
    return value.operands[0] if added else ops.squeeze(value, axes=axes)


def _is_row_as_image(value: Value) -> bool:
    """Whether axes of size 1 stand behind the rows of a product with a matrix, with elementwise ops behind it."""
    if value.op is not ops.unsqueeze or value.attrs["axes"][-1] != -1 or value.known_type is None:
        return False
    axes = value.attrs["axes"]
    inner = value.operands[0]
    if inner.rank != 2 or axes != tuple(range(-len(axes), 0)):
        return False
    for _ in range(_LONGEST):
        if inner.op is ops.matmul:
            return inner.operands[1].rank == 2
        if not inner.op.elementwise or not inner.operands:
            return False
        inner = max(inner.operands, key=lambda v: v.rank)
    return False


RULES = listed(globals())
