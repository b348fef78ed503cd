"""Products with weights in blocks by integer dot products: some rows of limbs times one panel of codes.

Codes are loaded and unpacked once for all rows of a tile. Each limb is multiplied by the codes exactly; sums of a group
are scaled and added in f32, group after group, for every row alike: how rows are cut changes no bit.
"""

from __future__ import annotations

from typing import Literal

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Phi, Ptr
from dovetail.targets.cpu.gemm.blocks.expand import four_codes, moved_up
from dovetail.targets.cpu.gemm.blocks.limbs import IN_REGISTER, LOW_AT, BlockKernel, splat
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout
from dovetail.targets.cpu.gemm.blocks.words import Term
from dovetail.targets.cpu.gemm.policy import BLOCKS

LINE = 64
"""Bytes of a cache line, as far as prefetching goes."""
_NAMES = ("ptr limbs", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 groups", "i1 fresh")
_PARAMETERS = tuple([Parameter(kind, name) for kind, name in map(str.split, _NAMES)])
"""Rows of limbs and the bytes between them, a panel, sums and the bytes between their rows, groups along k, and whether
they are the first."""
AHEAD = Parameter("ptr", "ahead")
"""Packed blocks that are expanded later, where their lines are prefetched among products."""


class Rows(Builder):
    """The function that multiplies rows with a panel, some vectors of columns at a time."""

    def __init__(self, of: BlockKernel, rows: int) -> None:
        super().__init__()
        self.of, self.rows = of, rows
        self.parameters = (*_PARAMETERS, AHEAD) if of.prefetches_packed else _PARAMETERS
        lanes = of.dot.lanes
        self.ints, self.floats, self.raw = f"<{lanes} x i32>", f"<{lanes} x float>", f"<{4 * lanes} x i8>"
        self.width = max(1, min(of.vectors, of.cells // rows))
        self.cells = [(row, vector) for vector in range(self.width) for row in range(rows)]
        # Steps along k whose codes are unpacked at once; products that are added apart wait in registers, too.
        self.depth = 2 if self.width > 1 else of.group // (4 if of.dot.pairs is None else 8)
        # Many rows leave few registers: limbs of four steps are loaded when those before are multiplied.
        self.in_order = of.sums_are_scaled and rows > 4 and not of.emulated
        if self.in_order:
            self.depth = 4
        self.moves_sums = of.is_nested and rows == 1 and not of.layout.is_expanded
        """Whether sums of low halves of bytes are moved up; several rows share codes that are."""
        if self.moves_sums:
            self.depth = min(self.depth, of.group // 8)
        self.in_memory = of.fills_registers and len(self.cells) == of.cells
        """Whether sums of the groups before wait in memory: those of limbs take three quarters of the registers."""
        if self.in_memory:
            self.depth = 1
        self.places: dict[tuple[int, int], Ptr] = {}
        self._due: list[Ptr] = []
        """Lines that are prefetched among the products of a group, into this level."""
        self._level: Literal[1, 2] = 1
        self.limbs = [self.ptr_add(Ptr("%limbs"), self.mul(I64("%pitch"), row)) for row in range(rows)]

    def written(self) -> Function:
        of, lanes = self.of, self.of.dot.lanes
        with self.loop(0, self.passes) as number:
            panel = self.ptr_add(Ptr("%panel"), self.mul(number, self.width * lanes * of.layout.scales.itemsize))
            codes = self.mul(number, self.width * lanes * 4)
            codes = self.ptr_add(self.ptr_add(Ptr("%panel"), of.layout.head_bytes), codes)
            start = self.ptr_add(Ptr("%sums"), self.mul(number, 4 * lanes * self.width))
            places = {
                (row, vector): self.ptr_add(self.ptr_add(start, self.mul(I64("%stride"), row)), 4 * lanes * vector)
                for row, vector in self.cells
            }
            held = {cell: self.held(there) for cell, there in places.items()}
            self.places = places
            self._keep(held)
            for cell, found in self._along(panel, codes, self._ahead(number), held).items():
                self.emit(f"store {self.floats} {found}, ptr {places[cell]}, align 4")
        return self.function(Signature(f"{of.name}.{self.rows}", self.parameters))

    @property
    def pace(self) -> int:
        """Bytes that a pass prefetches for each group."""
        of = self.of
        each = of.packed.block_bytes // of.packed.groups if of.prefetches_packed else of.layout.group_bytes
        return each // self.passes

    @property
    def passes(self) -> int:
        """How often a panel is read, some vectors of columns at a time."""
        return self.of.vectors // self.width

    def _ahead(self, number: I64) -> Ptr:
        """What a pass prefetches: its share of the panel that follows, as all passes but the first read L1 or L2."""
        share = self.mul(I64("%groups"), self.pace)
        start = Ptr("%ahead")
        if not self.of.prefetches_packed:
            start = self.ptr_add(Ptr("%panel"), self.mul(I64("%groups"), self.of.layout.group_bytes))
        return self.ptr_add(start, self.mul(number, share))

    def _keep(self, sums: dict[tuple[int, int], str]) -> None:
        """Write sums to memory where they wait there."""
        for cell, found in sums.items() if self.in_memory else ():
            self.emit(f"store {self.floats} {found}, ptr {self.places[cell]}, align 4")

    def held(self, there: Ptr) -> str:
        """The sums of the groups before."""
        kept = self.let(f"load {self.floats}, ptr {there}, align 4")
        return self.let(f"select i1 %fresh, {self.floats} zeroinitializer, {self.floats} {kept}")

    def _along(
        self, panel: Ptr, codes: Ptr, ahead: Ptr, held: dict[tuple[int, int], str]
    ) -> dict[tuple[int, int], str]:
        """Go along k: the sums of each row and vector of columns."""
        of, before = self.of, self.block
        along, after = self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        group, panel_at, codes_at, limbs_at = self.phi("i64"), self.phi("ptr"), self.phi("ptr"), self.phi("i64")
        ahead_at, pace = self.phi("ptr"), self.pace
        sums = {} if self.in_memory else {cell: self.phi(self.floats) for cell in self.cells}
        if of.prefetches_packed:
            self.prefetch_lines(Ptr(ahead_at.name), pace, level=2)
        elif self.passes > 1 and not of.layout.is_expanded:
            self.prefetch_lines(Ptr(ahead_at.name), pace)
        elif self.moves_sums or (not of.dot.by_lane and not of.layout.is_expanded):
            distance, level = (BLOCKS.nested_distance, 1) if self.moves_sums else (BLOCKS.prefetch_distance, 2)
            self.prefetch_lines(self.ptr_add(Ptr(panel_at.name), distance), of.layout.group_bytes, level=level)
        x = [self.ptr_add(start, I64(limbs_at.name)) for start in self.limbs]
        found = self.with_group(Ptr(panel_at.name), Ptr(codes_at.name), x, {at: phi.name for at, phi in sums.items()})
        following = I64(self.let(f"add nuw nsw i64 {group.name}, 1"))
        carried: list[tuple[Phi, object, object]] = [
            (group, 0, following),
            (panel_at, panel, self.ptr_add(Ptr(panel_at.name), of.layout.group_bytes)),
            (ahead_at, ahead, self.ptr_add(Ptr(ahead_at.name), pace)),
            (codes_at, codes, self.ptr_add(Ptr(codes_at.name), of.layout.group_bytes)),
            (limbs_at, 0, self.add(I64(limbs_at.name), of.group_bytes)),
            *[(phi, held[cell], found[cell]) for cell, phi in sums.items()],
        ]
        for phi, start, next_one in carried:
            phi.add(str(start), before)
            phi.add(str(next_one), self.block)
        self.emit(f"br i1 {self.icmp('slt', following, I64('%groups'))}, label %{along}, label %{after}")
        self.label(after)
        return found

    def with_group(
        self, panel: Ptr, codes: Ptr, x: list[Ptr], held: dict[tuple[int, int], str]
    ) -> dict[tuple[int, int], str]:
        """Sums plus the products with a group, by its scales and codes."""
        of, found = self.of, dict[tuple[int, int], str]()
        totals = self.group(codes, x, of.layout.words.codes[0])
        for vector in range(self.width):
            scales = self.scales(panel, vector)
            for row in range(self.rows):
                if self.in_memory:
                    before = self.let(f"load {self.floats}, ptr {self.places[row, vector]}, align 4")
                else:
                    before = held[row, vector]
                found[row, vector] = self.added(totals[row, vector], scales, x[row], before)
        if of.layout.has_low:
            found = self._with_lows(self.ptr_add(panel, of.layout.scale_bytes), x, found)
        self._keep(found)
        return found

    def added(self, total: str, scales: str, x: Ptr, held: str) -> str:
        """Sums plus those of a group times its scales."""
        if not self.of.sums_are_scaled:
            scales = self.let(f"fmul {self.floats} {scales}, {self.load_splat(x, 'float', self.floats)}")
        return self.fma(total, scales, held)

    def _with_lows(self, lows: Ptr, x: list[Ptr], held: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
        """Sums plus the lows of a group times the sum of a row in it."""
        found: dict[tuple[int, int], str] = {}
        for vector in range(self.width):
            low = self.scales(lows, vector)
            for row in range(self.rows):
                total = self.load_splat(self.ptr_add(x[row], LOW_AT), "float", self.floats)
                found[row, vector] = self.fma(low, total, held[row, vector])
        return found

    def group(self, codes: Ptr, x: list[Ptr], terms: tuple[tuple[Term, ...], ...]) -> dict[tuple[int, int], str]:
        """The integers of a group times its codes, in f32, for each row and vector of columns."""
        of, cells = self.of, self.cells
        sums = {
            (limb, row, vector): self.number(self.ptr_add(x[row], self.start_at(limb)), "i32")
            for limb in range(of.limbs)
            for row, vector in cells
        }
        order = list(range(len(terms)))
        if not of.dot.by_lane:
            # Steps whose codes are in the same words follow each other: these are loaded once.
            order.sort(key=lambda step: [(term.word, term.shift) for term in terms[step][::-1]])
        x = list(x)
        for first in range(0, len(order), self.depth):
            some = order[first : first + self.depth]
            if self.moves_sums and 2 * first == len(order):
                sums = {cell: self.sixteen_times(held) for cell, held in sums.items()}
            if first and self.in_order:
                x = [self.after(pointer, sums[0, row, 0], self.ints) for row, pointer in enumerate(x)]
            weights = {(v, step): self.codes(codes, v, terms[step]) for v in range(self.width) for step in some}
            # Neighbours belong to different sums: the queue of instructions that wait is short.
            for limb in range(of.limbs):
                part = first // self.depth * of.limbs + limb
                self._prefetch_due(part, -(-len(order) // self.depth) * of.limbs, sums[limb, 0, 0])
                for step in some:
                    for row, vector in cells:
                        factor = self.factor(x[row], limb, step)
                        held = sums[limb, row, vector]
                        sums[limb, row, vector] = self.dot(held, weights[vector, step], factor)
        if self.in_order:
            x = [self.after(pointer, sums[0, row, 0], self.ints) for row, pointer in enumerate(x)]
        return {(row, v): self.joined([sums[limb, row, v] for limb in range(of.limbs)], x[row]) for row, v in cells}

    def prefetch_lines(self, start: Ptr, size: int, level: Literal[1, 2] = 1) -> None:
        """Prefetch lines: one by one among the products of the group that follows, or at once.

        At once they wait for each other. One by one LLVM would spill sums of several rows.
        """
        lines = [self.ptr_add(start, line) for line in range(0, size, LINE)]
        if self.of.dot.by_lane or self.of.emulated or self.rows > 1:
            for line in lines:
                self.prefetch(line, level=level)
        else:
            self._due, self._level = lines, level

    def _prefetch_due(self, part: int, parts: int, held: str) -> None:
        """Prefetch the lines that are due at one of some parts of a group's products, once `held` is computed."""
        lines = self._due
        for line in lines[part * len(lines) // parts : (part + 1) * len(lines) // parts]:
            self.prefetch(self.after(line, held, self.ints), level=self._level)

    @property
    def loads_apart(self) -> bool:
        """Whether each step loads its words: NEON's steps share them, and LLVM would load them once and spill."""
        return self.of.dot.by_lane and self.of.layout.is_narrow and self.depth < self.of.group // 4

    def start_at(self, limb: int) -> int:
        """Bytes of a group before what the sums of a limb start with: codes that are moved up have their own."""
        is_moved = self.of.is_nested and not self.moves_sums
        return self.of.start_at(limb + int(is_moved))

    def sixteen_times(self, sums: str) -> str:
        """Sums of the low halves of bytes as those of whole bytes count."""
        return self.let(f"shl {self.ints} {sums}, {splat('4', self.of.dot.lanes, 'i32')}")

    def codes(self, codes: Ptr, vector: int, terms: tuple[Term, ...]) -> str:
        """Stored codes of a vector of columns, four steps along k in each lane."""
        lanes = self.of.dot.lanes
        how = "load volatile" if self.loads_apart else "load"
        if self.in_memory and self.of.layout.is_narrow:
            # LLVM would load a word of several steps once, and spill it.
            codes = self.opaque(codes)

        def load(word: int) -> str:
            at = self.ptr_add(codes, 4 * (word * self.of.layout.columns + lanes * vector))
            return self.let(f"{how} {self.raw}, ptr {at}, align 16")

        is_moved = self.of.is_nested and not self.moves_sums and not self.of.layout.is_expanded
        return (moved_up if is_moved else four_codes)(self, terms, lanes, load)

    def joined(self, sums: list[str], x: Ptr) -> str:
        """The sums of all limbs, which were added to the bits of a float, as one number."""
        of, lanes = self.of, self.of.dot.lanes
        floats = [self.let(f"bitcast {self.ints} {held} to {self.floats}") for held in sums]
        if of.sums_are_scaled and of.joined_at is not None:
            above = self.number(self.ptr_add(x, of.joined_at), "float")
            return self.fma(floats[0], self.load_splat(x, "float", self.floats), above)
        if of.limbs == 1:
            return self.let(f"fsub {self.floats} {floats[0]}, {splat(f'{of.bias}', lanes, 'float')}")
        # From the highest limb down each sum is exact up to the last: what is left to subtract has few bits.
        total = splat(f"{-of.bias}", lanes, "float")
        if of.joined_at is not None:
            total = self.number(self.ptr_add(x, of.joined_at), "float")
        for limb in range(of.limbs - 1, 0, -1):
            total = self.fma(floats[limb], splat(f"{float(of.place(limb))}", lanes, "float"), total)
        return self.let(f"fadd {self.floats} {floats[0]}, {total}")

    def after(self, pointer: Ptr, held: str, kind: str | None = None) -> Ptr:
        """The same pointer, which LLVM believes to depend on sums.

        Otherwise it would load much at once, and spill it. No instruction comes of it: the machine loads as early as it
        likes.
        """
        how = IN_REGISTER[self.of.dot.lanes]
        return Ptr(self.let(f'call ptr asm "", "=r,0,{how}"(ptr {pointer}, {kind or self.floats} {held})'))

    def number(self, pointer: Ptr, kind: str) -> str:
        """A number of a row's group that others are added to, in all lanes."""
        vector = f"<{self.of.dot.lanes} x {kind}>"
        if self.of.number_bytes == 4:
            return self.load_splat(pointer, kind, vector)
        # Vectors of a row start alike: LLVM would load that once and copy registers, or spill what it loads early.
        how = "load volatile" if self.width > 1 or self.of.limbs > 1 else "load"
        return self.let(f"{how} {vector}, ptr {pointer}, align 16")

    def load_splat(self, pointer: Ptr, kind: str, vector: str) -> str:
        scalar = self.let(f"load {kind}, ptr {pointer}, align 4")
        one = self.let(f"insertelement {vector} poison, {kind} {scalar}, i64 0")
        return self.let(f"shufflevector {vector} {one}, {vector} poison, <{self.of.dot.lanes} x i32> zeroinitializer")

    def factor(self, x: Ptr, limb: int, step: int) -> str:
        """Four bytes of a limb in every lane; NEON takes them out of a register of four steps."""
        of, lanes = self.of, self.of.dot.lanes
        start = of.limbs_at + limb * of.group
        if of.dot.by_lane:
            at = self.ptr_add(x, start + 4 * (step - step % 4))
            some = self.let(f"load {self.ints}, ptr {at}, align 16")
            mask = ", ".join([f"i32 {step % 4}"] * lanes)
            four = self.let(f"shufflevector {self.ints} {some}, {self.ints} poison, <{lanes} x i32> <{mask}>")
        else:
            four = self.load_splat(self.ptr_add(x, start + 4 * step), "i32", self.ints)
        return self.let(f"bitcast {self.ints} {four} to {self.raw}")

    def dot_by_lane(self, held: str, codes: str, limbs: str, lane: int) -> str:
        """Sums plus codes times one of four steps in a register of limbs, in order, with NEON."""
        lanes = self.of.dot.lanes
        four = self.let(
            f"shufflevector {self.ints} {limbs}, {self.ints} poison, <{lanes} x i32> {splat(str(lane), lanes, 'i32')}"
        )
        return self.placed(self.dot(held, codes, self.let(f"bitcast {self.ints} {four} to {self.raw}")), self.ints)

    def placed(self, x: str, kind: str) -> str:
        """The same number, computed before the next one that is placed. No instruction comes of it."""
        return self.let(f'call {kind} asm sideeffect "", "=w,0"({kind} {x})')

    def scales(self, pointer: Ptr, vector: int, layout: BlockLayout | None = None) -> str:
        """Scales of some columns in f32."""
        size, lanes = (layout or self.of.layout).scales.itemsize, self.of.dot.lanes
        at = self.ptr_add(pointer, vector * lanes * size)
        if size == 4:
            return self.let(f"load {self.floats}, ptr {at}, align 4")
        return self.let(
            f"fpext <{lanes} x half> {self.let(f'load <{lanes} x half>, ptr {at}, align 2')} to {self.floats}"
        )

    def fma(self, x: str, y: str, z: str) -> str:
        name = f"llvm.fma.v{self.of.dot.lanes}f32"
        self.use(f"declare {self.floats} @{name}({self.floats}, {self.floats}, {self.floats})")
        return self.let(f"call {self.floats} @{name}({self.floats} {x}, {self.floats} {y}, {self.floats} {z})")

    def dot(self, held: str, weights: str, factor: str) -> str:
        """Sums plus the products of four stored codes with four bytes of a limb in each lane."""
        dot = self.of.dot
        if self.of.emulated:
            return self._plain(held, weights, factor)
        if dot.pairs is not None:
            return self._by_pairs(held, weights, factor, dot.pairs)
        self.use(f"declare {self.ints} @{dot.intrinsic}({self.ints}, {self.raw}, {self.raw})")
        # Where one operand is unsigned it is the first, and codes are stored without a sign.
        return self.let(
            f"call {self.ints} @{dot.intrinsic}({self.ints} {held}, {self.raw} {weights}, {self.raw} {factor})"
        )

    def _by_pairs(self, held: str, weights: str, factor: str, pairs: str) -> str:
        """The same by way of sums of two products in 16 bits, none of which is large enough to saturate."""
        lanes, name = self.of.dot.lanes, self.of.dot.intrinsic
        half = f"<{2 * lanes} x i16>"
        self.use(f"declare {half} @{name}({self.raw}, {self.raw})")
        self.use(f"declare {self.ints} @{pairs}({half}, {half})")
        two = self.let(f"call {half} @{name}({self.raw} {weights}, {self.raw} {factor})")
        ones = splat("1", 2 * lanes, "i16")
        return self.let(
            f"add {self.ints} {held}, {self.let(f'call {self.ints} @{pairs}({half} {two}, {half} {ones})')}"
        )

    def _plain(self, held: str, weights: str, factor: str) -> str:
        """The same without a dot instruction."""
        lanes, wide = self.of.dot.lanes, f"<{4 * self.of.dot.lanes} x i32>"
        stored = self.let(f"{'sext' if self.of.dot.signed else 'zext'} {self.raw} {weights} to {wide}")
        products = self.let(f"mul {wide} {stored}, {self.let(f'sext {self.raw} {factor} to {wide}')}")
        for part in range(4):
            mask = ", ".join(f"i32 {4 * lane + part}" for lane in range(lanes))
            some = self.let(f"shufflevector {wide} {products}, {wide} poison, <{lanes} x i32> <{mask}>")
            held = self.let(f"add {self.ints} {held}, {some}")
        return held


__all__ = ["LINE", "Rows"]
