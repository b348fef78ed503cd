"""Move: tensors that are copied: views that strides cannot express, joined tensors, padding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.policy import FAMILIES
from dovetail.kernels.loops.ir import Kernel, Load, Store, Tensor, collapsed, in_memory_order, sizes_in
from dovetail.kernels.loops.policy import TilePolicy
from dovetail.kernels.loops.tiling import Turn, cut, cut_square, in_turn, transposed, vector_width, word
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.alias import Strides, dense_strides


@dataclass(frozen=True, slots=True)
class MovedBox:
    """A box of the result and the tensor that is copied there."""

    operand: Value
    shape: tuple[Size, ...]
    source: tuple[Size, ...]
    """The stride of the operand's elements, in bytes; 0 repeats one."""
    offset: Size
    """Where the box starts in the result, in bytes."""
    target: tuple[Size, ...]
    is_folded: bool = False
    """Whether it is several boxes that are copied row by row."""


def offer_move(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a step that only moves elements."""
    pieces = _PIECES[of.value.op](of.value, of.locations)
    pieces = [p for p in pieces if 0 not in p.shape]
    if len(pieces) > FAMILIES.move_pieces:
        return Refused("pieces_are_few", str(len(pieces)), f"at most {FAMILIES.move_pieces}")
    return Offer(lambda: _moved(of.value, pieces, of.locations))


def _moved(value: Value, pieces: Sequence[MovedBox], locations: TensorLocations) -> Job:
    several = len(pieces) > 1
    if not locations.target.tiles.is_shared:
        pieces = folded(pieces, locations)
    operands = {v: f"x{i}" for i, v in enumerate(dict.fromkeys(p.operand for p in pieces))}
    alignment = locations.alignment({"y": value, **{name: v for v, name in operands.items()}})
    return _job(value, pieces, locations.target.tiles, alignment, rolled=several)


def make_copy(value: Value, type: TensorType, strides: Strides, tiles: TilePolicy) -> Job:
    """The job that makes strided elements dense, from `x0` to `y`.

    Its pointers name the value that they are of; the caller says where they point.
    """
    pieces = [MovedBox(value, type.shape, strides, 0, dense_strides(type))] if 0 not in type.shape else []
    return _job(value, pieces, tiles, {})


def _merged(value: Value, locations: TensorLocations) -> list[MovedBox]:
    """Dense elements are the same bytes in either shape."""
    x = value.operands[0]
    return [MovedBox(x, x.shape, locations(x).strides, 0, dense_strides(x.tensor))]


def _joined(value: Value, locations: TensorLocations) -> list[MovedBox]:
    axis: int = value.attrs["axis"]
    target = locations(value).strides
    pieces: list[MovedBox] = []
    offset: Size = 0
    for x in value.operands:
        pieces.append(MovedBox(x, x.shape, locations(x).strides, offset, target))
        offset = offset + x.shape[axis] * target[axis]
    return pieces


def _padded(value: Value, locations: TensorLocations) -> list[MovedBox]:
    x, number = value.operands
    at = int(value.attrs["axis"]) + x.rank
    target = locations(value).strides
    pieces: list[MovedBox] = []
    offset: Size = 0
    for operand, size in ((number, value.attrs["before"]), (x, x.shape[at]), (number, value.attrs["after"])):
        shape = (*x.shape[:at], size, *x.shape[at + 1 :])
        source = locations(x).strides if operand is x else (0,) * x.rank
        pieces.append(MovedBox(operand, shape, source, offset, target))
        offset = offset + size * target[at]
    return pieces


_PIECES: Mapping[Op, Callable[[Value, TensorLocations], list[MovedBox]]] = {
    ops.merge: _merged,
    ops.concat: _joined,
    ops.pad: _padded,
}


def folded(pieces: Sequence[MovedBox], locations: TensorLocations) -> list[MovedBox]:
    """Merge pieces: boxes at regular distances, such as the taps of im2col, get axes of their own.

    LLVM compiles one loop nest for each piece: nine taps took it 0.1 s.
    """
    alike: dict[Hashable, list[MovedBox]] = {}
    for piece in pieces:
        root = locations(piece.operand).root
        alike.setdefault((root, piece.shape, piece.source, piece.target), []).append(piece)
    return [one for some in alike.values() for one in _folded(some, locations)]


def _folded(pieces: list[MovedBox], locations: TensorLocations) -> list[MovedBox]:
    """Pieces that differ in where they start, as one where that is regular."""
    first, *others = pieces
    starts = [(locations(piece.operand).offset, piece.offset) for piece in pieces]
    axes = _regular(starts) if others else None
    if axes is None:
        return pieces
    shape, (target, source) = collapsed(*in_memory_order(first.shape, [first.target, first.source]))
    if _crosswise(shape, source, target, first.operand.dtype.itemsize) is not None:
        return pieces
    sizes, sources, targets = zip(*axes, strict=True)
    shape, source, target = (*sizes, *first.shape), (*sources, *first.source), (*targets, *first.target)
    return [MovedBox(first.operand, shape, source, first.offset, target, is_folded=True)]


def _regular(starts: Sequence[tuple[Size, Size]]) -> list[tuple[int, Size, Size]] | None:
    """Axes whose points are these places in order: sizes, and strides of both numbers; None where there are none."""
    apart = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(starts)]
    inner = next((i for i, step in enumerate(apart) if step != apart[0]), len(apart)) + 1
    rows = [starts[i : i + inner] for i in range(0, len(starts), inner)]
    axis = (inner, *apart[0])
    if len(rows) == 1:
        return [axis]
    same = [(x - starts[0][0], y - starts[0][1]) for x, y in rows[0]]
    if any([(x - row[0][0], y - row[0][1]) for x, y in row] != same for row in rows):
        return None
    outer = _regular([row[0] for row in rows])
    return None if outer is None else [*outer, axis]


def _job(
    value: Value, pieces: Sequence[MovedBox], tiles: TilePolicy, alignment: Mapping[str, int], *, rolled: bool = False
) -> Job:
    """One kernel for all pieces: first the tiles of the first one, then those of the second, and so on."""
    operands = list(dict.fromkeys(p.operand for p in pieces))
    names = {v: f"x{i}" for i, v in enumerate(operands)}
    turns = [_copied(piece, names[piece.operand], number, tiles, alignment) for number, piece in enumerate(pieces)]
    body, count, work = in_turn(turns, rolled=rolled)
    kernel = Kernel("move", (*names.values(), "y"), ("y",), "tile", body, sizes=sizes_in(body))
    return Job(kernel, {**{n: v for v, n in names.items()}, "y": value}, Tiles(count, work))


def _copied(piece: MovedBox, name: str, number: int, tiles: TilePolicy, alignment: Mapping[str, int]) -> Turn:
    dtype = word(piece.operand.dtype)
    shape, (target, source) = collapsed(*in_memory_order(piece.shape, [piece.target, piece.source]))
    across = None if piece.is_folded else _crosswise(shape, source, target, dtype.itemsize)
    if across is not None and tiles.is_shared and any(_is_thin(shape[a]) for a in across):
        across = None
    if across is not None:
        order = (*[a for a in range(len(shape)) if a not in across], *across)
        shape, target, source = (tuple(x[a] for a in order) for x in (shape, target, source))
    read, written = Tensor(name, dtype, source), Tensor("y", dtype, target, piece.offset)
    if across is not None and tiles.is_shared:
        return transposed(read, written, shape, number, tiles)
    width = vector_width(shape, [read, written], alignment, tiles)
    boxes = cut(shape, dtype.itemsize, tiles, width) if across is None else cut_square(shape, dtype.itemsize, tiles)
    return Turn(boxes, (Store(written, boxes.at, Load(read, boxes.at)),), boxes.work)


def _is_thin(size: Size) -> bool:
    """Whether most of a square tile would be empty along an axis."""
    return isinstance(size, int) and size < 8


def _crosswise(
    shape: tuple[Size, ...], source: tuple[Size, ...], target: tuple[Size, ...], itemsize: int
) -> tuple[int, int] | None:
    """The axis along which the source is dense and the one along which the result is, where they are two."""
    if not shape or source[-1] in (0, itemsize) or target[-1] != itemsize or shape[-1] == 1:
        return None
    dense = [a for a in range(len(shape) - 1) if source[a] == itemsize]
    return (dense[-1], len(shape) - 1) if dense else None
