"""The builder of an attention kernel, and a block of queries in it.

The builder knows sizes and strides by name, the workspace, masks and positions. A block of queries is what both
directions share: its queries as columns, and scores that are bent and masked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from dovetail.codegen.llvm.arguments import WORD
from dovetail.codegen.llvm.function import named
from dovetail.codegen.llvm.handles import F32, FALSE, I1, I64, Handle, Int, Mask, Ptr, Vec, VecI32
from dovetail.codegen.llvm.kernel import KERNEL, SCRATCH, KernelCode
from dovetail.codegen.llvm.maths.vectors import LOG2_E, fast_tanh
from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.vector import ZERO, Stored, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import f32
from dovetail.kernels.problems.epilogue import COUNT, PITCH
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.attention.functions import Shared, columns_function, key_rows, rotate_function
from dovetail.targets.cpu.attention.shape import Attend, offsets_of, padded
from dovetail.targets.cpu.row_epilogue import call_epilogue

_BY_QUERY = ("q", "y", "g", "dq", "mask", "keep", "sinks", "cos_q", "sin_q")


class AttendBuilder(VectorBuilder):
    """One attention kernel while it is written."""

    def __init__(self, problem: Attend) -> None:
        super().__init__(problem.device)
        self.problem = problem
        self.sizes: dict[Dim, I64] = {}
        """Sizes that only a run knows, in the order of their words."""
        self.parts: dict[str, SharedFunction] = {}
        """The functions that the kernel shares with others."""

    def regions(self, sizes: Mapping[str, int]) -> dict[str, Ptr]:
        """The regions of a workspace by name."""
        return {name: self.ptr_add(SCRATCH, at) for name, at in offsets_of(sizes)[0].items()}

    def stored(self, name: str) -> Stored:
        """The type of a tensor's elements."""
        return "i8" if name == "keep" else self.problem.stored

    def size(self, size: Size) -> Int:
        """A size: a literal, or an argument of the kernel."""
        return size if isinstance(size, int) else self.sizes.setdefault(size, I64(f"%s{len(self.sizes)}"))

    def scaled(self, x: Int, size: Size) -> I64:
        """x times a size."""
        return self.mul(x, self.size(size))

    def call_shared(self, function: Shared, *arguments: Handle | int) -> None:
        part, signature = function
        self.parts[part.name] = part
        self.use(signature.declaration)
        self.call(signature, *arguments)

    def indices(self, number: I64, sizes: Sequence[Size]) -> list[I64]:
        """The index along each axis of a number that counts through them; the last axis is the fastest."""
        inner: list[I64] = []
        for size in reversed(sizes[1:]):
            inner.append(self.srem(number, self.size(size)))
            number = self.sdiv(number, self.size(size))
        return [number, *reversed(inner)]

    def locations(self, lead: Sequence[I64], head: Int, shared: Int, first: Int) -> dict[str, Ptr]:
        """The first row of a tile's queries in each tensor, or the first of all keys."""
        pointers: dict[str, Ptr] = {}
        a, offsets = self.problem, dict(self.problem.offsets)
        for name, strides in a.strides.items():
            above = a.epilogue is not None and name in a.epilogue.pointers
            indices: list[Int] = [*lead, head, first] if above or name in _BY_QUERY else [*lead, shared]
            pointer = Ptr(f"%{name.split('_')[0]}")
            if offsets.get(name, 0) != 0:
                pointer = self.ptr_add(pointer, self.size(offsets[name]))
            for index, stride in zip(indices, strides, strict=False):
                pointer = self.ptr_add(pointer, self.scaled(index, stride))
            pointers[name] = pointer
        return pointers

    def write_steps(self, words: Ptr, finished: Ptr, count: Int, at: Mapping[str, Ptr]) -> None:
        """Apply the steps of a region to finished rows; `at` has the first row of each operand and result."""
        a = self.problem
        assert a.epilogue is not None, "there are steps"
        known: dict[str, Int] = {PITCH: 4 * padded(a.dv, self.lanes), COUNT: a.dv}
        for name in a.epilogue.pointers:
            known |= {f"{name}_row": self.size(a.strides[name][-2]), f"{name}_column": self.size(a.strides[name][-1])}
        sizes = [I64(str(known[name])) for name in a.epilogue.sizes]
        pointers = [finished, *[at[name] for name in a.epilogue.pointers], *sizes]
        call_epilogue(self, a.epilogue, words, pointers, count)

    def visible_keys(self, first: Int, end: I64) -> tuple[I64, I64]:
        """The keys that positions show to the queries between two."""
        a = self.problem
        low = I64("0")
        if a.window is not None:
            low = self.smax(self.sub(first, a.window - 1), 0)
        return low, self.smin(self.size(a.keys), end)

    def shown(self, x: Vec, masks: Mapping[str, Vec], keys: VecI32 | None, own: VecI32 | None) -> Vec:
        """Scores with the mask, and with the fill in place of those that masks or positions hide."""
        a = self.problem
        if "mask" in masks and a.filled != "first":
            x = self.fadd(x, masks["mask"])
        x = self._filled(x, masks, keys, own)
        return self.fadd(x, masks["mask"]) if "mask" in masks and a.filled == "first" else x

    def _filled(self, x: Vec, masks: Mapping[str, Vec], keys: VecI32 | None, own: VecI32 | None) -> Vec:
        a = self.problem
        visible = self.visible(masks, keys, own)
        if visible is None:
            return x
        fill = self.constant(-math.inf if a.fill is None else a.fill)
        if a.fill_takes_all:
            return self.select(visible, x, fill)
        return self.fadd(x, self.select(visible, self.constant(0.0), fill))

    def visible(self, masks: Mapping[str, Vec], keys: VecI32 | None, own: VecI32 | None) -> Mask | None:
        """Which queries see a key, by masks and positions; None where all of them do."""
        a = self.problem
        seen = [self.fcmp("une", masks["keep"], self.constant(0.0))] if "keep" in masks else []
        if a.zero_unseen and "mask" in masks:
            seen.append(self.fcmp("une", masks["mask"], self.constant(-math.inf)))
        if keys is not None and own is not None:
            seen.append(self._icmp("sle", keys, own))
            if a.window is not None:
                low = self.let(f"sub {self.int_vec} {own}, splat (i32 {min(a.window, 2**30)})")
                seen.append(self._icmp("sgt", keys, VecI32(low)))
        if not seen:
            return None
        visible = seen[0]
        for more in seen[1:]:
            visible = self.mask_and(visible, more)
        return visible

    def _icmp(self, order: str, x: VecI32, y: VecI32) -> Mask:
        return Mask(self.let(f"icmp {order} {self.int_vec} {x}, {y}"))

    def positions(self, first: Int, i: int) -> VecI32:
        """Positions from `first` on, those of vector i."""
        own = self.lane_numbers_i32(i * self.lanes)
        return VecI32(self.let(f"add {self.int_vec} {self.splat_i32(first)}, {own}"))

    def any_lane(self, masks: Iterable[Mask]) -> I1:
        """Whether some lane of some mask is true."""
        some = FALSE
        for mask in masks:
            some = self.or_(some, self.icmp("ne", self.bits(mask), 0))
        return some

    def inverse(self, total: Vec) -> Vec:
        """What accumulated values are multiplied by; 0 makes 0 of anything."""
        a = self.problem
        inverse = self.fdiv(self.constant(1.0), total)
        if a.empty == "zero":
            inverse = self.select(self.fcmp("ogt", total, self.constant(0.0)), inverse, self.constant(0.0))
        elif a.zero_unseen:
            # All scores were -inf; a NaN among them is a NaN in the sum.
            inverse = self.select(self.fcmp("oeq", total, self.constant(0.0)), self.constant(0.0), inverse)
        return self.select_vec(self.icmp("eq", self.size(a.keys), 0), ZERO, inverse)


@dataclass(frozen=True, slots=True)
class AttendCode:
    """The code of a kernel, the sizes that it reads in the order of their words, and the bytes of workspace."""

    code: KernelCode
    sizes: tuple[Dim, ...]
    scratch: Size


def finished_code(stem: str, driver: AttendBuilder, scratch: Size, *, is_final: bool = False) -> AttendCode:
    """The kernel of a driver that is written: it loads its arguments first."""
    driver.ret()
    problem = driver.problem
    words = [*[(f"%{n}", "ptr") for n in problem.arguments], *[(s, "i64") for s in driver.sizes.values()]]
    loads: list[str] = []
    for i, (word, kind) in enumerate(words):
        loads += [f"  %at{i} = getelementptr i8, ptr %arguments, i64 {WORD * i}"]
        loads += [f"  {word} = load {kind}, ptr %at{i}, align 8"]
    name, text = named(stem, KERNEL.define(["entry:", *loads, *driver.body()[1:]]))
    code = KernelCode(
        name,
        text,
        tuple(driver.uses),
        tuple(driver.parts.values()),
        is_final,
        # Loops are written with vectors. To unroll three widths of them would take a third of the time to compile.
        is_vectorised=problem.device.has("fma_by_lane"),
    )
    return AttendCode(code, tuple(driver.sizes), scratch)


def write_rotated(t: AttendBuilder, which: str, at: Mapping[str, Ptr], first: Int, rows: Int, to: Ptr) -> None:
    """Rows of queries or keys, rotated and contiguous."""
    a = t.problem
    assert a.rotated is not None
    arguments: list[Ptr | I64 | int] = []
    for name in (which, f"cos_{which}", f"sin_{which}"):
        stride = a.strides[name][-2]
        arguments += [t.ptr_add(at[name], t.scaled(first, stride)), t.size(stride)]
    t.call_shared(rotate_function(a.device, a.d, a.rotated, a.form, a.stored), *arguments, rows, to)


class QueryBlock:
    """A block of queries with `wide` vectors of them, and the regions of its workspace."""

    def __init__(
        self, t: AttendBuilder, wide: int, at: Mapping[str, Ptr], first: I64, rows: I64, room: Mapping[str, Ptr]
    ) -> None:
        self.t, self.wide, self.at, self.first, self.rows, self.room = t, wide, at, first, rows, room
        a = self.a = t.problem
        self.row = wide * t.bytes
        self.keys = key_rows(a.device, wide)
        # Nothing but the scale makes a score: powers of two serve as well, with the scale times log2(e).
        self.twos = not a.bends and "mask" not in a.strides

    def pack_queries(self) -> None:
        """The queries as columns, scaled."""
        t, a = self.t, self.a
        x, stride, step = self.at["q"], t.size(a.strides["q"][-2]), t.size(a.strides["q"][-1])
        stored: Stored = a.stored
        if a.rotated is not None:
            write_rotated(t, "q", self.at, 0, self.rows, self.room["query_rows"])
            x, stride, step, stored = self.room["query_rows"], 4 * a.d, 4, "float"
        factor = (a.scale if a.softcap is None else a.scale / a.softcap) * (LOG2_E if self.twos else 1.0)
        for i in range(self.wide):
            to = t.ptr_add(self.room["columns"], i * t.bytes)
            self._as_columns(t.ptr_add(x, t.mul(stride, i * t.lanes)), stride, step, i, a.d, factor, to, stored)

    def _as_columns(
        self, x: Ptr, stride: Int, step: Int, i: int, count: Int, factor: float, to: Ptr, stored: Stored
    ) -> None:
        t = self.t
        rows = t.sub(self.rows, i * t.lanes)
        scale = F32(literal(factor, f32))
        t.call_shared(columns_function(t.device, stored), x, stride, step, rows, count, scale, to, self.row)

    def _transpose_masks(self, first: Int, count: I64) -> None:
        """The masks of a block of keys as columns, where each query has a row of its own."""
        t, a = self.t, self.a
        for name in a.masks_by_row():
            row, step = a.strides[name][-2:]
            for i in range(self.wide):
                x = t.ptr_add(self.at[name], t.scaled(first, step))
                x = t.ptr_add(x, t.mul(t.size(row), i * t.lanes))
                at = t.ptr_add(self.room[name], i * t.bytes)
                self._as_columns(x, t.size(row), t.size(step), i, count, 1.0, at, t.stored(name))

    def _bend(self, first: Int, count: I64, *, transposed: bool = False) -> None:
        """Cap and mask the scores of a block, and keep the running maximum of each query."""
        t, a = self.t, self.a
        if not transposed:
            self._transpose_masks(first, count)
        maxima = self.room["maxima"]
        starts = [t.load(t.ptr_add(maxima, i * t.bytes), t.bytes) for i in range(self.wide)]
        with t.carry(0, count, starts) as state:
            key = t.add(first, state.index)
            at = t.ptr_add(self.room["scores"], t.mul(state.index, self.row))
            masks = {n: self._masked(n, key, state.index) for n in ("mask", "keep") if n in a.strides}
            for i in range(self.wide):
                here = t.ptr_add(at, i * t.bytes)
                x = self._bent(t.load(here, t.bytes), i, key, {n: v[i] for n, v in masks.items()})
                t.store(x, here, t.bytes)
                state.vectors[i] = t.fmax(x, state.vectors[i])
        for i, x in enumerate(state.vectors):
            t.store(x, t.ptr_add(maxima, i * t.bytes), t.bytes)

    def _masked(self, name: str, key: I64, j: I64) -> list[Vec]:
        """What a mask has for a key, for each vector of queries."""
        t = self.t
        if name in self.a.masks_by_row():
            at = t.ptr_add(self.room[name], t.mul(j, self.row))
            return [t.load(t.ptr_add(at, i * t.bytes), t.bytes) for i in range(self.wide)]
        at = t.ptr_add(self.at[name], t.scaled(key, self.a.strides[name][-1]))
        return [t.splat(t.load_scalar_as_f32(at, t.stored(name)))] * self.wide

    def _bent(self, x: Vec, i: int, key: I64, masks: Mapping[str, Vec]) -> Vec:
        t, a = self.t, self.a
        if a.softcap is not None:
            x = t.fmul(fast_tanh(t, x), t.constant(a.softcap))
        keys: VecI32 | None = None
        own: VecI32 | None = None
        if a.causal:
            own, keys = t.positions(self.first, i), t.splat_i32(key)
        return t.shown(x, masks, keys, own)

    def sees_nothing(self, highest: float) -> I1:
        """Whether some query has met no higher score than that of hidden keys: then those left out count as much."""
        t = self.t
        maxima = (t.load(t.ptr_add(self.room["maxima"], i * t.bytes), t.bytes) for i in range(self.wide))
        return t.any_lane(t.fcmp("ole", top, t.constant(highest)) for top in maxima)
