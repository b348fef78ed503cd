"""Rows of limbs times codes with NEON, where instructions stay in the order in which they are written.

Queues of a Neoverse N1 hold few instructions. LLVM loads what a group needs at once and scales its sums at once, and
then SDOT waits. Here a register is loaded again right after its last product, for the group that follows, too, and sums
are scaled among products. Instructions that LLVM must not move are asm with side effects, or volatile loads.

A tile of rows is a stream of dot products with two others among them: codes, which come from a panel or are unpacked
from blocks of two levels, and scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import I1, I64, Ptr, Vec
from dovetail.codegen.llvm.simd import PhiLoop, due, same, zeros
from dovetail.dataclass import dataclass
from dovetail.targets.cpu.gemm.blocks.builder import AccumulatorKey, Accumulators, BlockBuilder, parameters
from dovetail.targets.cpu.gemm.blocks.kernel import LINE, BlockKernel
from dovetail.targets.cpu.gemm.blocks.rows import PANEL, TILE
from dovetail.targets.cpu.gemm.blocks.unpack import NeonIntegers, joined_bits, moved_up, neon_codes
from dovetail.targets.cpu.gemm.blocks.words import Term
from dovetail.targets.cpu.gemm.policy import BLOCKS

STEPS = 4
"""Steps along k in a register of limbs: SDOT multiplies by one lane of it."""
NEAR, FAR = 1, 3
"""Blocks of two levels between the one that is multiplied and those that are prefetched into L1 and into L2."""
FRESH = I1("%fresh")
_LOW = Term(0, 0, 15)
"""The low half of a byte."""


def tile_of_panel(of: BlockKernel, rows: int) -> Function:
    """Rows times a panel: groups follow each other in a loop."""
    return _Panel(of, rows).written()


def tile_of_blocks(of: BlockKernel, rows: int) -> Function:
    """Rows times blocks of two levels, each group of which is unpacked once for all rows, among the products before.

    To expand a block in L1 takes as long as the products of four rows with it: stores and loads, and no products among
    them. Sums are those of expanded blocks, in the same order: how rows are cut changes no bit.
    """
    return _Blocks(of, rows).written()


def nested_row(of: BlockKernel) -> Function:
    """One row times a panel whose bytes have two codes."""
    return _NestedRow(of).written()


@dataclass(frozen=True, slots=True)
class GroupPointers:
    """Where a group is: limbs of each row, scales, and codes."""

    x: list[Ptr]
    panel: Ptr
    codes: Ptr
    group: int = 0
    """Of a block."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The operands of a group that come first, in registers."""

    starts: dict[tuple[int, int, int], Vec]
    """Initial accumulators, for each limb, row and vector of columns."""
    limbs: dict[int, Vec]
    """Four steps of the first limb, for each row."""
    codes: dict[tuple[int, int], Vec]
    """For each vector of columns and each of four steps."""


class GroupSource(Protocol):
    """Where codes and scales of a group come from."""

    @property
    def moves_codes(self) -> bool:
        """Whether bytes with two codes are multiplied as they are, and then their low halves."""
        ...

    def codes(self, at: GroupPointers, vector: int, step: int) -> Vec:
        """Codes of a step of a group."""
        ...

    def scales(self, at: GroupPointers, vector: int) -> Vec:
        """Scales of a group in f32."""
        ...


class GroupProducts:
    """The products of a tile of rows with one group, software-pipelined: among them are the loads of the next group and
    the scaling of accumulators."""

    def __init__(self, t: BlockBuilder, source: GroupSource, rows: int, width: int) -> None:
        self.t, self.of, self.source, self.rows, self.width = t, t.of, source, rows, width
        self.cells = [(row, vector) for vector in range(width) for row in range(rows)]
        self.limbs = [t.ptr_add(Ptr("%limbs"), t.mul(I64("%pitch"), row)) for row in range(rows)]
        starts = list(range(0, self.of.group // 4, STEPS))
        # Whole bytes first: what is moved up is in the same registers.
        self.starts = starts[::-1] if source.moves_codes else starts
        """First steps of each four."""
        # Sums of the highest limb are complete first, and are joined from there down.
        self.turns = [(first, limb) for first in self.starts for limb in reversed(range(self.of.limbs))]

    def first(self, at: GroupPointers) -> Loaded:
        """Load the operands of a group that come first."""
        starts = {(limb, *cell): self.start(at.x, limb, cell) for limb in range(self.of.limbs) for cell in self.cells}
        limbs = {row: self.four_steps(at.x[row], *self.turns[0]) for row in range(self.rows)}
        cells = [(v, step) for v in range(self.width) for step in range(STEPS)]
        return Loaded(starts, limbs, {(v, step): self.source.codes(at, v, self.starts[0] + step) for v, step in cells})

    def products(
        self, now: Loaded, held: Accumulators, at: GroupPointers, after: GroupPointers, lines: list[Ptr]
    ) -> tuple[Accumulators, Loaded]:
        """Sums with the products of a group, and what the group that follows needs first."""
        t, of, limbs, four, x = self.t, self.of, dict(now.limbs), dict(now.codes), at.x
        accumulators, totals = dict(now.starts), Accumulators()
        scales: list[Vec] = []
        for number, (first, limb) in enumerate(self.turns):
            is_last_turn, is_complete = number + 1 == len(self.turns), first == self.starts[-1]
            for step in range(STEPS):
                for row, vector in self.cells:
                    held_sum = accumulators[limb, row, vector]
                    accumulators[limb, row, vector] = t.dot_by_lane(held_sum, four[vector, step], limbs[row], step)
                    if step < STEPS - 1:
                        continue
                    if is_last_turn:
                        top = of.limbs - 1
                        totals[row, vector] = self.joined(top, accumulators[top, row, vector], None, x[row])
                    if vector == self.width - 1 and not is_last_turn:
                        limbs[row] = self.four_steps(x[row], *self.turns[number + 1])
                if limb == 0:
                    for vector in range(self.width):
                        if self.source.moves_codes and not is_complete:
                            # Codes of low halves, moved up, from bytes that were multiplied as they are.
                            whole = four[vector, step]
                            four[vector, step] = t.placed(moved_up(t, (_LOW,), lambda _, whole=whole: whole))
                            continue
                        then, start = (after, self.starts[0]) if is_complete else (at, self.turns[number + 1][0])
                        four[vector, step] = self.source.codes(then, vector, start + step)
                if is_last_turn and step == STEPS - 2:
                    scales = [t.placed(self.source.scales(at, vector)) for vector in range(self.width)]
                if lines:
                    t.prefetch(lines.pop(0))
        updated: Accumulators = {}
        factors = {cell: scales[cell[1]] for cell in self.cells}
        for limb in reversed(range(of.limbs - 1)):
            for row, vector in self.cells:
                totals[row, vector] = self.joined(limb, accumulators[limb, row, vector], totals[row, vector], x[row])
            for row, vector in self.cells if limb else ():
                by = t.load_spread(t.floats, x[row])
                factors[row, vector] = t.placed(t.fmul(factors[row, vector], by))
        for cell in self.cells:
            row, vector = cell
            updated[cell] = t.placed(t.fma(totals[cell], factors[cell], held[cell]))
            for limb in reversed(range(of.limbs)):
                accumulators[limb, row, vector] = self.start(after.x, limb, cell)
            if vector == self.width - 1:
                limbs[row] = self.four_steps(after.x[row], *self.turns[0])
        if of.layout.has_low:
            lows = t.ptr_add(at.panel, of.layout.scale_bytes)
            for vector in range(self.width):
                low = t.scales(lows, vector)
                for row in range(self.rows):
                    updated[row, vector] = t.low_added(low, x[row], updated[row, vector])
        return updated, Loaded(accumulators, limbs, four)

    def joined(self, limb: int, accumulators: Vec, total: Vec | None, x: Ptr) -> Vec:
        """The sums of a limb and of those above it as one number."""
        t, of = self.t, self.of
        floats = t.bitcast(accumulators, "float")
        if total is None:
            assert of.joined_at is not None, "NEON adds it in memory"
            total = t.number(t.ptr_add(x, of.joined_at), t.floats)
        if of.sums_are_scaled:
            return t.placed(t.fma(floats, t.load_spread(t.floats, x), total))
        if limb:
            return t.placed(t.fma(floats, same(t.floats, float(of.place(limb))), total))
        return t.placed(t.fadd(floats, total))

    def start(self, x: list[Ptr], limb: int, cell: AccumulatorKey) -> Vec:
        return self.t.number(self.t.ptr_add(x[cell[0]], self.of.first_at(limb, self.rows)), self.t.ints)

    def four_steps(self, x: Ptr, first: int, limb: int) -> Vec:
        """Four steps of a limb."""
        at = self.t.ptr_add(x, self.of.limbs_at + limb * self.of.group + 4 * first)
        return self.t.load_lanes(self.t.ints, at, 16, volatile=True)


class _Panel(BlockBuilder):
    """The function that multiplies rows with a panel, some vectors of columns at a time, and its source of codes."""

    volatile = True

    def __init__(self, of: BlockKernel, rows: int) -> None:
        super().__init__(of)
        self.moves_codes = of.is_nested and not of.layout.is_expanded
        self.tile = GroupProducts(
            self, _PanelCodes(self, self.moves_codes), rows, max(1, min(of.vectors, of.cells // rows))
        )
        self.passes = of.vectors // self.tile.width
        # Panels that many rows share are expanded in L1, and rows come from L2. Those that are prefetched must be
        # there: a page that was never written is looked for each time.
        self.prefetches_rows = of.layout.is_expanded
        self.row_share = rows // self.passes
        """Rows of the tile that follows which one pass prefetches."""

    def written(self) -> Function:
        of, lanes, tile = self.of, self.of.dot.lanes, self.tile
        with self.loop(0, self.passes) as number:
            panel = self.ptr_add(Ptr("%panel"), self.mul(number, tile.width * lanes * of.layout.scales.itemsize))
            codes = self.mul(number, tile.width * lanes * 4)
            codes = self.ptr_add(self.ptr_add(Ptr("%panel"), of.layout.head_bytes), codes)
            start = self.ptr_add(Ptr("%sums"), self.mul(number, 4 * lanes * tile.width))
            places = {
                (row, vector): self.ptr_add(self.ptr_add(start, self.mul(I64("%stride"), row)), 4 * lanes * vector)
                for row, vector in tile.cells
            }
            held = {cell: self.held(there, FRESH) for cell, there in places.items()}
            for cell, total in self._along(panel, codes, self._ahead(number), held).items():
                self.store_lanes(total, places[cell])
        arguments = (*PANEL, *parameters("ptr following")) if self.prefetches_rows else PANEL
        return self.function(Signature(f"{of.name}.{tile.rows}", arguments))

    def _ahead(self, number: I64) -> Ptr:
        """Return the lines that a pass prefetches: its share of the rows, or of the panel, that follow."""
        if self.prefetches_rows:
            return self.ptr_add(Ptr("%following"), self.mul(self.mul(number, self.row_share), I64("%pitch")))
        share = self.mul(I64("%groups"), self.of.layout.group_bytes // self.passes)
        start = self.ptr_add(Ptr("%panel"), self.mul(I64("%groups"), self.of.layout.group_bytes))
        return self.ptr_add(start, self.mul(number, share))

    def _along(self, panel: Ptr, codes: Ptr, ahead: Ptr, held: Accumulators) -> Accumulators:
        """Go along k: the sums of each row and vector of columns."""
        of, tile = self.of, self.tile
        pace = of.group_bytes if self.prefetches_rows else of.layout.group_bytes // self.passes
        early = tile.first(GroupPointers(tile.limbs, panel, codes))
        along = PhiLoop(self)
        group, panel, codes, ahead = along.carry(I64("0")), along.carry(panel), along.carry(codes), along.carry(ahead)
        x = [along.carry(row) for row in tile.limbs]
        accumulators = {cell: along.carry(held[cell]) for cell in tile.cells}
        now = Loaded(
            {key: along.carry(start) for key, start in early.starts.items()},
            {row: along.carry(limbs) for row, limbs in early.limbs.items()},
            {key: along.carry(four) for key, four in early.codes.items()},
        )
        following = self.following(group)
        goes_on = self.icmp("slt", following, I64("%groups"))
        # After the last group there is none to load: its own numbers are loaded again.
        next_codes = self.ptr_add(codes, self.select_int(goes_on, of.layout.group_bytes, 0))
        by = self.select_int(goes_on, of.group_bytes, 0)
        next_x = [self.opaque(self.ptr_add(row, by)) for row in x]
        lines = [self.ptr_add(ahead, line) for line in range(0, pace, LINE)]
        if self.prefetches_rows:
            rows = [self.ptr_add(ahead, self.mul(I64("%pitch"), row)) for row in range(self.row_share)]
            lines = [self.ptr_add(row, line) for row in rows for line in range(0, of.group_bytes, LINE)]
        then = GroupPointers(next_x, panel, next_codes)
        updated, late = tile.products(
            now, dict(accumulators), GroupPointers(x, panel, codes), then, lines if self.passes > 1 else []
        )
        along.end(
            [
                (group, following),
                (panel, self.ptr_add(panel, of.layout.group_bytes)),
                (codes, next_codes),
                (ahead, self.ptr_add(ahead, pace)),
                *zip(x, next_x, strict=True),
                *[(phi, updated[cell]) for cell, phi in accumulators.items()],
                *[(phi, late.starts[key]) for key, phi in now.starts.items()],
                *[(phi, late.limbs[row]) for row, phi in now.limbs.items()],
                *[(phi, late.codes[key]) for key, phi in now.codes.items()],
            ],
            goes_on,
        )
        return updated


@dataclass(frozen=True, slots=True)
class _PanelCodes:
    """Codes and scales of a panel."""

    t: BlockBuilder
    moves_codes: bool

    def codes(self, at: GroupPointers, vector: int, step: int) -> Vec:
        codes = panel_codes(self.t, at.codes, vector, self.t.of.layout.words.codes[0][step], self.moves_codes)
        return self.t.placed(codes) if self.t.of.layout.is_narrow and not self.moves_codes else codes

    def scales(self, at: GroupPointers, vector: int) -> Vec:
        return self.t.scales(at.panel, vector)


def panel_codes(t: BlockBuilder, codes: Ptr, vector: int, terms: tuple[Term, ...], is_moved: bool) -> Vec:
    """Stored codes of a vector of columns, four steps along k in each lane."""

    def load(word: int) -> Vec:
        at = t.ptr_add(codes, 4 * (word * t.of.layout.columns + t.of.dot.lanes * vector))
        return t.load_lanes(t.raw, at, 16, volatile=True)

    return (moved_up if is_moved else joined_bits)(t, terms, load)


class _Blocks(BlockBuilder):
    """The function that multiplies a tile of rows, a vector of columns of a block after the other."""

    volatile = True

    def __init__(self, of: BlockKernel, rows: int) -> None:
        super().__init__(of)
        self.source = _BlockCodes(self)
        self.tile = GroupProducts(self, self.source, rows, 1)
        self.rows = range(rows)

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        share = packed.block_bytes // of.vectors
        for row in self.rows:
            for vector in range(of.vectors):
                self.clear(self.place(row, 4 * lanes * vector))
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            into = self.mul(block, packed.groups * of.group_bytes)
            x = [self.opaque(self.ptr_add(row, into)) for row in self.tile.limbs]
            with self.loop(0, of.vectors) as number:
                first = self.mul(number, lanes)
                words = self.ptr_add(panel, self.add(self.mul(first, 4), packed.head_bytes))
                halves = self.ptr_add(panel, self.mul(first, packed.scales.itemsize))
                ahead = self.ptr_add(self.ptr_add(panel, NEAR * packed.block_bytes), self.mul(number, share))
                start = self.ptr_add(Ptr("%sums"), self.mul(first, 4))
                accumulators = {(row, 0): self.ptr_add(start, self.mul(I64("%stride"), row)) for row in self.rows}
                held = {cell: self.load_lanes(self.floats, at) for cell, at in accumulators.items()}
                for cell, total in self._block(words, halves, ahead, x, held).items():
                    self.store_lanes(total, accumulators[cell])
        return self.function(Signature(f"{of.name}.few.{len(self.rows)}", TILE))

    def _block(self, words: Ptr, halves: Ptr, ahead: Ptr, x: list[Ptr], held: Accumulators) -> Accumulators:
        """Sums plus the products with a block; each group prefetches some lines."""
        of, packed = self.of, self.of.packed
        self.source.begin(words, self.placed(self.scales(halves, 0, packed)))
        places = [
            GroupPointers([self.group_at(row, group) for row in x], halves, words, group)
            for group in range(packed.groups)
        ]
        lines = [self.ptr_add(ahead, line) for line in range(0, packed.block_bytes // of.vectors, LINE)]
        return (self._pairs if of.sums_are_scaled else self._one_by_one)(places, lines, held)

    def _one_by_one(self, places: list[GroupPointers], lines: list[Ptr], held: Accumulators) -> Accumulators:
        loaded = self.tile.first(places[0])
        for number, at in enumerate(places):
            self._fetch(due(lines, number, len(places)))
            # After the last group there is none to load: its own numbers are loaded again.
            after = places[min(number + 1, len(places) - 1)]
            held, loaded = self.tile.products(loaded, held, at, after, [])
        return held

    def _fetch(self, lines: Sequence[Ptr]) -> None:
        for line in lines:
            self.prefetch(line)
            self.prefetch(self.ptr_add(line, (FAR - NEAR) * self.of.packed.block_bytes), level=2)

    def _pairs(self, places: list[GroupPointers], lines: list[Ptr], held: Accumulators) -> Accumulators:
        """With one limb, sums of two groups are scaled at once.

        A multiply-add takes two cycles more than SDOT, and where one follows the other a pipe writes nothing for a
        cycle or two: alone among products, each multiply-add takes as long as two of them.
        """
        tile, loaded = self.tile, self.tile.first(places[0])
        starts = {(0, row): loaded.starts[0, row, 0] for row in self.rows}
        starts |= {(1, row): tile.start(places[1].x, 0, (row, 0)) for row in self.rows}
        for first in range(0, len(places), 2):
            # After the last groups there are none to load: their own numbers are loaded again.
            pair, after = places[first : first + 2], places[min(first + 2, len(places) - 2) :][:2]
            accumulators, totals, factors = starts, dict[tuple[int, int], Vec](), list[Vec]()
            for number, at in enumerate(pair):
                self._fetch(due(lines, first + number, len(places)))
                then = after[0] if number else pair[1]
                for _, next_one in pairwise((*tile.starts, None)):
                    following = (then, tile.starts[0]) if next_one is None else (at, next_one)
                    if number and following[0] is then:
                        factors = [self.placed(self.source.factors(each.group)) for each in pair]
                    self._four_products(number, accumulators, loaded, following)
            for row in self.rows:
                totals[0, row] = tile.joined(0, accumulators[0, row], None, pair[0].x[row])
            held, starts = self._scaled(pair, after, accumulators, totals, factors, held)
        return held

    def _four_products(
        self,
        number: int,
        accumulators: dict[tuple[int, int], Vec],
        loaded: Loaded,
        following: tuple[GroupPointers, int],
    ) -> None:
        """Add the products of four steps of one of two groups, and load what the steps that follow need."""
        then, start = following
        for step in range(STEPS):
            for row in self.rows:
                codes, limbs = loaded.codes[0, step], loaded.limbs[row]
                accumulators[number, row] = self.dot_by_lane(accumulators[number, row], codes, limbs, step)
                if step == STEPS - 1:
                    loaded.limbs[row] = self.tile.four_steps(then.x[row], start, 0)
            loaded.codes[0, step] = self.source.codes(then, 0, start + step)

    def _scaled(
        self, pair: list[GroupPointers], after: list[GroupPointers], accumulators: dict[tuple[int, int], Vec],
        totals: dict[tuple[int, int], Vec], factors: list[Vec], held: Accumulators,
    ) -> tuple[Accumulators, dict[tuple[int, int], Vec]]:  # fmt: skip
        """Sums plus those of two groups times their scales, and what those of the next two start with."""
        tile, starts = self.tile, dict[tuple[int, int], Vec]()
        scales = [self.fmul(self.source.scale, each) for each in factors]
        scales = [self.placed(each) for each in scales]
        for number in range(2):
            for row in self.rows if number else ():
                totals[1, row] = tile.joined(0, accumulators[1, row], None, pair[1].x[row])
            for row in self.rows:
                starts[number, row] = tile.start(after[number].x, 0, (row, 0))
                total = self.fma(totals[number, row], scales[number], held[row, 0])
                held = {**held, (row, 0): self.placed(total)}
        return held, starts


class _BlockCodes:
    """Codes and scales of blocks of two levels."""

    moves_codes = False

    def __init__(self, t: BlockBuilder) -> None:
        self.t, self.of = t, t.of.packed
        self.integers = NeonIntegers(t, self.of, Ptr("%panel"), t.of.dot.lanes)
        self.scale = zeros(t.floats)
        """The scale of a block."""

    def begin(self, words: Ptr, scale: Vec) -> None:
        """Go on with a block."""
        self.integers, self.scale = NeonIntegers(self.t, self.of, words, self.t.of.dot.lanes), scale

    def factors(self, group: int) -> Vec:
        """The integers of a group, which multiply the scale of its block."""
        return self.integers.floats(self.of.words.scales[group])

    def scales(self, at: GroupPointers, vector: int) -> Vec:
        return self.t.fmul(self.scale, self.factors(at.group))

    def codes(self, at: GroupPointers, vector: int, step: int) -> Vec:
        terms, load = self.of.words.codes[at.group][step], self.t.words_at(at.codes, volatile=True)
        return self.t.placed((moved_up if self.of.is_nested else neon_codes)(self.t, terms, load))


@dataclass(frozen=True, slots=True)
class _Group:
    """Where a group of one row is."""

    codes: Ptr
    x: Ptr


class _NestedRow(BlockBuilder):
    """The function that multiplies one row with a panel: low halves are multiplied among the bytes of another group.

    A sum of low halves is complete before it is moved up and whole bytes are added to it, and all four sums of a group
    would wait then. So the bytes of a group are multiplied in turn with the low halves of the group that follows.
    """

    volatile = True

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of)
        assert of.moves_sums(1) and of.vectors <= of.cells, "all columns of a panel are multiplied at once"
        self.cells = [(0, vector) for vector in range(of.vectors)]
        self.half = of.group // 8
        """Steps along k of low halves, and of whole bytes."""

    def written(self) -> Function:
        codes = self.ptr_add(Ptr("%panel"), self.of.layout.head_bytes)
        places = {cell: self.ptr_add(Ptr("%sums"), 4 * self.of.dot.lanes * cell[1]) for cell in self.cells}
        held = {cell: self.held(there, FRESH) for cell, there in places.items()}
        for cell, total in self._along(Ptr("%panel"), _Group(codes, Ptr("%limbs")), held).items():
            self.store_lanes(total, places[cell])
        return self.function(Signature(f"{self.of.name}.1", PANEL))

    def _along(self, panel: Ptr, at: _Group, held: Accumulators) -> Accumulators:
        """Go along k: the sums of each vector of columns."""
        of = self.of
        early, limbs = self._started(at.x)
        for step in range(self.half):
            for cell in self.cells:
                self._add_low(at, early, limbs, step, cell)
        early = self._moved_up(early)
        along = PhiLoop(self)
        group, panel = along.carry(I64("0")), along.carry(panel)
        here = _Group(along.carry(at.codes), along.carry(at.x))
        accumulators = {cell: along.carry(held[cell]) for cell in self.cells}
        lows = {cell: along.carry(early[cell]) for cell in self.cells}
        following = self.following(group)
        goes_on = self.icmp("slt", following, I64("%groups"))
        # After the last group there is none: its own low halves are multiplied again.
        then = _Group(
            self.ptr_add(here.codes, self.select_int(goes_on, of.layout.group_bytes, 0)),
            self.opaque(self.ptr_add(here.x, self.select_int(goes_on, of.group_bytes, 0))),
        )
        totals, late = self._two_groups(here, then, lows, panel)
        updated = self._scaled(here, panel, totals, accumulators)
        late = self._moved_up(late)
        along.end(
            [
                (group, following),
                (panel, self.ptr_add(panel, of.layout.group_bytes)),
                (here.codes, then.codes),
                (here.x, then.x),
                *[(phi, updated[cell]) for cell, phi in accumulators.items()],
                *[(phi, late[cell]) for cell, phi in lows.items()],
            ],
            goes_on,
        )
        return updated

    def _two_groups(
        self, here: _Group, then: _Group, lows: Accumulators, panel: Ptr
    ) -> tuple[Accumulators, Accumulators]:
        """Sums of a group with its whole bytes, and of the low halves of the one that follows."""
        totals = dict(lows)
        limbs = self._four_steps(here.x, self.half)
        late, following = self._started(then.x)
        size = self.of.layout.group_bytes
        lines = [self.ptr_add(panel, BLOCKS.nested_distance + line) for line in range(0, size, LINE)]
        for step in range(self.half):
            for line in due(lines, step, self.half):
                self.prefetch(line)
            for cell in self.cells:
                whole = self._codes(here, cell, self.half + step)
                totals[cell] = self.dot_by_lane(totals[cell], whole, limbs, step)
                self._add_low(then, late, following, step, cell)
        return totals, late

    def _scaled(self, here: _Group, panel: Ptr, totals: Accumulators, held: Accumulators) -> Accumulators:
        """Sums plus those of a group times its scales."""
        accumulators: Accumulators = {}
        for cell, total in totals.items():
            scales, joined = self.scales(panel, cell[1]), self.joined([total], here.x)
            accumulators[cell] = self.placed(self.added(joined, scales, here.x, held[cell]))
        if self.of.layout.has_low:
            lows = self.ptr_add(panel, self.of.layout.scale_bytes)
            return {cell: self.low_added(self.scales(lows, cell[1]), here.x, x) for cell, x in accumulators.items()}
        return accumulators

    def _started(self, x: Ptr) -> tuple[Accumulators, Vec]:
        """Return the initial accumulators of a group, and its numbers for low halves."""
        starts = {cell: self.number(self.ptr_add(x, self.of.first_at(0, 1)), self.ints) for cell in self.cells}
        return starts, self._four_steps(x, 0)

    def _codes(self, of: _Group, cell: AccumulatorKey, step: int) -> Vec:
        return panel_codes(self, of.codes, cell[1], self.of.layout.words.codes[0][step], False)

    def _add_low(self, of: _Group, accumulators: Accumulators, limbs: Vec, step: int, cell: AccumulatorKey) -> None:
        accumulators[cell] = self.dot_by_lane(accumulators[cell], self.placed(self._codes(of, cell, step)), limbs, step)

    def _moved_up(self, accumulators: Accumulators) -> Accumulators:
        return {cell: self.placed(self.lanewise("shl", held, 4)) for cell, held in accumulators.items()}

    def _four_steps(self, x: Ptr, first: int) -> Vec:
        """Numbers of a row for four steps."""
        return self.load_lanes(self.ints, self.ptr_add(x, self.of.limbs_at + 4 * first), 16, volatile=True)


__all__ = ["nested_row", "tile_of_blocks", "tile_of_panel"]
