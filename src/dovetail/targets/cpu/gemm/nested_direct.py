"""One row of one limb times blocks of two levels whose bytes have two codes, in the order that this is written in.

Low halves and whole bytes of a group have a sum each, and two multiply-adds join them: where one sum is moved up and
the other is added to it, products wait. Each step of products has an instruction that scales the group before. What
blocks subtract is taken away here, too: the words of its integers are in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dovetail.codegen.llvm.function import Parameter
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.dataclass import dataclass
from dovetail.targets.cpu.gemm.block_direct import ROW_PARAMETERS, Direct
from dovetail.targets.cpu.gemm.block_kernel import LINE
from dovetail.targets.cpu.gemm.block_limbs import ABOVE, BIAS, MAGIC, BlockKernel, splat
from dovetail.targets.cpu.gemm.block_lows import LIMBS_AT, integer_quads, sums_bytes
from dovetail.targets.cpu.gemm.block_words import Term

NEAR, FAR = 1, 4
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
        self.ahead, self.half = NEAR, of.group // 8
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
                self.prefetch(self.ptr_add(line, (FAR - NEAR) * self.of.packed.block_bytes), level=2)
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


__all__ = ["NestedDirect"]
