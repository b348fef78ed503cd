"""One row with NEON where bytes have two codes: low halves of a group are multiplied among the bytes of another.

A sum of low halves is complete before it is moved up and whole bytes are added to it, and all four sums of a group wait
then: queues of a Neoverse N1 hold few instructions. So the bytes of a group are multiplied in turn with the low halves
of the group that follows. Instructions stay in the order they are written in, as in `block_order.py`.


Tiles of several rows with NEON, whose instructions stay in the order in which they are written.

Queues of a Neoverse N1 hold few instructions. LLVM loads what a group needs at once and scales its sums at once, and
then SDOT waits. Here a register is loaded again right after its last product, for the group that follows, too, and sums
are scaled among products. Instructions that LLVM must not move are asm with side effects, or volatile loads.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from dovetail.codegen.llvm.function import Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Phi, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.dataclass import dataclass
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.expand import moved_up
from dovetail.targets.cpu.gemm.blocks.limbs import BlockKernel, splat
from dovetail.targets.cpu.gemm.blocks.rows import LINE, Rows
from dovetail.targets.cpu.gemm.blocks.words import Term
from dovetail.targets.cpu.gemm.policy import BLOCKS

RowCell = tuple[int, int]
"""A row, the only one, and a vector of columns."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Where a group is."""

    codes: Ptr
    x: Ptr


class NestedRow(Rows):
    """The function that multiplies one row with a panel."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        assert self.moves_sums and self.passes == 1, "all columns of a panel are multiplied at once"
        self.half = of.group // 8
        """Steps along k of low halves, and of whole bytes."""

    def _along(self, panel: Ptr, codes: Ptr, ahead: Ptr, held: dict[RowCell, str]) -> dict[RowCell, str]:
        """Go along k: the sums of each vector of columns."""
        of = self.of
        early, limbs = self._started(self.limbs[0])
        for step in range(self.half):
            for cell in self.cells:
                self._add_low(_Group(codes, self.limbs[0]), early, limbs, step, cell)
        early = self._moved_up(early)
        before, along, after = self.block, self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        group, panel_at, codes_at, x_at = self.phi("i64"), self.phi("ptr"), self.phi("ptr"), self.phi("ptr")
        sums = {cell: self.phi(self.floats) for cell in self.cells}
        lows = {cell: self.phi(self.ints) for cell in self.cells}
        following = I64(self.let(f"add nuw nsw i64 {group.name}, 1"))
        goes_on = self.icmp("slt", following, I64("%groups"))
        here = _Group(Ptr(codes_at.name), Ptr(x_at.name))
        # After the last group there is none: its own low halves are multiplied again.
        then = _Group(
            self.ptr_add(here.codes, self.select_int(goes_on, of.layout.group_bytes, 0)),
            self.opaque(self.ptr_add(here.x, self.select_int(goes_on, of.group_bytes, 0))),
        )
        names = {cell: phi.name for cell, phi in lows.items()}
        totals, late = self._two_groups(here, then, names, Ptr(panel_at.name))
        found = self._scaled(here, Ptr(panel_at.name), totals, {cell: phi.name for cell, phi in sums.items()})
        late = self._moved_up(late)
        carried: list[tuple[Phi, object, object]] = [
            (group, 0, following),
            (panel_at, panel, self.ptr_add(Ptr(panel_at.name), of.layout.group_bytes)),
            (codes_at, codes, then.codes),
            (x_at, self.limbs[0], then.x),
            *[(phi, held[cell], found[cell]) for cell, phi in sums.items()],
            *[(phi, early[cell], late[cell]) for cell, phi in lows.items()],
        ]
        self.end_loop(carried, goes_on, before=before, along=along, after=after)
        return found

    def _two_groups(
        self, here: _Group, then: _Group, lows: dict[RowCell, str], panel: Ptr
    ) -> tuple[dict[RowCell, str], dict[RowCell, str]]:
        """Sums of a group with its whole bytes, and of the low halves of the one that follows."""
        of, totals = self.of, dict(lows)
        limbs = self._four_steps(here.x, self.half)
        late, following = self._started(then.x)
        lines = [self.ptr_add(panel, BLOCKS.nested_distance + line) for line in range(0, of.layout.group_bytes, LINE)]
        for step in range(self.half):
            for line in lines[step * len(lines) // self.half : (step + 1) * len(lines) // self.half]:
                self.prefetch(line)
            for cell in self.cells:
                whole = self.codes(here.codes, cell[1], of.layout.words.codes[0][self.half + step])
                totals[cell] = self.dot_by_lane(totals[cell], whole, limbs, step)
                self._add_low(then, late, following, step, cell)
        return totals, late

    def _scaled(
        self, here: _Group, panel: Ptr, totals: dict[RowCell, str], held: dict[RowCell, str]
    ) -> dict[RowCell, str]:
        """Sums plus those of a group times its scales."""
        found: dict[RowCell, str] = {}
        for cell, total in totals.items():
            scales, joined = self.scales(panel, cell[1]), self.joined([total], here.x)
            found[cell] = self.placed(self.added(joined, scales, here.x, held[cell]), self.floats)
        if self.of.layout.has_low:
            return self._with_lows(self.ptr_add(panel, self.of.layout.scale_bytes), [here.x], found)
        return found

    def _started(self, x: Ptr) -> tuple[dict[RowCell, str], str]:
        """What the sums of a group start with, and its numbers for low halves."""
        starts = {cell: self.number(self.ptr_add(x, self.start_at(0)), "i32") for cell in self.cells}
        return starts, self._four_steps(x, 0)

    def _add_low(self, of: _Group, sums: dict[RowCell, str], limbs: str, step: int, cell: RowCell) -> None:
        low = self.placed(self.codes(of.codes, cell[1], self.of.layout.words.codes[0][step]), self.raw)
        sums[cell] = self.dot_by_lane(sums[cell], low, limbs, step)

    def _moved_up(self, sums: dict[RowCell, str]) -> dict[RowCell, str]:
        return {cell: self.placed(self.sixteen_times(held), self.ints) for cell, held in sums.items()}

    def _four_steps(self, x: Ptr, first: int) -> str:
        """Numbers of a row for four steps."""
        at = self.ptr_add(x, self.of.limbs_at + 4 * first)
        return self.let(f"load volatile {self.ints}, ptr {at}, align 16")


_LEAST_ROWS = 4
"""Fewer rows leave no registers for the codes of four steps of all their vectors."""
STEPS = 4
"""Steps along k in a register of limbs: SDOT multiplies by one lane of it."""

_LOW = Term(0, 0, 15)
"""The low half of a byte."""

Cell = tuple[int, int]
"""A row and a vector of columns."""
Key = TypeVar("Key")


@cache
def rows_function(of: BlockKernel, rows: int) -> tuple[SharedFunction, Signature]:
    """Adds products of rows of limbs with a panel to sums: `(limbs, pitch, panel, sums, stride, groups, fresh)`.

    A tile that prefetches rows is also told which.
    """
    if of.is_nested and rows == 1 and not of.layout.is_expanded and not of.emulated:
        return shared_function(NestedRow(of).written())
    return shared_function((InOrder if _is_ordered(of, rows) else Rows)(of, rows).written())


def prefetches_rows(of: BlockKernel, rows: int) -> bool:
    """Whether a tile prefetches the limbs of another one: panels that many rows share are expanded in L1."""
    return _is_ordered(of, rows) and of.layout.is_expanded


def _is_ordered(of: BlockKernel, rows: int) -> bool:
    return of.dot.by_lane and not of.emulated and rows >= _LEAST_ROWS


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group is: limbs of each row, scales, and codes."""

    x: list[Ptr]
    panel: Ptr
    codes: Ptr
    group: int = 0
    """Of a block."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a group needs first, in registers."""

    starts: dict[tuple[int, int, int], str]
    """What sums start with, for each limb, row and vector of columns."""
    limbs: dict[int, str]
    """Four steps of the first limb, for each row."""
    codes: dict[tuple[int, int], str]
    """For each vector of columns and each of four steps."""


class InOrder(Rows):
    """The function that multiplies rows with a panel, some vectors of columns at a time."""

    def __init__(self, of: BlockKernel, rows: int) -> None:
        super().__init__(of, rows)
        # Rows that are prefetched must be there: a page that was never written is looked for each time.
        if prefetches_rows(of, rows):
            self.parameters = (*self.parameters, Parameter("ptr", "following"))
        starts = list(range(0, of.group // 4, STEPS))
        # Whole bytes first: what is moved up is in the same registers.
        self.starts = starts[::-1] if self.moves_codes else starts
        """First steps of each four."""
        # Sums of the highest limb are complete first, and are joined from there down.
        self.turns = [(first, limb) for first in self.starts for limb in reversed(range(of.limbs))]

    @property
    def loads_apart(self) -> bool:
        return True

    @property
    def moves_codes(self) -> bool:
        """Whether bytes with two codes are multiplied as they are, and then their low halves."""
        return self.of.is_nested and not self.of.layout.is_expanded

    @property
    def prefetches_rows(self) -> bool:
        """Whether rows come from L2."""
        return prefetches_rows(self.of, self.rows)

    @property
    def row_share(self) -> int:
        """Rows of the tile that follows which one pass prefetches."""
        return self.rows // self.passes

    def _ahead(self, number: I64) -> Ptr:
        if not self.prefetches_rows:
            return super()._ahead(number)
        return self.ptr_add(Ptr("%following"), self.mul(self.mul(number, self.row_share), I64("%pitch")))

    def _along(self, panel: Ptr, codes: Ptr, ahead: Ptr, held: dict[Cell, str]) -> dict[Cell, str]:
        """Go along k: the sums of each row and vector of columns."""
        of, before = self.of, self.block
        pace = of.group_bytes if self.prefetches_rows else of.layout.group_bytes // self.passes
        early = self.first(Place(self.limbs, panel, codes))
        along, after = self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        group, panel_at, codes_at, ahead_at = self.phi("i64"), self.phi("ptr"), self.phi("ptr"), self.phi("ptr")
        x = [self.phi("ptr") for _ in range(self.rows)]
        sums = {cell: self.phi(self.floats) for cell in self.cells}
        starts = {key: self.phi(self.ints) for key in early.starts}
        limbs = {row: self.phi(self.ints) for row in early.limbs}
        four = {key: self.phi(self.raw) for key in early.codes}
        following = I64(self.let(f"add nuw nsw i64 {group.name}, 1"))
        goes_on = self.icmp("slt", following, I64("%groups"))
        # After the last group there is none to load: its own numbers are loaded again.
        next_codes = self.ptr_add(Ptr(codes_at.name), self.select_int(goes_on, of.layout.group_bytes, 0))
        by = self.select_int(goes_on, of.group_bytes, 0)
        next_x = [self.opaque(self.ptr_add(Ptr(phi.name), by)) for phi in x]
        lines = [self.ptr_add(Ptr(ahead_at.name), line) for line in range(0, pace, LINE)]
        if self.prefetches_rows:
            rows = [self.ptr_add(Ptr(ahead_at.name), self.mul(I64("%pitch"), row)) for row in range(self.row_share)]
            lines = [self.ptr_add(row, line) for row in rows for line in range(0, of.group_bytes, LINE)]
        now = Loaded(_names(starts), _names(limbs), _names(four))
        here = Place([Ptr(phi.name) for phi in x], Ptr(panel_at.name), Ptr(codes_at.name))
        then = Place(next_x, here.panel, next_codes)
        found, late = self.products(now, _names(sums), here, then, lines if self.passes > 1 else [])
        carried: list[tuple[Phi, object, object]] = [
            (group, 0, following),
            (panel_at, panel, self.ptr_add(Ptr(panel_at.name), of.layout.group_bytes)),
            (codes_at, codes, next_codes),
            (ahead_at, ahead, self.ptr_add(Ptr(ahead_at.name), pace)),
            *zip(x, self.limbs, next_x, strict=True),
            *[(phi, held[cell], found[cell]) for cell, phi in sums.items()],
            *[(phi, early.starts[key], late.starts[key]) for key, phi in starts.items()],
            *[(phi, early.limbs[row], late.limbs[row]) for row, phi in limbs.items()],
            *[(phi, early.codes[key], late.codes[key]) for key, phi in four.items()],
        ]
        for phi, start, next_one in carried:
            phi.add(str(start), before)
            phi.add(str(next_one), self.block)
        self.emit(f"br i1 {goes_on}, label %{along}, label %{after}")
        self.label(after)
        return found

    def first(self, at: Place) -> Loaded:
        """What a group needs first."""
        of = self.of
        starts = {(limb, *cell): self.start(at.x, limb, cell) for limb in range(of.limbs) for cell in self.cells}
        limbs = {row: self.four_steps(at.x[row], *self.turns[0]) for row in range(self.rows)}
        cells = [(v, step) for v in range(self.width) for step in range(STEPS)]
        four = {(v, step): self.four_codes(at, v, self.starts[0] + step) for v, step in cells}
        return Loaded(starts, limbs, four)

    def products(
        self, now: Loaded, held: dict[Cell, str], at: Place, after: Place, lines: list[Ptr]
    ) -> tuple[dict[Cell, str], Loaded]:
        """Sums with the products of a group, and what the group that follows needs first."""
        of, limbs, four, x = self.of, dict(now.limbs), dict(now.codes), at.x
        sums, totals = dict(now.starts), dict[Cell, str]()
        scales: list[str] = []
        for number, (first, limb) in enumerate(self.turns):
            is_last_turn, is_complete = number + 1 == len(self.turns), first == self.starts[-1]
            for step in range(STEPS):
                for row, vector in self.cells:
                    held_sum = sums[limb, row, vector]
                    sums[limb, row, vector] = self.dot_by_lane(held_sum, four[vector, step], limbs[row], step)
                    if step < STEPS - 1:
                        continue
                    if is_last_turn:
                        top = of.limbs - 1
                        totals[row, vector] = self.joined_by(top, sums[top, row, vector], None, x[row])
                    if vector == self.width - 1 and not is_last_turn:
                        limbs[row] = self.four_steps(x[row], *self.turns[number + 1])
                if limb == 0:
                    for vector in range(self.width):
                        if self.moves_codes and not is_complete:
                            four[vector, step] = self._low_codes(four[vector, step])
                            continue
                        then, start = (after, self.starts[0]) if is_complete else (at, self.turns[number + 1][0])
                        four[vector, step] = self.four_codes(then, vector, start + step)
                if is_last_turn and step == STEPS - 2:
                    scales = [self.placed(self.scales_at(at, vector), self.floats) for vector in range(self.width)]
                if lines:
                    self.prefetch(lines.pop(0))
        found: dict[Cell, str] = {}
        factors = {cell: scales[cell[1]] for cell in self.cells}
        for limb in reversed(range(of.limbs - 1)):
            for row, vector in self.cells:
                totals[row, vector] = self.joined_by(limb, sums[limb, row, vector], totals[row, vector], x[row])
            for row, vector in self.cells if limb else ():
                by = self.load_splat(x[row], "float", self.floats)
                factors[row, vector] = self.placed(
                    self.let(f"fmul {self.floats} {factors[row, vector]}, {by}"), self.floats
                )
        for cell in self.cells:
            row, vector = cell
            found[cell] = self.placed(self.fma(totals[cell], factors[cell], held[cell]), self.floats)
            for limb in reversed(range(of.limbs)):
                sums[limb, row, vector] = self.start(after.x, limb, cell)
            if vector == self.width - 1:
                limbs[row] = self.four_steps(after.x[row], *self.turns[0])
        if of.layout.has_low:
            found = self._with_lows(self.ptr_add(at.panel, of.layout.scale_bytes), x, found)
        return found, Loaded(sums, limbs, four)

    def joined_by(self, limb: int, sums: str, total: str | None, x: Ptr) -> str:
        """The sums of a limb and of those above it as one number."""
        of = self.of
        floats = self.let(f"bitcast {self.ints} {sums} to {self.floats}")
        if total is None:
            assert of.joined_at is not None, "NEON adds it in memory"
            total = self.number(self.ptr_add(x, of.joined_at), "float")
        if of.sums_are_scaled:
            total = self.fma(floats, self.load_splat(x, "float", self.floats), total)
        elif limb:
            total = self.fma(floats, splat(f"{float(of.place(limb))}", of.dot.lanes, "float"), total)
        else:
            total = self.let(f"fadd {self.floats} {floats}, {total}")
        return self.placed(total, self.floats)

    def start(self, x: list[Ptr], limb: int, cell: Cell) -> str:
        return self.number(self.ptr_add(x[cell[0]], self.start_at(limb)), "i32")

    def number(self, pointer: Ptr, kind: str) -> str:
        """A number of a row's group that others are added to, in all lanes."""
        return self.let(f"load volatile <{self.of.dot.lanes} x {kind}>, ptr {pointer}, align 16")

    def four_steps(self, x: Ptr, first: int, limb: int) -> str:
        """Four steps of a limb."""
        at = self.ptr_add(x, self.of.limbs_at + limb * self.of.group + 4 * first)
        return self.let(f"load volatile {self.ints}, ptr {at}, align 16")

    def scales_at(self, at: Place, vector: int) -> str:
        """Scales of a group in f32."""
        return self.scales(at.panel, vector)

    def four_codes(self, at: Place, vector: int, step: int) -> str:
        """Codes of a step of a group."""
        found = self.codes(at.codes, vector, self.of.layout.words.codes[0][step])
        return self.placed(found, self.raw) if self.of.layout.is_narrow and not self.moves_codes else found

    def _low_codes(self, whole: str) -> str:
        """Codes of low halves, moved up, from bytes that were multiplied as they are."""
        return self.placed(moved_up(self, (_LOW,), self.of.dot.lanes, lambda _: whole), self.raw)


def _names(phis: dict[Key, Phi]) -> dict[Key, str]:
    return {key: phi.name for key, phi in phis.items()}


__all__ = ["STEPS", "Cell", "InOrder", "Loaded", "Place", "prefetches_rows", "rows_function"]
