"""One row of limbs times blocks of two levels with NEON, unpacked in registers, a vector of columns after the other.

Several rows share what is expanded into L1 once; for one row the way there and back would cost more than its products.
In exact mode each group is computed as from expanded blocks, in the same order: how rows are cut changes no bit. In
fast mode the scale of a block multiplies the sum of its groups, which takes an instruction less for each of them.

Where memory would be faster than what LLVM makes of it, instructions stay in the order they are written in: a stream
of products, one of words and prefetched lines, and one that scales the sums of the groups before, an instruction for
each product.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.simd import Emit, Stream, due, numbers, same, zeros
from dovetail.dataclass import dataclass
from dovetail.targets.cpu.gemm.blocks.builder import BlockBuilder, parameters
from dovetail.targets.cpu.gemm.blocks.kernel import ABOVE, BIAS, LINE, MAGIC, BlockKernel
from dovetail.targets.cpu.gemm.blocks.limbs import LIMBS_AT, integer_quads, sums_bytes
from dovetail.targets.cpu.gemm.blocks.rows import ROW
from dovetail.targets.cpu.gemm.blocks.unpack import NeonIntegers, neon_codes
from dovetail.targets.cpu.gemm.blocks.words import Term


class OneRow(BlockBuilder):
    """The function that goes through blocks; prefetched blocks are `near` blocks after the multiplied one."""

    near = 2

    @abstractmethod
    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: Vec) -> Vec:
        """Sums plus the products with a block, among which lines of a later one are prefetched."""

    def at_block(self, block: I64) -> None:
        """Compute what all vectors of columns of a block share."""

    def written(self, *more: str) -> Function:
        of, packed, lanes = self.of, self.of.packed, self.of.dot.lanes
        share = packed.block_bytes // of.vectors
        for vector in range(of.vectors):
            self.clear(self.ptr_add(Ptr("%sums"), 4 * lanes * vector))
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, packed.block_bytes))
            x = self.ptr_add(Ptr("%limbs"), self.mul(block, packed.groups * of.group_bytes))
            self.at_block(block)
            with self.loop(0, of.vectors) as number:
                ahead = self.ptr_add(self.ptr_add(panel, self.near * packed.block_bytes), self.mul(number, share))
                first = self.mul(number, lanes)
                words = self.ptr_add(panel, self.add(self.mul(first, 4), packed.head_bytes))
                halves = self.ptr_add(panel, self.mul(first, packed.scales.itemsize))
                there = self.ptr_add(Ptr("%sums"), self.mul(first, 4))
                held = self.load_lanes(self.floats, there)
                self.store_lanes(self.block_sums(words, halves, ahead, x, held), there)
        return self.function(Signature(f"{of.name}.direct", (*ROW, *parameters(*more))))

    @property
    def line_offsets(self) -> range:
        """The lines of a block that belong to a vector of columns, as bytes before them."""
        return range(0, self.of.packed.block_bytes // self.of.vectors, LINE)


class AnyOrder(OneRow):
    """In an order that LLVM chooses: others take longer than memory does whatever their order is."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of)
        self.volatile = of.limbs > 1
        # Each group has a sum and four steps of a row, of each limb.
        self.sets = word_sets(of.packed.words.codes, 2)

    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: Vec) -> Vec:
        packed, scales_blocks = self.of.packed, self.of.sums_are_scaled
        integers = NeonIntegers(self, packed, words, self.of.dot.lanes)
        scale = self.scales(halves, 0, packed)
        totals: dict[int, Vec] = {}
        done, inside = 0, zeros(self.floats)
        for number, some in enumerate(self.sets):
            for line in self.line_offsets[number :: len(self.sets)]:
                self.prefetch(self.ptr_add(ahead, line))
            joined, words, x = self._set(words, x, some)
            totals |= joined
            words, x = (self.after(pointer, totals[some[-1]]) for pointer in (words, x))
            integers.words = words
            while done in totals:
                factor, total = integers.floats(packed.words.scales[done]), totals.pop(done)
                if scales_blocks:
                    inside = self.plus(total, factor, inside)
                else:
                    held = self.added(total, self.fmul(scale, factor), self.group_at(x, done), held)
                done += 1
        return self.fma(inside, scale, held) if scales_blocks else held

    def _set(self, words: Ptr, x: Ptr, groups: list[int]) -> tuple[dict[int, Vec], Ptr, Ptr]:
        """The integers of some groups times their codes, in f32: words that have codes of several are loaded once.

        Pointers depend on sums, as far as LLVM is concerned: what is loaded early would be spilled.
        """
        of = self.of
        starts = [(group, limb) for group in groups for limb in range(of.limbs)]
        sums = {
            (group, limb): self.number(self.ptr_add(self.group_at(x, group), of.start_at(limb)), self.ints)
            for group, limb in starts
        }
        words, x = (self.after(pointer, sums[starts[-1]]) for pointer in (words, x))
        load = self.words_at(words)
        for step in range(of.group // 4):
            loaded: dict[int, Vec] = {}

            def once(word: int, loaded: dict[int, Vec] = loaded) -> Vec:
                if word not in loaded:
                    loaded[word] = load(word)
                return loaded[word]

            codes = {group: neon_codes(self, of.packed.words.codes[group][step], once) for group in groups}
            for limb in range(of.limbs):
                for group in groups:
                    factor = self.factor(self.group_at(x, group), limb, step)
                    sums[group, limb] = self.dot(sums[group, limb], codes[group], factor)
        joined = {g: self.joined([sums[g, limb] for limb in range(of.limbs)], self.group_at(x, g)) for g in groups}
        return joined, words, x


class SixBits(OneRow):
    """One limb and whole codes of six bits: four groups at once, whose codes are in the same words.

    LLVM has prefetches follow each other, more requests than L1 takes at once, and scales all sums of some groups at
    once. Here a step of products has one line that is prefetched from far into L2 and one from near into L1, the words
    of the step that follows are loaded, and each product is followed by an instruction that scales.
    """

    volatile = True
    near, far = 1, 3

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of)
        self.sets = word_sets(of.packed.words.codes, 4)
        self.scaling = Stream()
        """Instructions that scale sums of the groups before."""
        self.inside = zeros(self.floats)
        """The sum of a block's groups so far."""

    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: Vec) -> Vec:
        of, packed = self.of, self.of.packed
        turns = [(some, step) for some in self.sets for step in range(of.group // 4)]
        lines = [self.ptr_add(ahead, line) for line in self.line_offsets]
        integers = NeonIntegers(self, packed, words, of.dot.lanes)
        self.inside, sums, limbs = zeros(self.floats), dict[int, Vec](), dict[int, Vec]()
        loaded = self._words(words, *turns[0])
        for number, (some, step) in enumerate(turns):
            groups = {group: self.group_at(x, group) for group in some}
            if step == 0:
                sums = {group: self.number(self.ptr_add(at, of.start_at(0)), self.ints) for group, at in groups.items()}
                limbs = {group: self.number(self.ptr_add(at, of.limbs_at), self.ints) for group, at in groups.items()}
            following = self._words(words, *turns[number + 1]) if number + 1 < len(turns) else {}
            for line in due(lines, number, len(turns)):
                self.prefetch(line)
                self.prefetch(self.ptr_add(line, (self.far - self.near) * packed.block_bytes), level=2)
            self._products(some, step, loaded, limbs, sums)
            if step + 1 == of.group // 4:
                for group, at in groups.items():
                    self.scaling.steps += self._scaled(integers, at, group, sums[group])
            loaded = following
        self.scaling.rest()
        return self.fma(self.inside, self.scales(halves, 0, packed), held)

    def _products(
        self, some: list[int], step: int, loaded: dict[int, Vec], limbs: dict[int, Vec], sums: dict[int, Vec]
    ) -> None:
        """Add the products of a step of some groups: codes that take several words come last."""
        terms = {group: self.of.packed.words.codes[group][step] for group in some}
        for group in sorted(some, key=lambda group: len(terms[group])):
            codes = self.placed(neon_codes(self, terms[group], loaded.__getitem__))
            sums[group] = self.dot_by_lane(sums[group], codes, limbs[group], step)
            self.scaling.next()

    def _scaled(self, integers: NeonIntegers, x: Ptr, group: int, sums: Vec) -> list[Emit]:
        """Instructions that add the sums of a group times its scale, one after the other."""
        values: dict[str, Vec] = {}

        def join() -> None:
            values["total"] = self.placed(self.joined([sums], x))

        def convert() -> None:
            values["factor"] = self.placed(integers.floats(self.of.packed.words.scales[group]))

        def add() -> None:
            self.inside = self.placed(self.plus(values["total"], values["factor"], self.inside))

        return [join, convert, add]

    def _words(self, words: Ptr, some: list[int], step: int) -> dict[int, Vec]:
        """The words of a step of some groups."""
        terms = [term for group in some for term in self.of.packed.words.codes[group][step]]
        load = self.words_at(words, volatile=True)
        return {each: load(each) for each in dict.fromkeys([t.word for t in sorted(terms, key=lambda t: t.shift)])}


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What a group of products needs first."""

    low: Vec
    """Return the initial accumulators of low halves and of whole bytes."""
    whole: Vec
    limbs: tuple[Vec, Vec]
    """Numbers of a row for low halves, and for whole bytes."""


_START, _HIGHEST, _OUTSIDE = 128.0, 0x43, 255
"""A float, its highest byte, which seven bits may follow that are added to it, and an index of TBL that gives 0."""


class Nested(OneRow):
    """One limb and bytes with two codes: low halves and whole bytes of a group have a sum each.

    Two multiply-adds join them: where one sum is moved up and the other is added to it, products wait. Each step of
    products has an instruction that scales the group before. What blocks subtract is taken away here, too: the words of
    its integers are in registers.
    """

    volatile = True
    near, far = 1, 4

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of)
        self.half = of.group // 8
        self.inside = zeros(self.floats)
        """The sum of a block's groups so far."""
        self.scaling = Stream()
        """Instructions that scale sums of the group before."""
        # Registers that start with these are loaded: a copy would take as much time as a product.
        self.magic = self._kept(same(self.ints, MAGIC))
        self.taken = self._kept(same(self.floats, -257.0 * BIAS))
        self.lows = Ptr("%lows")

    def written(self, *more: str) -> Function:
        return super().written("ptr lows", *more)

    def at_block(self, block: I64) -> None:
        self.lows = self.ptr_add(Ptr("%lows"), self.mul(block, sums_bytes(self.of)))

    def block_sums(self, words: Ptr, halves: Ptr, ahead: Ptr, x: Ptr, held: Vec) -> Vec:
        packed = self.of.packed
        lines = [self.ptr_add(ahead, line) for line in self.line_offsets]
        integers = [self._unpacked(words, terms) for terms in integer_quads(packed.words.scales)]
        self.inside, lows = zeros(self.floats), {"held": held}
        subtraction = Stream(self._without_lows(words, self.ptr_add(halves, packed.scale_bytes), lows))
        now, codes = self._first(self.group_at(x, 0)), [self._word(words, 0, step) for step in range(self.half)]
        for group in range(packed.groups):
            now = self._products(words, x, group, now, codes, list(due(lines, group, packed.groups)), integers)
        # The last group's sums are scaled meanwhile.
        while self.scaling.steps or subtraction.steps:
            self.scaling.next()
            subtraction.next()
        return self.fma(self.inside, self.scales(halves, 0, packed), lows["held"])

    def _products(
        self, words: Ptr, x: Ptr, group: int, now: _Loaded, codes: list[Vec], lines: list[Ptr], integers: list[Vec]
    ) -> _Loaded:
        """Multiply a group: what the one that follows needs first, and its codes in place of this one's."""
        here, there = self.group_at(x, group), self.group_at(x, group + 1)
        goes_on = group + 1 < self.of.packed.groups
        low, whole, then, above, scales = now.low, now.whole, now, now.low, now.low
        for step in range(self.half):
            stored = codes[step]
            code = self.placed(self.lanewise("and", stored, 15))
            whole = self.dot_by_lane(whole, stored, now.limbs[1], step)
            self.scaling.next()
            low = self.dot_by_lane(low, code, now.limbs[0], step)
            if goes_on:
                codes[step] = self._word(words, group + 1, step)
            for line in lines[step // 2 : step // 2 + 1] if step % 2 == 0 else []:
                self.prefetch(line)
                self.prefetch(self.ptr_add(line, (self.far - self.near) * self.of.packed.block_bytes), level=2)
            if step == 1:
                above = self._loaded(self.floats, self.ptr_add(here, self.of.alone_at))
                scales = self._loaded(self.floats, here)
            elif step == 2 and goes_on:
                then = self._first(there)
        self.scaling.rest()
        self.scaling = Stream(self._scaled((low, whole), above, scales, integers[group // 4], group % 4))
        return then

    def _scaled(self, sums: tuple[Vec, Vec], above: Vec, scales: Vec, integers: Vec, place: int) -> list[Emit]:
        """Instructions that add the sums of a group times its scale, one after the other."""
        values = {"total": above}

        def join(part: int, lane: int) -> None:
            floats = self.bitcast(sums[part], "float")
            values["total"] = self.placed(self.fma(floats, self.splat_lane(scales, lane), values["total"]))

        def spread() -> None:
            values["factor"] = self.placed(self._spread(integers, place))

        def subtract() -> None:
            values["factor"] = self.placed(self.lanewise("fsub", values["factor"], _START))

        def add() -> None:
            self.inside = self.placed(self.plus(values["total"], values["factor"], self.inside))

        return [lambda: join(0, ABOVE), spread, lambda: join(1, 0), subtract, add]

    def _unpacked(self, words: Ptr, terms: tuple[Term, ...]) -> Vec:
        """Integers of four groups, in the bytes of words."""
        assert sum([term.mask for term in terms]) < _START, "integers have seven bits"
        return self.placed(neon_codes(self, terms, self.words_at(words)))

    def _spread(self, integers: Vec, place: int) -> Vec:
        """The bytes at a place of words, added to 128 in f32: a conversion takes two cycles of one pipe."""
        lanes = self.of.dot.lanes
        order = [part for lane in range(lanes) for part in (_OUTSIDE, _OUTSIDE, 4 * lane + place, 4 * lanes)]
        name = f"llvm.aarch64.neon.tbl2.{self.raw.mangled}"
        bits = self.instruction(name, self.raw, integers, same(self.raw, _HIGHEST), numbers(self.raw, order))
        return self.bitcast(bits, "float", lanes)

    def _without_lows(self, words: Ptr, halves: Ptr, values: dict[str, Vec]) -> list[Emit]:
        """Instructions that take the integers of a block's lows times sums of the row, of two limbs, from what is held.

        The integers of four groups are multiplied at once.
        """
        of = self.of
        quads = integer_quads(of.packed.words.lows)

        def load() -> None:
            values["limbs"] = self._loaded(self.ints, self.ptr_add(self.lows, LIMBS_AT))
            values.update({limb: self._loaded(self.ints, self.magic) for limb in ("0", "1")})

        def unpack(quad: int) -> None:
            values["four"] = self._unpacked(words, quads[quad])

        def multiply(quad: int, limb: int) -> None:
            values[f"{limb}"] = self.dot_by_lane(
                values[f"{limb}"], values["four"], values["limbs"], len(quads) * limb + quad
            )

        def join() -> None:
            high, taken = self.bitcast(values["1"], "float"), self._loaded(self.floats, self.taken)
            values["total"] = self.placed(self.fma(high, same(self.floats, 256.0), taken))

        def add() -> None:
            low = self.bitcast(values["0"], "float")
            values["total"] = self.placed(self.fadd(values["total"], low))

        def scale() -> None:
            row = self.load_spread(self.floats, self.lows)
            values["scales"] = self.placed(self.fmul(self.scales(halves, 0, of.packed), row))

        def subtract() -> None:
            values["held"] = self.placed(self.fma(values["total"], values["scales"], values["held"]))

        steps: list[Emit] = [load]
        for quad in range(len(quads)):
            steps += [partial(unpack, quad), partial(multiply, quad, 1), partial(multiply, quad, 0)]
        return [*steps, scale, join, add, subtract]

    def _first(self, x: Ptr) -> _Loaded:
        low, whole = self._loaded(self.ints, self.magic), self._loaded(self.ints, self.ptr_add(x, self.of.start_at(0)))
        low_limbs, high_limbs = (
            self._loaded(self.ints, self.ptr_add(x, self.of.limbs_at + half * self.of.group // 2)) for half in range(2)
        )
        return _Loaded(low, whole, (low_limbs, high_limbs))

    def _word(self, words: Ptr, group: int, step: int) -> Vec:
        steps = self.of.packed.words.codes[group]
        (low,), (whole,) = steps[step], steps[self.half + step]
        assert (low, whole) == (Term(low.word, 0, 15), Term(low.word, 0, 255)), "bytes have two codes of a group"
        return self.words_at(words, volatile=True)(low.word)

    def _kept(self, x: Vec) -> Ptr:
        """A vector on the stack."""
        there = self.alloca(f"{self.lanes_of(x)}, align 16")
        self.store_lanes(x, there, 16)
        return there

    def _loaded(self, kind: VectorType, pointer: Ptr) -> Vec:
        """A vector that is loaded where this is written."""
        return self.load_lanes(kind, pointer, 16, volatile=True)


def word_sets(codes: tuple[tuple[tuple[Term, ...], ...], ...], most: int) -> list[list[int]]:
    """Groups whose codes are in the same words, those with the most words in common first."""
    words = [{term.word for term in steps[0]} for steps in codes]
    left, sets = list(range(len(codes))), list[list[int]]()
    while left:
        some = [left.pop(0)]
        while len(some) < most:
            held = set[int]().union(*[words[group] for group in some])
            shared = max(left, key=lambda group: len(words[group] & held), default=None)
            if shared is None or not words[shared] & held:
                break
            some.append(shared)
            left.remove(shared)
        sets.append(sorted(some))
    return sets


__all__ = ["AnyOrder", "Nested", "SixBits"]
