"""Slices, parts, concatenations, flips and paddings in their simplest form."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops.build import cut
from dovetail.ops.view import View, quotient
from dovetail.ops.view_chain import build_view
from dovetail.passes.canonical.rule import listed, rule
from dovetail.passes.canonical.views import view_of

_CUTS = (ops.slice_, ops.part)


@rule(ops.part)
def lone_part(value: Value) -> Value | None:
    """The only part of an axis is the axis."""
    return value.operands[0] if value.attrs["parts"] == 1 else None


@rule(ops.part)
def part_of_part(value: Value) -> Value | None:
    """A part of a part is a smaller part."""
    inner = value.operands[0]
    if inner.op is not ops.part or inner.attrs["axis"] != value.attrs["axis"]:
        return None
    index, parts = value.attrs["index"], value.attrs["parts"]
    return ops.part(
        inner.operands[0],
        axis=value.attrs["axis"],
        index=inner.attrs["index"] * parts + index,
        parts=inner.attrs["parts"] * parts,
    )


@rule(*_CUTS)
def slice_of_slice(value: Value) -> Value | None:
    """A slice of a slice along one axis is one slice."""
    inner = value.operands[0]
    if value.known_type is None or inner.op not in _CUTS or inner.attrs["axis"] != value.attrs["axis"]:
        return None
    start, stop, step = _bounds(value)
    first, _, stride = _bounds(inner)
    if stride == 1:
        return cut(inner.operands[0], value.attrs["axis"], first + start, first + stop, step)
    if start == stop:
        return cut(inner.operands[0], value.attrs["axis"], 0, 0)
    return cut(
        inner.operands[0], value.attrs["axis"], first + start * stride, first + (stop - 1) * stride + 1, step * stride
    )


def _bounds(value: Value) -> tuple[Size, Size, int]:
    """Start, stop and step of a slice or part."""
    if value.op is ops.part:
        axis: int = value.attrs["axis"]
        length = value.shape[axis]
        return length * value.attrs["index"], length * (value.attrs["index"] + 1), 1
    return value.attrs["start"], value.attrs["stop"], value.attrs["step"]


@rule(ops.slice_)
def simplest_slice(value: Value) -> Value | None:
    """A slice that is the axis, one of its equal parts, or every n-th element of all is written as that."""
    if value.known_type is None:
        return None
    return cut(value.operands[0], value.attrs["axis"], *_bounds(value))


@rule(*_CUTS)
def slice_of_concat(value: Value) -> Value | None:
    """A slice that lies in one operand of a concat is a slice of that operand."""
    joined = value.operands[0]
    axis: int = value.attrs["axis"]
    if value.known_type is None or joined.op is not ops.concat or joined.attrs["axis"] != axis:
        return None
    start, stop, step = _bounds(value)
    at: Size = 0
    for operand in joined.operands:
        end = at + operand.shape[axis]
        before, behind = start - at, end - stop
        if isinstance(before, int) and isinstance(behind, int) and before >= 0 and behind >= 0:
            return cut(operand, axis, before, stop - at, step)
        at = end
    return None


@rule(ops.squeeze)
def selection_of_view(value: Value) -> Value | None:
    """One index of an axis that a view cut off an axis of its source is a part of that axis."""
    chosen = value.operands[0]
    if value.known_type is None or chosen.op not in _CUTS:
        return None
    axis: int = chosen.attrs["axis"]
    index, stop, _ = _bounds(chosen)
    if axis not in value.attrs["axes"] or stop - index != 1 or 0 in chosen.operands[0].shape:
        return None
    view = view_of(chosen.operands[0])
    if view is None or any(len(block.sizes) > 1 for block in view.blocks) or len(view.blocks[axis].pieces) != 1:
        return None
    (piece,) = view.blocks[axis].pieces
    if piece.axis == 0 or view.source is chosen.operands[0]:
        return None
    if piece.inner * piece.size != view.lengths[piece.axis] or quotient(view.lengths[piece.axis], piece.inner) is None:
        return None
    source = cut(view.source, piece.axis, piece.inner * index, piece.inner * (index + 1))
    smaller = View(source)
    smaller.blocks = list(view.blocks)
    smaller.blocks[axis] = view.blocks[axis]._replace(pieces=(), sizes=(1,))
    if not smaller.squeeze(value.attrs["axes"]):
        return None
    return build_view(smaller)


@rule(ops.flip)
def flip_of_flip(value: Value) -> Value | None:
    """An axis that is turned twice stays."""
    inner = value.operands[0]
    if inner.op is not ops.flip:
        return None
    axes = set(value.attrs["axes"]) ^ set(inner.attrs["axes"])
    return ops.flip(inner.operands[0], axes=sorted(axes)) if axes else inner.operands[0]


@rule(ops.flip)
def flip_of_one(value: Value) -> Value | None:
    """Turning an axis of one element does nothing."""
    x = value.operands[0]
    axes = value.attrs["axes"]
    kept = [a for a in axes if x.known_type is None or x.shape[a] != 1]
    if len(kept) == len(axes) and axes:
        return None
    return ops.flip(x, axes=kept) if kept else x


@rule(ops.concat)
def concat_of_one(value: Value) -> Value | None:
    """A concat of one tensor is that tensor."""
    return value.operands[0] if len(value.operands) == 1 else None


@rule(ops.concat)
def concat_of_nothing(value: Value) -> Value | None:
    """Tensors without elements along the joined axis are left out."""
    if value.known_type is None:
        return None
    axis = value.attrs["axis"]
    kept = [v for v in value.operands if v.shape[axis] != 0]
    if len(kept) == len(value.operands):
        return None
    return ops.concat(*kept, axis=axis) if kept else value.operands[0]


@rule(ops.concat)
def concat_of_concat(value: Value) -> Value | None:
    """A concat within a concat along the same axis is one concat."""
    axis = value.attrs["axis"]
    flat: list[Value] = []
    for operand in value.operands:
        flat += operand.operands if operand.op is ops.concat and operand.attrs["axis"] == axis else (operand,)
    return ops.concat(*flat, axis=axis) if len(flat) > len(value.operands) else None


@rule(ops.concat)
def concat_of_neighbours(value: Value) -> Value | None:
    """Neighbouring slices of one tensor, joined again, are one slice or the tensor itself."""
    axis = value.attrs["axis"]
    if sum(v.op in _CUTS and v.attrs["axis"] == axis for v in value.operands) < 2:
        return None
    if value.known_type is None:
        return _whole_again(value, axis)
    found: list[Value] = []
    for operand in value.operands:
        joined = _joined(found[-1], operand, axis) if found else None
        if joined is None:
            found.append(operand)
        else:
            found[-1] = joined
    return ops.concat(*found, axis=axis) if len(found) < len(value.operands) else None


def _whole_again(value: Value, axis: int) -> Value | None:
    """In a pattern: all parts of one tensor in order."""
    whole = value.operands[0].operands[0]
    for index, operand in enumerate(value.operands):
        if operand is not ops.part(whole, axis=axis, index=index, parts=len(value.operands)):
            return None
    return whole


def _joined(left: Value, right: Value, axis: int) -> Value | None:
    """Two neighbouring slices as one, or None."""
    if any(v.op not in _CUTS or v.attrs["axis"] != axis for v in (left, right)):
        return None
    if left.operands[0] is not right.operands[0]:
        return None
    (start, end, step), (again, stop, stride) = _bounds(left), _bounds(right)
    return cut(left.operands[0], axis, start, stop) if step == stride == 1 and end == again else None


@rule(ops.pad)
def pad_by_nothing(value: Value) -> Value | None:
    """Padding by nothing does nothing."""
    return value.operands[0] if value.attrs["before"] == 0 and value.attrs["after"] == 0 else None


@rule(ops.pad)
def pad_of_pad(value: Value) -> Value | None:
    """Padding twice with one number along one axis is padding once."""
    inner, number = value.operands
    if inner.op is not ops.pad or inner.operands[1] is not number or inner.attrs["axis"] != value.attrs["axis"]:
        return None
    amounts = {end: inner.attrs[end] + value.attrs[end] for end in ("before", "after")}
    return ops.pad(inner.operands[0], number, axis=value.attrs["axis"], **amounts)


@rule(ops.sized)
def stated_size_is_known(value: Value) -> Value | None:
    """Stating a size that follows from the shapes says nothing."""
    x = value.operands[0]
    return x if x.known_type is not None else None


RULES = listed(globals())
