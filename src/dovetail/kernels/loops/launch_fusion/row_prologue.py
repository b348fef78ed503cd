"""A kernel of rows as the start of a product that reads them: each block computes the rows of its own tile.

A persistent kernel then has a level less, and rows are in shared memory where products read them. Blocks with other
columns of the same rows compute these again, while they would otherwise wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.gpu_schedule import tile_of
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllReduce,
    Call,
    Expr,
    Extent,
    Kernel,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    bodies,
    minimum,
    needs,
    reads,
    sizes_in,
    with_bodies,
)
from dovetail.kernels.loops.launch_fusion.composed import Renaming
from dovetail.kernels.timings.record import GemvTimings

_LINE, _ROW = "line", "wanted_row"
"""A row of a tile, and its number among all rows, of which there may be fewer."""
_STATEMENTS = frozenset(["threads", "lanes"])
"""What a warp does for a row."""


@dataclass(frozen=True, slots=True)
class RowKernel:
    """A kernel whose warps each have a row."""

    body: tuple[Statement, ...]
    """What a warp does for a row."""
    row: str
    """The number of the row in `body`."""
    rows: int
    warps: int
    width: int
    """Elements of a row."""
    pointers: tuple[str, ...]
    written: tuple[str, ...]

    @staticmethod
    def of(kernel: Kernel, width: int) -> RowKernel | None:
        """A scheduled kernel with dense results, `width` elements in a row; None where its blocks do anything else."""
        launch, schedule = kernel.launch, kernel.schedule
        if launch is None or kernel.early or launch.shared_bytes or len(kernel.body) != 1:
            return None
        if schedule is None or schedule.by != "warp" or not isinstance(schedule.tiles, int):
            return None
        tile = tile_of(kernel.body, schedule)
        body = tile.body
        every = [*everything(body)]
        results = [s.tensor for s in every if isinstance(s, Store) and s.tensor.pointer in kernel.written]
        dense = [t.strides == (width * t.dtype.itemsize, t.dtype.itemsize) and t.offset == 0 for t in results]
        is_shared = any([isinstance(s, Alloc) and s.space == "shared" for s in every])
        if not all(dense) or is_shared or not needs(body) <= _STATEMENTS:
            return None
        if any([tensor.pointer in kernel.written for tensor, _ in reads(body)]):
            return None  # only some blocks write it
        return RowKernel(body, tile.number, schedule.tiles, schedule.each, width, kernel.pointers, kernel.written)


@dataclass(frozen=True, slots=True)
class Filling:
    """Where a kernel fills shared memory with the rows of its tile."""

    kernel: Kernel
    read: str
    """The pointer through which it reads them."""
    loop: Loop
    """What a block does for its tile."""
    fill: Statement
    rows: Tensor
    """Row and column."""
    lines: int

    @staticmethod
    def of(kernel: Kernel, read: str, room: str) -> Filling | None:
        """None where a kernel does not fill the memory `room` in one place."""
        *allocations, loop = kernel.body
        if not isinstance(loop, Loop) or loop.kind != "block":
            return None
        fills = [s for s in loop.body if any(tensor.pointer == read for tensor, _ in reads((s,)))]
        filled = {s.tensor for f in fills for s in everything((f,)) if isinstance(s, Store)}
        if len(fills) != 1 or {tensor.pointer for tensor in filled} != {room}:
            return None
        (tile,), alloc = filled, next(s for s in allocations if isinstance(s, Alloc) and s.pointer == room)
        (pitch, *_), item = [s for s in tile.strides[1:] if isinstance(s, int)], alloc.dtype.itemsize
        rows = Tensor(room, alloc.dtype, (pitch, item), space="shared")
        return Filling(kernel, read, loop, fills[0], rows, alloc.count * item // pitch)

    def filled(self, each: Sequence[Statement], read: Sequence[str], written: Sequence[str], cycles: float) -> Kernel:
        """The kernel with other statements in place of those that read rows, and the pointers that they have."""
        kernel, launch = self.kernel, self.kernel.launch
        assert launch is not None, "it was scheduled"
        body = tuple([x for s in self.loop.body for x in (each if s is self.fill else [s])])
        whole = (*kernel.body[:-1], replace(self.loop, body=body))
        written = (*written, *kernel.written)
        others = [n for n in kernel.pointers if n != self.read and n not in kernel.written]
        every = (*dict.fromkeys([*others, *read]), *written)
        launch = replace(launch, cycles=launch.cycles + cycles)
        sizes = sizes_in((*kernel.early, *whole))
        return replace(kernel, pointers=every, written=written, body=whole, sizes=sizes, launch=launch)


def with_row_prologue(
    kernel: Kernel,
    before: RowKernel,
    read: str,
    pointers: Mapping[str, str],
    *,
    result: str,
    room: str,
    keep: bool,
    timings: GemvTimings,
) -> Kernel | None:
    """A kernel whose blocks each compute the rows that their tile reads through the pointer `read`.

    `before` writes these as its `result`; here they go to the shared memory `room`, which the kernel would fill with
    them. Blocks of the first columns also write other results, where others read them, and the rows themselves where
    others read these too (`keep`). `pointers` says what the pointers of `before` are called in the whole kernel. None
    where the kernel does not fill that memory in one place.
    """
    filling, launch = Filling.of(kernel, read, room), kernel.launch
    if filling is None or launch is None or before.warps * launch.warp != launch.block:
        return None
    turns, left = divmod(filling.lines, before.warps)
    if left:
        return None
    each = _rows(before, filling.rows, turns, pointers, pointers[result], keep=keep)
    kept = [pointers[n] for n in before.written if keep or n != result]
    read_too = [pointers[n] for n in before.pointers if n not in before.written]
    return filling.filled(each, read_too, kept, timings.norm + turns * timings.norm_row)


def _rows(
    before: RowKernel, rows: Tensor, turns: int, pointers: Mapping[str, str], result: str, *, keep: bool
) -> list[Statement]:
    """The rows of a tile, some for each warp. Where there are no more of them they repeat the last one: without a
    condition the loads of all rows of a warp are on their way at once, and stores come after them."""
    others = frozenset([pointers[n] for n in before.written]) - {result}
    first = next((i for i, s in enumerate(before.body) if _ends_loads(s, before.written)), 0)
    loads: list[Statement] = []
    rests: list[tuple[Statement, ...]] = []
    for turn in range(turns):
        line, row = Name(f"{_LINE}{turn}"), Name(f"{_ROW}{turn}")
        is_first = Call("equal", (Name("side"), ZERO), bool_)
        is_kept = Call("bit_and", (is_first, Call("less", (row, Extent(before.rows)), bool_)), bool_)
        renamed = Renaming(lambda n, turn=turn: f"{n}_before{turn}", pointers).body(before.body)
        loads += [
            Set(line.name, add(Extent(turn * before.warps), ThreadIndex("warp"))),
            Set(row.name, add(Name("top"), line)),
            Set(f"{before.row}_before{turn}", minimum(row, Extent(before.rows - 1))),
            *renamed[:first],
        ]
        rests.append(_Placed(rows, line, result, others, is_kept, keep).body(renamed[first:]))
    # Rows of a warp take turns, so that one computes while another waits for other lanes.
    return [*loads, *(s for each in zip(*rests, strict=True) for s in each)]


def _ends_loads(statement: Statement, written: Sequence[str]) -> bool:
    """Whether a statement needs what other lanes have, or writes results."""
    every = everything((statement,))
    return any([isinstance(s, AllReduce) or (isinstance(s, Store) and s.tensor.pointer in written) for s in every])


@dataclass(frozen=True, slots=True)
class _Placed:
    """A body whose result is a tile of rows in shared memory, and whose other results some blocks write."""

    rows: Tensor
    line: Expr
    """The row of the tile."""
    result: str
    others: frozenset[str]
    is_kept: Expr
    keep: bool
    """Whether these blocks write the result too."""

    def body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple([x for s in body for x in self._of(s)])

    def _of(self, s: Statement) -> tuple[Statement, ...]:
        every = [*everything((s,))]
        written = {x.tensor.pointer for x in every if isinstance(x, Store)}
        if written and written <= self.others:
            return (When(self.is_kept, (s,)),)
        if self.keep and written == {self.result} and not any([bodies(x) for x in every[1:]]):
            # Neighbours of a row are stored at once, in either place.
            return *replace(self, keep=False)._of(s), When(self.is_kept, (s,))
        if isinstance(s, Store) and s.tensor.pointer == self.result:
            return (replace(s, tensor=self.rows, at=(self.line, s.at[1])),)
        return (with_bodies(s, self.body),)


__all__ = ["Filling", "RowKernel", "with_row_prologue"]
