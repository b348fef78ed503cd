"""The micro-kernel of matrix multiplication: MR rows of A times one B panel of NR columns, accumulated in registers.

A panel is [k][NR], dense and aligned. Rows of A are read where they are. Every row count up to MR has a function of its
own, and accumulators always go through k from first to last, so that how rows are cut changes no bit. A block of steps
starts at zero and is added to the blocks before it: rounding errors then grow with the length of a block and the number
of blocks, not with k. Where KC is the same for every row count, a call is a block. Otherwise the row count decides: a
call is a part of a block, whose accumulators wait in `partial`, or one block, or several.

Where calls are blocks, the caller says where a call prefetches and at which pace. Several row tiles read a block from
L1 after the first of them, and share the prefetch of the next block: otherwise memory would idle while all but the
first multiply.

A panel that serves many row tiles in turn is in L2 after the first. Such tiles have a prefetching variant: it
prefetches nothing that it reads itself, but a line of the next panel per iteration, and the C rows one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from dovetail.codegen.llvm.function import Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Carried, Int, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.targets.cpu.gemm.policy import GEMM
from dovetail.targets.cpu.gemm.tile import Tile

PREFETCHING = ".prefetching"
"""Suffix of the names of prefetching variants."""


def micro_kernel_signature(tile: Tile, *, prefetching: bool) -> Signature:
    """`name(rows, a, stride1, b, sums, depth, fresh)`. Where calls are blocks, `next` and `pace` follow;
    otherwise `block`, `partial`, `begins` and `ends`, or in the prefetching variant `next`, `c` and `target`."""
    parameters = (
        Parameter("i64", "rows"), Parameter("ptr", "a"), Parameter("i64", "stride1"), Parameter("ptr", "b"),
        Parameter("ptr", "sums"), Parameter("i64", "depth"), Parameter("i1", "fresh"),
    )  # fmt: skip
    return Signature(_named(tile, prefetching), (*parameters, *_more_parameters(tile, prefetching)))


def micro_kernel_text(tile: Tile) -> str:
    """A module with the micro-kernel and its prefetching variant.

    `depth` is not 0. Accumulators are [rows][NR] at `sums`, added to unless `fresh`, every `block` steps. A call that
    does not begin a block goes on from `partial`, and one that does not end it stores there. The prefetching variant
    always adds, and prefetches lines at `next`, and as many rows at `c`, which are `target` bytes apart. Where
    calls are blocks, an iteration prefetches at `next`, which then moves by `pace` bytes.
    """
    variants = [_MicroKernel(tile, rows) for rows in range(1, tile.rows + 1)]
    variants += [_Prefetching(tile, rows) for rows in tile.prefetching]
    texts = [variant.text() for variant in variants]
    uses = dict.fromkeys(use for variant in variants for use in variant.uses)
    texts.append(_dispatch(tile, range(1, tile.rows + 1), prefetching=False))
    if tile.prefetching:
        texts.append(_dispatch(tile, tile.prefetching, prefetching=True))
    return "\n".join([*uses, *texts])


_STRIDES = (I64("%stride1"), I64("%stride2"), I64("%stride3"))
_FURTHER = (Parameter("ptr", "next"), Parameter("ptr", "c"), Parameter("i64", "target"))
_AHEAD = (Parameter("ptr", "next"), Parameter("i64", "pace"))
_PACE = I64("%pace")
_FIRST, _FRESH, _B, _SUMS, _NEXT, _C = I64("%first"), I1("%fresh"), Ptr("%b"), Ptr("%sums"), Ptr("%next"), Ptr("%c")
_PARTS = (Parameter("i64", "block"), Parameter("ptr", "partial"), Parameter("i1", "begins"), Parameter("i1", "ends"))
_BLOCK, _PARTIAL, _BEGINS, _ENDS = I64("%block"), Ptr("%partial"), I1("%begins"), I1("%ends")


def _more_parameters(tile: Tile, prefetching: bool) -> tuple[Parameter, ...]:
    """The parameters that some tiles and variants have."""
    return _FURTHER if prefetching else _AHEAD if tile.calls_are_blocks else _PARTS


def _named(tile: Tile, prefetching: bool) -> str:
    return f"{tile.name}{PREFETCHING if prefetching else ''}"


def _variant_signature(tile: Tile, rows: int, *, prefetching: bool) -> Signature:
    """The function for one row count.

    Pointers point to the end of rows and k counts up to 0, so that no register has to hold the end. They and the
    strides are parameters one by one, so that LLVM cannot derive one from the other.
    """
    pointers = [f"a{first}" for first in range(0, tile.rows, GEMM.rows_per_pointer)]
    return Signature(
        f"{_named(tile, prefetching)}.{rows}",
        (
            *[Parameter("ptr", name, "noalias readonly") for name in (*pointers, "b")],
            Parameter("ptr", "sums", "noalias"),
            *[Parameter("i64", stride[1:]) for stride in _STRIDES],
            Parameter("i64", "first"),
            Parameter("i1", "fresh"),
            *_more_parameters(tile, prefetching),
        ),
    )


def _dispatch(tile: Tile, counts: range, *, prefetching: bool) -> str:
    """The function that calls the one for a row count."""
    cases = " ".join(f"i64 {rows}, label %r{rows}" for rows in counts)
    lines = [
        "  %stride2 = shl i64 %stride1, 1",
        "  %stride3 = mul i64 %stride1, 3",
        "  %first = sub i64 0, %depth",
        "  %a0 = getelementptr float, ptr %a, i64 %depth",
    ]
    for group in range(GEMM.rows_per_pointer, tile.rows, GEMM.rows_per_pointer):
        lines += [f"  %far{group} = mul i64 %stride1, {group}"]
        lines += [f"  %a{group} = getelementptr i8, ptr %a0, i64 %far{group}"]
    lines.append(f"  switch i64 %rows, label %none [ {cases} ]")
    for rows in counts:
        variant = _variant_signature(tile, rows, prefetching=prefetching)
        passed = ", ".join(f"{p.type} %{p.name}" for p in variant.parameters)
        lines += [f"r{rows}:", f"  call void @{variant.name}({passed})", "  ret void"]
    signature = micro_kernel_signature(tile, prefetching=prefetching)
    return signature.define([*lines, "none:", "  ret void"], linkage="internal")


class _MicroKernel(VectorBuilder):
    """The function for one row count. What changes from iteration to iteration is carried in phis.

    Carried are k, the pointer into the panel, then pointers of prefetch streams, and the accumulators.
    """

    is_prefetching = False

    def __init__(self, tile: Tile, rows: int) -> None:
        super().__init__(tile.device)
        self.tile = tile
        self.rows = rows
        self.unrolled = tile.unrolled or rows <= GEMM.smallest_m
        self.cells = [(i, j) for i in range(rows) for j in range(tile.vectors)]
        self.row_ends: list[Ptr] = []
        self.streams = 0
        """Concurrent prefetch streams into the next panel."""
        self.stream_offsets: list[Int] = []
        """Byte offsets of the prefetch streams that share one pointer."""

    def text(self) -> str:
        tile = self.tile
        if tile.calls_are_blocks:
            self._sum_block(_SUMS)
        else:
            self._sum_parts()
        self.ret()
        signature = _variant_signature(tile, self.rows, prefetching=self.is_prefetching)
        return signature.define(self.body(), linkage="internal", attributes="noinline nounwind")

    def _start(self) -> Carried:
        """Return the pointers that are carried along k, without accumulators."""
        offsets: tuple[Int, ...] = (0, *_STRIDES)
        self.row_ends = [
            self.ptr_add(Ptr(f"%a{i - i % GEMM.rows_per_pointer}"), offsets[i % GEMM.rows_per_pointer])
            for i in range(self.rows)
        ]
        return Carried(I64("0"), [], [_B, *self._further()], [_FIRST])

    def _spots(self, at: Ptr) -> list[Ptr]:
        """Where the accumulators of each cell are in memory."""
        return [self.ptr_add(at, i * self.tile.row_bytes + j * self.bytes) for i, j in self.cells]

    def _sum_block(self, accumulators: Ptr) -> None:
        """A call that is a block."""
        state = self._start()
        state.vectors[:] = [ZERO for _ in self.cells]
        self._walk(I64("0"), state)
        cells = list(zip(self._spots(accumulators), state.vectors, strict=True))
        with self.when(_FRESH):
            for spot, x in cells:
                self.store(x, spot, self.bytes)
        with self.unless(_FRESH):
            for spot, x in cells:
                self.store(self.fadd(self.load(spot, self.bytes), x), spot, self.bytes)

    def _sum_parts(self) -> None:
        """A call that is a part of a block, or a block, or several where few rows leave registers for that."""
        state = self._start()
        if self.is_prefetching:
            self._sum_part(I64("0"), None, None, _SUMS, state)
            return
        adds_none = self.or_(_FRESH, self.not_(_ENDS))
        target = self.select_ptr(_ENDS, _SUMS, _PARTIAL)
        if self.rows > GEMM.smallest_m:
            self._sum_part(I64("0"), _BEGINS, adds_none, target, state)
            return
        with self.repeated(state):
            is_first = self.icmp("eq", state.integers[0], _FIRST)
            zero = self.or_(_BEGINS, self.not_(is_first))
            none = self.or_(self.and_(_FRESH, is_first), self.not_(_ENDS))
            self._sum_part(self.smin(self.add(state.integers[0], _BLOCK), 0), zero, none, target, state)
            state.again = self.icmp("ne", state.integers[0], 0)

    def _sum_part(self, end: I64, zero: I1 | None, none: I1 | None, target: Ptr, state: Carried) -> None:
        """Go through k up to an end, from zero or from `partial`, and add to the target unless `none` holds.

        Flags that are None hold and do not hold: the prefetching variant has no register left for one.
        """
        starts = [ZERO for _ in self.cells]
        if zero is not None:
            kept = [self.load(spot, self.bytes) for spot in self._spots(_PARTIAL)]
            starts = [self.select_vec(zero, ZERO, x) for x in kept]
        state.vectors[:] = starts
        self._walk(end, state)
        # One after the other: no registers are left to hold two sets of accumulators.
        cells = list(zip(self._spots(target), state.vectors, strict=True))
        if none is not None:
            with self.when(none):
                for spot, x in cells:
                    self.store(x, spot, self.bytes)
        with nullcontext() if none is None else self.unless(none):
            for spot, x in cells:
                self.store(self.fadd(self.load(spot, self.bytes), x), spot, self.bytes)
        state.vectors.clear()

    def _further(self) -> list[Ptr]:
        """Pointers that move along k with the one into the panel: what is prefetched, or streams of that for few rows.

        The next panel is cut into as many equal parts as an iteration reads cache lines. A pointer serves three parts,
        which differ by what an address can add: more pointers would not fit in registers.
        """
        if self.tile.calls_are_blocks:
            return [_NEXT]
        if self.rows > GEMM.small_m:
            return []
        self.streams = (GEMM.unroll if self.unrolled else 1) * self.tile.row_bytes // self.tile.line
        part = self.mul(self.sub(0, _FIRST), self.tile.row_bytes // self.streams)
        self.stream_offsets = [0, part, self.shl(part, 1)]
        firsts = range(0, self.streams, len(self.stream_offsets))
        return [self.ptr_add(_B, self.mul(part, self.streams + first)) for first in firsts]

    def _walk(self, end: I64, state: Carried) -> None:
        """Go through k up to an end."""
        if not self.unrolled:
            self._loop(end, 1, state)
            return
        if end == "0":
            whole = I64(self.let(f"srem i64 {_FIRST}, {GEMM.unroll}"))
        else:
            left = self.sub(state.integers[0], end)
            whole = self.add(end, I64(self.let(f"srem i64 {left}, {GEMM.unroll}")))
        for stop, steps in ((whole, GEMM.unroll), (end, 1)):
            with self.guarded(self.icmp("ne", state.integers[0], stop), state):
                self._loop(stop, steps, state)

    def _loop(self, end: I64, steps: int, state: Carried) -> None:
        """Go on until k is at an end, some steps in each iteration."""
        with self.repeated(state):
            self._iterate(steps, state)
            state.again = self.icmp("ne", state.integers[0], end)

    def _iterate(self, steps: int, state: Carried) -> None:
        tile = self.tile
        k, b, further = state.integers[0], state.pointers[0], state.pointers[1:]
        held = dict(zip(self.cells, state.vectors, strict=True))
        rows = self._rows_at(k, further)
        further = self._prefetch(steps, b, further)
        whole = [self.load(row) for row in rows] if tile.by_lane and steps > 1 else []
        for step in range(steps):
            if step:
                self.in_order()
            at = step * tile.row_bytes
            columns = [self.load(self.ptr_add(b, at + j * self.bytes), self.bytes) for j in range(tile.vectors)]
            for i, row in enumerate(rows):
                accumulators = [held[i, j] for j in range(tile.vectors)]
                if whole:
                    accumulators = self._added(self.splat_lane(whole[i], step), columns, accumulators)
                else:
                    accumulators = self._added_from(i, self.ptr_add(row, 4 * step), columns, accumulators)
                held |= {(i, j): x for j, x in enumerate(accumulators)}
        state.integers[0] = self.add(k, steps)
        state.pointers[:] = [self.ptr_add(b, steps * tile.row_bytes), *further]
        state.vectors[:] = held.values()

    def _rows_at(self, k: I64, further: Sequence[Ptr]) -> list[Ptr]:
        """Each row's element at the k that the iteration begins with."""
        return [self.element(end, "float", k) for end in self.row_ends]

    def _added(self, x: Vec, columns: Sequence[Vec], accumulators: Sequence[Vec]) -> list[Vec]:
        return [
            self.intrinsic("fmuladd", x, column, total) for column, total in zip(columns, accumulators, strict=True)
        ]

    def _added_from(self, i: int, row: Ptr, columns: Sequence[Vec], accumulators: Sequence[Vec]) -> list[Vec]:
        """The accumulators of row i with the products of the scalar at a pointer."""
        return self._added(self.load_splat(row), columns, accumulators)

    def _prefetch(self, steps: int, b: Ptr, further: list[Ptr]) -> list[Ptr]:
        """Prefetch what a later iteration reads; the other moving pointers after this iteration."""
        if steps == 1 and self.unrolled:
            return further
        if self.tile.calls_are_blocks:
            for line in range(0, steps * self.tile.row_bytes, self.tile.line):
                self.prefetch(self.ptr_add(further[0], line))
            return [self.ptr_add(further[0], _PACE)]
        together = len(self.stream_offsets)
        for stream in range(self.streams):
            self.prefetch(self.ptr_add(further[stream // together], self.stream_offsets[stream % together]))
        if not self.streams:
            for line in range(0, steps * self.tile.row_bytes, self.tile.line):
                self.prefetch(self.ptr_add(b, GEMM.prefetch_distance * self.lanes + line))
        return [self.opaque(self.ptr_add(pointer, self.tile.line)) for pointer in further]


class _Prefetching(_MicroKernel):
    """The function for L2-resident panels: it prefetches one line of the next panel per iteration and the C rows one
    at a time, so that prefetches neither evict nor queue ahead of its own loads.

    A shared core issues instructions slowly, so it takes few of them: every row has a pointer of its own. A scalar of A
    is loaded once: embedded broadcasts would load it for every vector. Moving pointers are the next panel's, C's, and
    one for each row.
    """

    is_prefetching = True

    def __init__(self, tile: Tile, rows: int) -> None:
        super().__init__(tile, rows)
        self.unrolled = True

    def _further(self) -> list[Ptr]:
        return [_NEXT, _C, *[self.element(end, "float", _FIRST) for end in self.row_ends]]

    def _rows_at(self, k: I64, further: Sequence[Ptr]) -> list[Ptr]:
        return list(further[2:])

    def _loop(self, end: I64, steps: int, state: Carried) -> None:
        """The iterations in as many pieces as there are rows, or fewer; each piece prefetches a row of C."""
        if steps == 1:
            super()._loop(end, steps, state)
            return
        left, piece = self.sub(end, state.integers[0]), self.rows * steps
        each = self.mul(self.sdiv(self.add(left, piece - 1), piece), steps)
        with self.repeated(state):
            c = state.pointers[2]
            for line in range(0, self.tile.row_bytes, self.tile.line):
                self.prefetch(self.ptr_add(c, line), for_write=True)
            stop = self.smin(self.add(state.integers[0], each), end)
            super()._loop(stop, steps, state)
            state.pointers[2] = self.ptr_add(state.pointers[2], I64("%target"))
            state.again = self.icmp("ne", state.integers[0], end)

    def _prefetch(self, steps: int, b: Ptr, further: list[Ptr]) -> list[Ptr]:
        line, c, *rows = further
        if steps > 1:
            self.prefetch(line, level=2)
            line = self.ptr_add(line, self.tile.line)
        # An index register for each row would cost an instruction, too.
        return [line, c, *(self.opaque(self.ptr_add(row, 4 * steps)) for row in rows)]
