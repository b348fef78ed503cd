"""The micro-kernel for operands that are packed at run time or not at all: strides are arguments, results go to memory.

A is contiguous along k (`by_rows`) or along its rows; one step along k has NR contiguous columns of B. Both may be read
where they are. Accumulators start at zero in each block along k, as in the micro-kernel for packed weights, so that
both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Carried, Ptr, Vec
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.policy import GEMM, PAIR
from dovetail.targets.cpu.gemm.tile import Tile

_A, _B, _C = Ptr("%a"), Ptr("%b"), Ptr("%c")
_A_STEP, _B_STEP, _C_STEP = I64("%a_step"), I64("%b_step"), I64("%c_step")
_A_TILE, _ROWS, _DEPTH, _FRESH = I64("%a_tile"), I64("%rows"), I64("%depth"), I1("%fresh")
_SUMMED = I64("%summed")
_TILE = (
    Parameter("ptr", "a", "readonly"), Parameter("i64", "a_step"), Parameter("ptr", "b", "readonly"),
    Parameter("i64", "b_step"), Parameter("ptr", "c"), Parameter("i64", "c_step"), Parameter("i64", "depth"),
    Parameter("i1", "fresh"),
)  # fmt: skip


@cache
def rows_function(tile: Tile, *, by_rows: bool) -> tuple[SharedFunction, Signature]:
    """`name(a, a_step, b, b_step, c, c_step, depth, fresh, a_tile, rows, summed)`: the rows of C in tiles of up to MR.

    `a_step` is the stride of rows where A is contiguous along k, else the stride of k; `a_tile` then is the stride of
    tiles. All are bytes. `fresh` says that C holds nothing yet. A tile goes through all blocks of `summed` steps in
    turn: its rows of C are in L1 after the first.
    """
    name = f"gemm_pair_{'rows' if by_rows else 'columns'}_{tile.rows}x{tile.vectors}x{tile.lanes}"
    kernels = [_Kernel(tile, rows, by_rows).kernel(f"{name}.{rows}") for rows in range(1, tile.rows + 1)]
    rows = _Rows(tile, by_rows, [k.signature for k in kernels])
    signature = Signature(name, (*_TILE, *(Parameter("i64", each) for each in ("a_tile", "rows", "summed"))))
    function = rows.function(signature, attributes="nounwind")
    uses = dict.fromkeys(use for f in (*kernels, function) for use in f.uses)
    text = "\n".join([*uses, *(f.text for f in (*kernels, function))])
    return shared_function(Function(signature, text, ()))


class _Rows(VectorBuilder):
    """The loop over tiles of rows."""

    def __init__(self, tile: Tile, by_rows: bool, kernels: Sequence[Signature]) -> None:
        super().__init__(tile.device)
        tiles = self.udiv(self.add(_ROWS, tile.rows - 1), tile.rows)
        # Along k, tiles are equally high: none is too low to keep the FMA units busy. By columns, vectors stay full.
        some = self.smax(tiles, 1)
        each, more = self.udiv(_ROWS, some), self.urem(_ROWS, some)
        with self.loop(0, tiles) as i:
            if by_rows:
                row = self.add(self.mul(i, each), self.smin(i, more))
                count = self.add(each, self.zext(self.icmp("slt", i, more)))
                a = self.ptr_add(_A, self.mul(row, _A_STEP))
            else:
                row = self.mul(i, tile.rows)
                count = self.smin(self.sub(_ROWS, row), tile.rows)
                a = self.ptr_add(_A, self.mul(i, _A_TILE))
            c = self.ptr_add(_C, self.mul(row, _C_STEP))
            # One block of no steps writes zeros.
            with self.loop(0, self.smax(_DEPTH, 1), step=_SUMMED) as k:
                steps = self.smin(_SUMMED, self.sub(_DEPTH, k))
                fresh = self.and_(_FRESH, self.icmp("eq", k, 0))
                here = self.ptr_add(a, self.mul(k, 4 if by_rows else _A_STEP))
                b = self.ptr_add(_B, self.mul(k, _B_STEP))
                with self.switch(count, range(1, tile.rows + 1)) as counts:
                    for rows in counts:
                        self.call(kernels[rows - 1], here, _A_STEP, b, _B_STEP, c, _C_STEP, steps, fresh)


class _Kernel(VectorBuilder):
    """The function for one row count."""

    def __init__(self, tile: Tile, rows: int, by_rows: bool) -> None:
        super().__init__(tile.device)
        self.tile, self.rows, self.by_rows = tile, rows, by_rows
        self.cells = [(i, j) for i in range(rows) for j in range(tile.vectors)]
        self.ends: list[Ptr] = []
        """Where each row of A ends, for lanes."""
        self.strides: list[I64] = []
        """Strides of the rows that share a pointer."""

    def kernel(self, name: str) -> Function:
        spots = [self.ptr_add(_C, self.mul(i, _C_STEP)) for i in range(self.rows)]
        for spot in spots:
            for line in range(0, self.tile.row_bytes, self.tile.line):
                self.prefetch(self.ptr_add(spot, line), for_write=True)
        moving = self._moving()
        first = self.sub(0, _DEPTH)
        state = Carried(I64("0"), [ZERO for _ in self.cells], [_B, *moving], [first])
        whole = I64(self.let(f"srem i64 {first}, {GEMM.unroll}"))
        for stop, steps in ((whole, GEMM.unroll), (I64("0"), 1)):
            with self.guarded(self.icmp("ne", state.integers[0], stop), state), self.repeated(state):
                self._iterate(steps, state)
                state.again = self.icmp("ne", state.integers[0], stop)
        self._store(spots, state.vectors)
        return self.function(Signature(name, _TILE), linkage="internal")

    def _moving(self) -> list[Ptr]:
        """Pointers into A that move along k: one where it is packed; by rows, one for each group of rows."""
        if not self.by_rows:
            return [_A]
        if self.tile.by_lane:
            # One index serves all rows, each of which has a pointer to its end.
            ends = [self.ptr_add(_A, self.mul(i, _A_STEP)) for i in range(self.rows)]
            self.ends = [self.opaque(self.element(end, "float", _DEPTH)) for end in ends]
            return []
        # An address adds one, two or three strides to the pointer of a group: 12 pointers would not fit in registers.
        self.strides = [self.mul(i, _A_STEP) for i in range(GEMM.rows_per_pointer)]
        return [self.ptr_add(_A, self.mul(i, _A_STEP)) for i in range(0, self.rows, GEMM.rows_per_pointer)]

    def _iterate(self, steps: int, state: Carried) -> None:
        k, b, moving = state.integers[0], state.pointers[0], state.pointers[1:]
        rows = [self.element(end, "float", k) for end in self.ends]
        if self.by_rows and not rows:
            groups = GEMM.rows_per_pointer
            rows = [self.ptr_add(moving[i // groups], self.strides[i % groups]) for i in range(self.rows)]
        held = [self.load(row) for row in rows] if self.tile.by_lane and steps == self.lanes else []
        accumulators = dict(zip(self.cells, state.vectors, strict=True))
        for step in range(steps):
            if step:
                accumulators = dict(zip(accumulators, self.in_order(list(accumulators.values())), strict=True))
            columns = [self.load(self.ptr_add(b, j * self.bytes)) for j in range(self.tile.vectors)]
            if self.by_rows:
                lanes = [(x, step) for x in held]
                scalars = [self.ptr_add(row, 4 * step) for row in rows]
            else:
                lanes = self._lanes(moving[0])
                # Rows of A come from L2; broadcasts leave no register for the address.
                if self.tile.by_lane and steps > 1 and step % self._steps_per_line() == 0:
                    self.prefetch(self.ptr_add(moving[0], PAIR.a_prefetch_distance))
                scalars = [self.ptr_add(moving[0], 4 * i) for i in range(self.rows)]
                moving = [self.ptr_add(moving[0], _A_STEP)]
            # Row by row: there are no registers for the factors of all rows.
            for i in range(self.rows):
                totals = self._added(
                    i, lanes, scalars[i], columns, [accumulators[i, j] for j in range(self.tile.vectors)]
                )
                accumulators |= {(i, j): x for j, x in enumerate(totals)}
            b = self.ptr_add(b, _B_STEP)
        if self.by_rows:
            moving = [self.opaque(self.ptr_add(pointer, 4 * steps)) for pointer in moving]
        state.integers[0] = self.add(k, steps)
        state.pointers[:] = [b, *moving]
        state.vectors[:] = accumulators.values()

    def _steps_per_line(self) -> int:
        """Steps along k whose packed rows of A share a cache line."""
        return max(1, self.tile.line // (4 * self.tile.rows))

    def _lanes(self, a: Ptr) -> list[tuple[Vec, int]]:
        """The rows of A at one k that are lanes of whole vectors: which vector and lane."""
        if not self.tile.by_lane:
            return []
        vectors = [self.load(self.ptr_add(a, 4 * i)) for i in range(0, self.rows - self.lanes + 1, self.lanes)]
        return [(x, lane) for x in vectors for lane in range(self.lanes)]

    def _added(
        self, i: int, lanes: Sequence[tuple[Vec, int]], scalar: Ptr, columns: Sequence[Vec], accumulators: Sequence[Vec]
    ) -> list[Vec]:
        """The accumulators of row i with the products of its factor: a lane, or the scalar at a pointer.

        A scalar is loaded once: embedded broadcasts load it for every vector, and loads are the limit here.
        """
        factor = self.splat_lane(*lanes[i]) if i < len(lanes) else self.load_splat(scalar)
        return [self.intrinsic("fmuladd", factor, x, total) for x, total in zip(columns, accumulators, strict=True)]

    def _store(self, spots: Sequence[Ptr], accumulators: Sequence[Vec]) -> None:
        cells = [
            (self.ptr_add(spots[i], j * self.bytes), x) for (i, j), x in zip(self.cells, accumulators, strict=True)
        ]
        with self.when(_FRESH):
            for spot, x in cells:
                self.store(x, spot)
        with self.unless(_FRESH):
            for spot, x in cells:
                self.store(self.fadd(self.load(spot), x), spot)


__all__ = ["rows_function"]
