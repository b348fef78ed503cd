"""Gather: elements and rows that indices name. An index out of range is met by the status, never by memory."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bool_, i64, u64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    collapsed,
    sizes_in,
)
from dovetail.kernels.loops.tiling import cut, vector_width, word
from dovetail.kernels.spec import Job, Status, TensorLocations, Tiles
from dovetail.ops.view import quotient
from dovetail.plan.alias import dense_strides


@dataclass(frozen=True, slots=True)
class Picked:
    """An axis of the tensor along which an index picks: the stride of its elements, and how many there are."""

    stride: Size
    size: Size
    offset: Size = 0
    """Where in a row of indices it stands, in bytes."""


def offer_gather(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a step that reads by index."""
    x, indices = of.value.operands
    if not of.locations.target.scalars.has_dtype(indices.dtype):
        return Refused("indices_are_compiled", indices.dtype.name)
    return Offer(lambda: _gathered(of.value, x, indices, of.locations))


def _gathered(value: Value, x: Value, indices: Value, locations: TensorLocations) -> Job:
    read, by = locations(x).strides, locations(indices).strides
    if value.op is ops.gather:
        at = int(value.attrs["axis"]) + x.rank
        rows = (0,) * at, by, (0,) * (x.rank - at - 1)
        positions = (*read[:at], *(0,) * indices.rank, *read[at + 1 :])
        return _job(value, _sum(rows), positions, [Picked(read[at], x.shape[at])], locations)
    if value.op is ops.gather_elements:
        at = int(value.attrs["axis"]) + x.rank
        positions = (*read[:at], 0, *read[at + 1 :])
        return _job(value, by, positions, [Picked(read[at], x.shape[at])], locations)
    batch: int = value.attrs["batch"]
    depth = indices.shape[-1]
    assert isinstance(depth, int), "the type rule asks for it"
    rest = batch + depth
    positions = (*read[:batch], *(0,) * (indices.rank - 1 - batch), *read[rest:])
    picked = [Picked(read[batch + d], x.shape[batch + d], d * by[-1]) for d in range(depth)]
    return _job(value, (*by[:-1], *(0,) * (x.rank - rest)), positions, picked, locations)


def _sum(parts: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    return tuple(size for part in parts for size in part)


def _job(
    value: Value, by: tuple[Size, ...], read: tuple[Size, ...], picked: Sequence[Picked], locations: TensorLocations
) -> Job:
    """Loops over the result; the indices are read as soon as it is known which."""
    x, indices = value.operands
    dtype = word(value.dtype)
    shape, (target, by, read) = collapsed(value.shape, [dense_strides(value.tensor), by, read])
    tiles = locations.target.tiles
    width = _width(shape, by, [Tensor("y", dtype, target), Tensor("x", dtype, read)], picked, value, locations)
    boxes = cut(shape, dtype.itemsize, tiles, width)
    depth = 1 + max((a for a, stride in enumerate(by) if stride != 0), default=-1)
    early: list[Statement] = []
    for d, one in enumerate(picked):
        index = Load(Tensor("i", indices.dtype, by, one.offset), boxes.at)
        early += checked(f"k{d}", index, one.size)
    source = Tensor("x", dtype, (*read, *(p.stride for p in picked)))
    at = (*boxes.at, *(Name(f"k{d}") for d in range(len(picked))))
    store = Store(Tensor("y", dtype, target), boxes.at, Load(source, at))
    body = guarded(
        (*boxes.head(Name("tile")), *boxes.nest([store], depth, early)),
        [p.size for p in picked],
    )
    kernel = Kernel("gather", ("x", "i", "status", "y"), ("status", "y"), "tile", body, sizes=sizes_in(body))
    return Job(kernel, {"x": x, "i": indices, "status": Status(), "y": value}, Tiles(boxes.tiles, boxes.work))


def _width(
    shape: tuple[Size, ...],
    by: tuple[Size, ...],
    tensors: Sequence[Tensor],
    picked: Sequence[Picked],
    value: Value,
    locations: TensorLocations,
) -> int:
    """Neighbours that a thread moves at once: those of a row that one index picks, where there are many rows."""
    tiles, count = locations.target.tiles, product(shape)
    if not shape or by[-1] != 0 or not isinstance(count, int) or count < tiles.woven_elements:
        return 1
    width = vector_width(shape, tensors, locations.alignment({"x": value.operands[0], "y": value}), tiles)
    while width > 1 and any(quotient(one.stride, width * value.dtype.itemsize) is None for one in picked):
        width //= 2
    return width


STATUS = Tensor("status", i64, ())
BAD = Name("bad", bool_)


def checked(name: str, index: Expr, size: Size) -> tuple[Statement, ...]:
    """An index under a name, counted from the front; one out of range is noted in `bad`, and 0 stands for it."""
    kept = Name(name)
    beyond = Call("greater_equal", (Call("cast", (kept,), u64), Call("cast", (Extent(size),), u64)), bool_)
    turned = Call("where", (Call("less", (kept, ZERO), bool_), Call("add", (kept, Extent(size)), i64), kept), i64)
    return (
        Set(name, whole(index)),
        *(() if index.dtype.kind == "uint" else (Set(name, turned),)),
        Set("bad", Call("bit_or", (BAD, beyond), bool_)),
        Set(name, Call("where", (beyond, ZERO, kept), i64)),
    )


def whole(index: Expr) -> Expr:
    """An index as i64; what does not fit is beyond every axis as it is."""
    if index.dtype is u64:
        index = Call("minimum", (index, Number(2**63 - 1, u64)), u64)
    return index if index.dtype is i64 else Call("cast", (index,), i64)


def guarded(body: Sequence[Statement], sizes: Sequence[Size]) -> tuple[Statement, ...]:
    """Guard a body that takes elements of axes of these sizes; report `bad` to the status in the end.

    An empty axis has not even an element 0; then all that is left is to report it.
    """
    tell = Store(STATUS, (), Number(1, i64))
    checked: tuple[Statement, ...] = (Set("bad", Number(False, bool_)), *body, When(BAD, (tell,)))
    unsure = [s for s in sizes if not isinstance(s, int) or s == 0]
    if not unsure:
        return checked
    some: Expr = Number(True, bool_)
    for size in unsure:
        some = Call("bit_and", (some, Call("less", (ZERO, Extent(size)), bool_)), bool_)
    return When(Call("bit_not", (some,), bool_), (tell,)), When(some, checked)


__all__ = ["checked", "guarded", "offer_gather"]
