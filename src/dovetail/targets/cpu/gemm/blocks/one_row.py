"""One row of limbs times blocks with two levels of scales, which are unpacked in registers.

Several rows share what is expanded into L1 once; for one row the way there and back would cost more than its products.
In exact mode each group is computed as from expanded blocks, in the same order: how rows are cut changes no bit. In
fast mode the scale of a block multiplies the sum of its groups, which takes an instruction less for each of them.


One row of one limb times blocks of two levels whose bytes have two codes, in the order that this is written in.

Low halves and whole bytes of a group have a sum each, and two multiply-adds join them: where one sum is moved up and
the other is added to it, products wait. Each step of products has an instruction that scales the group before. What
blocks subtract is taken away here, too: the words of its integers are in registers.


One row of one limb times blocks with codes of six bits, whose instructions stay in the order they are written in.

LLVM has prefetches follow each other, more requests than L1 takes at once, and scales all sums of some groups at once.
Here a step of products has one line that is prefetched from far into L2 and one from near into L1, the words of the
step that follows are loaded, and each product is followed by an instruction that scales sums of the groups before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.dataclass import dataclass
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.limbs import ABOVE, BIAS, MAGIC, BlockKernel, splat
from dovetail.targets.cpu.gemm.blocks.lows import LIMBS_AT, integer_quads, sums_bytes
from dovetail.targets.cpu.gemm.blocks.rows import LINE
from dovetail.targets.cpu.gemm.blocks.unpack import At, Integers, Unpacking
from dovetail.targets.cpu.gemm.blocks.words import Term

DIRECT_TOGETHER = 2
"""Groups whose products are computed at once, at most: each has a sum and four steps of a row, of each limb."""
DIRECT_AHEAD = 2
"""Blocks between the one that is multiplied and the one that is prefetched."""
ROW_PARAMETERS = (
    Parameter("ptr", "limbs"), Parameter("ptr", "panel"), Parameter("ptr", "sums"), Parameter("i64", "blocks"),
)  # fmt: skip
"""Of functions that multiply one row."""


class Direct(Unpacking):
    """The function that multiplies one row, a vector of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        self.width = 1
        self.parameters = ROW_PARAMETERS
        self.sets = word_sets(of.packed.words.codes, DIRECT_TOGETHER)
        self.scales_blocks = of.sums_are_scaled
        """Whether the scale of a block multiplies the sum of its groups."""
        self.ahead = DIRECT_AHEAD

    def written(self) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        share = packed.block_bytes // self.passes
        for vector in range(self.passes):
            place = self.ptr_add(Ptr("%sums"), 4 * lanes * vector)
            self.emit(f"store {self.floats} zeroinitializer, ptr {place}, align 4")
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            x = self.ptr_add(Ptr("%limbs"), self.mul(block, packed.groups * of.group_bytes))
            self.at_block(block)
            with self.loop(0, self.passes) as number:
                ahead = self.ptr_add(self.ptr_add(panel, self.ahead * packed.block_bytes), self.mul(number, share))
                first = self.mul(number, lanes)
                words = self.ptr_add(panel, self.add(self.mul(first, 4), packed.head_bytes))
                halves = self.ptr_add(panel, self.mul(first, packed.scales.itemsize))
                there = self.ptr_add(Ptr("%sums"), self.mul(first, 4))
                held = self.let(f"load {self.floats}, ptr {there}, align 4")
                found = self.block_sums(words, halves, ahead, x, held)
                self.emit(f"store {self.floats} {found}, ptr {there}, align 4")
        return self.function(Signature(f"{of.name}.direct", self.parameters))

    def at_block(self, block: I64) -> None:
        """Compute what all vectors of columns of a block share."""

    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: str) -> str:
        """Sums plus the products with a block."""
        packed = self.of.packed
        lines = list(range(0, packed.block_bytes // self.passes, LINE))
        at = At(self, words, x)
        integers = Integers(self, at)
        scale = self.scales(halves, 0, packed)
        totals: dict[int, str] = {}
        done, inside = 0, "zeroinitializer"
        for number, some in enumerate(self.sets):
            share = slice(number, None, len(self.sets))
            for line in lines[share]:
                self.prefetch(self.ptr_add(ahead, line))
            totals |= self._set(at, some)
            at.wait_for(totals[some[-1]], self.floats)
            while done in totals:
                factor, total = integers.floats(packed.words.scales[done]), totals.pop(done)
                if self.scales_blocks:
                    inside = self.plus(total, factor, inside)
                else:
                    steps = self.let(f"fmul {self.floats} {scale}, {factor}")
                    held = self.added(total, steps, self.group_at(at.x, done), held)
                done += 1
        return self.fma(inside, scale, held) if self.scales_blocks else held

    def _set(self, at: At, groups: list[int]) -> dict[int, str]:
        """The integers of some groups times their codes, in f32: words that have codes of several are loaded once."""
        of = self.of
        starts = [(group, limb) for group in groups for limb in range(of.limbs)]
        sums = {
            (group, limb): self.number(self.ptr_add(self.group_at(at.x, group), of.start_at(limb)), "i32")
            for group, limb in starts
        }
        at.wait_for(sums[starts[-1]], self.ints)
        for step in range(of.group // 4):
            loaded: dict[int, str] = {}
            codes = {group: self._codes(at.words, loaded, of.packed.words.codes[group][step]) for group in groups}
            for limb in range(of.limbs):
                for group in groups:
                    factor = self.factor(self.group_at(at.x, group), limb, step)
                    sums[group, limb] = self.dot(sums[group, limb], codes[group], factor)
        return {g: self.joined([sums[g, limb] for limb in range(of.limbs)], self.group_at(at.x, g)) for g in groups}

    def plus(self, x: str, y: str, z: str) -> str:
        """A product that is added to a number, or to nothing, which would take a register to be cleared."""
        return self.let(f"fmul {self.floats} {x}, {y}") if z == "zeroinitializer" else self.fma(x, y, z)

    def group_at(self, x: Ptr, group: int) -> Ptr:
        """The limbs of one group of a block."""
        return self.ptr_add(x, group * self.of.group_bytes)

    def _codes(self, words: Ptr, loaded: dict[int, str], terms: tuple[Term, ...]) -> str:
        def load(word: int) -> str:
            if word not in loaded:
                loaded[word] = self.word(words, word)
            return loaded[word]

        return self.codes_of(load, terms)


def word_sets(codes: tuple[tuple[tuple[Term, ...], ...], ...], most: int) -> list[list[int]]:
    """Groups whose codes are in the same words, those with the most words in common first."""
    words = [{term.word for term in steps[0]} for steps in codes]
    left, found = list(range(len(codes))), list[list[int]]()
    while left:
        some = [left.pop(0)]
        while len(some) < most:
            held = set[int]().union(*[words[group] for group in some])
            shared = max(left, key=lambda group: len(words[group] & held), default=None)
            if shared is None or not words[shared] & held:
                break
            some.append(shared)
            left.remove(shared)
        found.append(sorted(some))
    return found


NESTED_NEAR, NESTED_FAR = 1, 4
"""Blocks between the one that is multiplied and those that are prefetched into L1 and into L2."""
_START, _HIGHEST, _OUTSIDE = 128.0, 0x43, 255
"""A float, its highest byte, which seven bits may follow that are added to it, and an index of TBL that gives 0."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a group of products needs first."""

    low: str
    """What the sum of low halves starts with, and that of whole bytes."""
    whole: str
    limbs: tuple[str, str]
    """Numbers of a row for low halves, and for whole bytes."""


class NestedDirect(Direct):
    """The function that multiplies one row, a vector of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of)
        self.ahead, self.half = NESTED_NEAR, of.group // 8
        self.parameters = (*ROW_PARAMETERS, Parameter("ptr", "lows"))
        self.inside = "zeroinitializer"
        """The sum of a block's groups so far."""
        self.waiting: list[Callable[[], None]] = []
        """Instructions that scale sums of the group before."""
        # Registers that start with these are loaded: a copy would take as much time as a product.
        self.magic = self._kept(self.ints, splat(str(MAGIC), of.dot.lanes, "i32"))
        self.taken = self._kept(self.floats, splat(f"{-257.0 * BIAS}", of.dot.lanes, "float"))
        self.lows = Ptr("%lows")

    def at_block(self, block: I64) -> None:
        self.lows = self.ptr_add(Ptr("%lows"), self.mul(block, sums_bytes(self.of)))

    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: str) -> str:
        """Sums plus the products with a block."""
        packed = self.of.packed
        lines = [self.ptr_add(ahead, line) for line in range(0, packed.block_bytes // self.passes, LINE)]
        integers = [self._unpacked(words, terms) for terms in integer_quads(packed.words.scales)]
        self.inside, lows = "zeroinitializer", {"held": held}
        others = self._without_lows(words, self.ptr_add(halves, packed.scale_bytes), lows)
        now, codes = self._first(self.group_at(x, 0)), self._four(words, 0)
        for group in range(packed.groups):
            share = slice(*[(group + i) * len(lines) // packed.groups for i in range(2)])
            now = self._products(words, x, group, now, codes, lines[share], integers)
        # The last group's sums are scaled meanwhile.
        while self.waiting or others:
            self._next(self.waiting)
            self._next(others)
        return self.fma(self.inside, self.scales(halves, 0, packed), lows["held"])

    def _products(
        self, words: Ptr, x: Ptr, group: int, now: _Loaded, codes: list[str], lines: list[Ptr], integers: list[str]
    ) -> _Loaded:
        """Multiply a group: what the one that follows needs first, and its codes in place of this one's."""
        here, there = self.group_at(x, group), self.group_at(x, group + 1)
        goes_on = group + 1 < self.of.packed.groups
        low, whole, then, above, scales = now.low, now.whole, now, "", ""
        for step in range(self.half):
            stored, mask = codes[step], splat("15", 4 * self.of.dot.lanes, "i8")
            code = self.placed(self.let(f"and {self.raw} {stored}, {mask}"), self.raw)
            whole = self.dot_by_lane(whole, stored, now.limbs[1], step)
            self._next(self.waiting)
            low = self.dot_by_lane(low, code, now.limbs[0], step)
            if goes_on:
                codes[step] = self._word(words, group + 1, step)
            for line in lines[step // 2 : step // 2 + 1] if step % 2 == 0 else []:
                self.prefetch(line)
                self.prefetch(self.ptr_add(line, (NESTED_FAR - NESTED_NEAR) * self.of.packed.block_bytes), level=2)
            if step == 1:
                above = self._loaded(self.floats, self.ptr_add(here, self.of.alone_at))
                scales = self._loaded(self.floats, here)
            elif step == 2 and goes_on:
                then = self._first(there)
        while self.waiting:
            self._next(self.waiting)
        self.waiting = self._scaled((low, whole), above, scales, integers[group // 4], group % 4)
        return then

    def _next(self, some: list[Callable[[], None]]) -> None:
        if some:
            some.pop(0)()

    def _scaled(
        self, sums: tuple[str, str], above: str, scales: str, integers: str, place: int
    ) -> list[Callable[[], None]]:
        """Instructions that add the sums of a group times its scale, one after the other."""
        made = {"total": above}

        def join(part: int, lane: int) -> None:
            floats = self.let(f"bitcast {self.ints} {sums[part]} to {self.floats}")
            made["total"] = self.placed(self.fma(floats, self._lane(scales, lane), made["total"]), self.floats)

        def spread() -> None:
            made["factor"] = self.placed(self._spread(integers, place), self.floats)

        def subtract() -> None:
            start = splat(f"{_START}", self.of.dot.lanes, "float")
            made["factor"] = self.placed(self.let(f"fsub {self.floats} {made['factor']}, {start}"), self.floats)

        def add() -> None:
            self.inside = self.placed(self.plus(made["total"], made["factor"], self.inside), self.floats)

        return [lambda: join(0, ABOVE), spread, lambda: join(1, 0), subtract, add]

    def _unpacked(self, words: Ptr, terms: tuple[Term, ...]) -> str:
        """Integers of four groups, in the bytes of words."""
        assert sum([term.mask for term in terms]) < _START, "integers have seven bits"
        return self.placed(self.codes_of(lambda word: self.word(words, word), terms), self.raw)

    def _spread(self, integers: str, place: int) -> str:
        """The bytes at a place of words, added to 128 in f32: a conversion takes two cycles of one pipe."""
        lanes, name = self.of.dot.lanes, f"llvm.aarch64.neon.tbl2.v{4 * self.of.dot.lanes}i8"
        mask = [part for lane in range(lanes) for part in (_OUTSIDE, _OUTSIDE, 4 * lane + place, 4 * lanes)]
        places = f"<{', '.join([f'i8 {at}' for at in mask])}>"
        self.use(f"declare {self.raw} @{name}({self.raw}, {self.raw}, {self.raw})")
        highest = splat(str(_HIGHEST), 4 * lanes, "i8")
        found = self.let(f"call {self.raw} @{name}({self.raw} {integers}, {self.raw} {highest}, {self.raw} {places})")
        return self.let(f"bitcast {self.raw} {found} to {self.floats}")

    def _without_lows(self, words: Ptr, halves: Ptr, made: dict[str, str]) -> list[Callable[[], None]]:
        """Instructions that take the integers of a block's lows times sums of the row, of two limbs, from what is held.

        The integers of four groups are multiplied at once.
        """
        of, lanes = self.of, self.of.dot.lanes
        quads = integer_quads(of.packed.words.lows)

        def load() -> None:
            made["limbs"] = self._loaded(self.ints, self.ptr_add(self.lows, LIMBS_AT))
            made.update({limb: self._loaded(self.ints, self.magic) for limb in ("0", "1")})

        def unpack(quad: int) -> None:
            made["four"] = self._unpacked(words, quads[quad])

        def multiply(quad: int, limb: int) -> None:
            made[f"{limb}"] = self.dot_by_lane(made[f"{limb}"], made["four"], made["limbs"], len(quads) * limb + quad)

        def join() -> None:
            high = self.let(f"bitcast {self.ints} {made['1']} to {self.floats}")
            taken = self._loaded(self.floats, self.taken)
            made["total"] = self.placed(self.fma(high, splat("256.0", lanes, "float"), taken), self.floats)

        def add() -> None:
            low = self.let(f"bitcast {self.ints} {made['0']} to {self.floats}")
            made["total"] = self.placed(self.let(f"fadd {self.floats} {made['total']}, {low}"), self.floats)

        def scale() -> None:
            row = self.load_splat(self.lows, "float", self.floats)
            scales = self.let(f"fmul {self.floats} {self.scales(halves, 0, of.packed)}, {row}")
            made["scales"] = self.placed(scales, self.floats)

        def subtract() -> None:
            made["held"] = self.placed(self.fma(made["total"], made["scales"], made["held"]), self.floats)

        found: list[Callable[[], None]] = [load]
        for quad in range(len(quads)):
            found += [partial(unpack, quad), partial(multiply, quad, 1), partial(multiply, quad, 0)]
        return [*found, scale, join, add, subtract]

    def _first(self, x: Ptr) -> _Loaded:
        low, whole = self._loaded(self.ints, self.magic), self._loaded(self.ints, self.ptr_add(x, self.of.start_at(0)))
        low_limbs, high_limbs = (
            self._loaded(self.ints, self.ptr_add(x, self.of.limbs_at + half * self.of.group // 2)) for half in range(2)
        )
        return _Loaded(low, whole, (low_limbs, high_limbs))

    def _four(self, words: Ptr, group: int) -> list[str]:
        """The words of a group."""
        return [self._word(words, group, step) for step in range(self.half)]

    def _word(self, words: Ptr, group: int, step: int) -> str:
        steps = self.of.packed.words.codes[group]
        (low,), (whole,) = steps[step], steps[self.half + step]
        assert (low, whole) == (Term(low.word, 0, 15), Term(low.word, 0, 255)), "bytes have two codes of a group"
        return self._loaded(self.raw, self.ptr_add(words, 4 * low.word * self.of.packed.columns))

    def _lane(self, x: str, lane: int) -> str:
        lanes = self.of.dot.lanes
        mask = splat(str(lane), lanes, "i32")
        return self.let(f"shufflevector {self.floats} {x}, {self.floats} poison, <{lanes} x i32> {mask}")

    def _kept(self, kind: str, numbers: str) -> Ptr:
        """A vector on the stack."""
        there = self.alloca(f"{kind}, align 16")
        self.emit(f"store {kind} {numbers}, ptr {there}, align 16")
        return there

    def _loaded(self, kind: str, pointer: Ptr) -> str:
        """A vector that is loaded where this is written."""
        return self.let(f"load volatile {kind}, ptr {pointer}, align 16")


TOGETHER = 4
"""Groups whose products are computed at once: their codes are in the same words."""
NEAR, FAR = 1, 3
"""Blocks between the one that is multiplied and those that are prefetched into L1 and into L2."""


@cache
def direct_function(of: BlockKernel) -> tuple[SharedFunction, Signature]:
    """Products of a row of limbs with a whole panel of blocks: `(limbs, panel, sums, blocks)`.

    Where it takes away lows, too, their limbs follow.
    Others take longer than memory does whatever their order is: codes of five bits have 10 GB/s.
    """
    if of.sums_apart:
        return shared_function(NestedDirect(of).written())
    is_ordered = of.packed.is_whole and of.sums_are_scaled
    return shared_function((DirectInOrder if is_ordered else Direct)(of).written())


class DirectInOrder(Direct):
    """The function that multiplies one row, a vector of columns of a block after the other."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of)
        self.sets = word_sets(of.packed.words.codes, TOGETHER)
        self.ahead = NEAR
        self.waiting: list[Callable[[], None]] = []
        """Instructions that scale sums of the groups before."""
        self.inside = "zeroinitializer"
        """The sum of a block's groups so far."""

    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: str) -> str:
        """Sums plus the products with a block."""
        of, packed = self.of, self.of.packed
        turns = [(some, step) for some in self.sets for step in range(of.group // 4)]
        lines = [self.ptr_add(ahead, line) for line in range(0, packed.block_bytes // self.passes, LINE)]
        integers = Integers(self, At(self, words, x))
        self.inside, sums, limbs = "zeroinitializer", dict[int, str](), dict[int, str]()
        loaded = self._words(words, *turns[0])
        for number, (some, step) in enumerate(turns):
            groups = {group: self.group_at(x, group) for group in some}
            if step == 0:
                sums = {group: self.number(self.ptr_add(at, of.start_at(0)), "i32") for group, at in groups.items()}
                limbs = {group: self._loaded(self.ints, self.ptr_add(at, of.limbs_at)) for group, at in groups.items()}
            following = self._words(words, *turns[number + 1]) if number + 1 < len(turns) else {}
            for line in lines[number * len(lines) // len(turns) : (number + 1) * len(lines) // len(turns)]:
                self.prefetch(line)
                self.prefetch(self.ptr_add(line, (FAR - NEAR) * packed.block_bytes), level=2)
            self._products(some, step, loaded, limbs, sums)
            if step + 1 == of.group // 4:
                for group, at in groups.items():
                    self.waiting += self._scaled(integers, at, group, sums[group])
            loaded = following
        while self.waiting:
            self.waiting.pop(0)()
        return self.fma(self.inside, self.scales(halves, 0, packed), held)

    def _products(
        self, some: list[int], step: int, loaded: dict[int, str], limbs: dict[int, str], sums: dict[int, str]
    ) -> None:
        """Add the products of a step of some groups: codes that take several words come last."""
        terms = {group: self.of.packed.words.codes[group][step] for group in some}
        for group in sorted(some, key=lambda group: len(terms[group])):
            codes = self.placed(self.codes_of(loaded.__getitem__, terms[group]), self.raw)
            sums[group] = self.dot_by_lane(sums[group], codes, limbs[group], step)
            if self.waiting:
                self.waiting.pop(0)()

    def _scaled(self, integers: Integers, x: Ptr, group: int, sums: str) -> list[Callable[[], None]]:
        """Instructions that add the sums of a group times its scale, one after the other."""
        made: dict[str, str] = {}

        def join() -> None:
            made["total"] = self.placed(self.joined([sums], x), self.floats)

        def convert() -> None:
            made["factor"] = self.placed(integers.floats(self.of.packed.words.scales[group]), self.floats)

        def add() -> None:
            self.inside = self.placed(self.plus(made["total"], made["factor"], self.inside), self.floats)

        return [join, convert, add]

    def _words(self, words: Ptr, some: list[int], step: int) -> dict[int, str]:
        """The words of a step of some groups."""
        terms = [term for group in some for term in self.of.packed.words.codes[group][step]]
        found = dict.fromkeys([term.word for term in sorted(terms, key=lambda term: term.shift)])
        return {each: self._loaded(self.raw, self.ptr_add(words, 4 * each * self.of.packed.columns)) for each in found}

    def number(self, pointer: Ptr, kind: str) -> str:
        """A number of a row's group that others are added to, in all lanes."""
        return self._loaded(f"<{self.of.dot.lanes} x {kind}>", pointer)

    def _loaded(self, kind: str, pointer: Ptr) -> str:
        """A vector that is loaded where this is written."""
        return self.let(f"load volatile {kind}, ptr {pointer}, align 16")


__all__ = ["ROW_PARAMETERS", "direct_function"]
