"""The builder of an attention kernel: sizes and strides by name, the workspace, masks and positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from dovetail.codegen.llvm.handles import FALSE, I1, I64, Handle, Int, Mask, Ptr, Vec, VecI32
from dovetail.codegen.llvm.kernel import SCRATCH
from dovetail.codegen.llvm.vector import ZERO, Stored, VectorBuilder
from dovetail.ir.dim import Dim, Size
from dovetail.kernels.problems.row_epilogue import COUNT, PITCH
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.attention.parts import Shared
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

    def call_shared(self, function: Shared, *given: Handle | int) -> None:
        part, signature = function
        self.parts[part.name] = part
        self.use(signature.declaration)
        self.call(signature, *given)

    def indices(self, number: I64, sizes: Sequence[Size]) -> list[I64]:
        """The index along each axis of a number that counts through them; the last axis is the fastest."""
        found: list[I64] = []
        for size in reversed(sizes[1:]):
            found.append(self.srem(number, self.size(size)))
            number = self.sdiv(number, self.size(size))
        return [number, *reversed(found)]

    def locations(self, lead: Sequence[I64], head: Int, shared: Int, first: Int) -> dict[str, Ptr]:
        """The first row of a tile's queries in each tensor, or the first of all keys."""
        found: dict[str, Ptr] = {}
        a, offsets = self.problem, dict(self.problem.offsets)
        for name, strides in a.strides.items():
            above = a.epilogue is not None and name in a.epilogue.pointers
            indices: list[Int] = [*lead, head, first] if above or name in _BY_QUERY else [*lead, shared]
            pointer = Ptr(f"%{name.split('_')[0]}")
            if offsets.get(name, 0) != 0:
                pointer = self.ptr_add(pointer, self.size(offsets[name]))
            for index, stride in zip(indices, strides, strict=False):
                pointer = self.ptr_add(pointer, self.scaled(index, stride))
            found[name] = pointer
        return found

    def write_steps(self, words: Ptr, finished: Ptr, count: Int, at: Mapping[str, Ptr]) -> None:
        """Apply the steps of a region to finished rows; `at` has the first row of each operand and result."""
        a = self.problem
        assert a.epilogue is not None, "there are steps"
        known: dict[str, Int] = {PITCH: 4 * padded(a.dv, self.lanes), COUNT: a.dv}
        for name in a.epilogue.pointers:
            known |= {f"{name}_row": self.size(a.strides[name][-2]), f"{name}_column": self.size(a.strides[name][-1])}
        sizes = [I64(str(known[name])) for name in a.epilogue.sizes]
        given = [finished, *[at[name] for name in a.epilogue.pointers], *sizes]
        call_epilogue(self, a.epilogue, words, given, count)

    def visible_keys(self, first: Int, end: I64) -> tuple[I64, I64]:
        """The keys that positions show to the queries between two."""
        a = self.problem
        low = I64("0")
        if a.window is not None:
            low = self.smax(self.sub(first, a.window - 1), 0)
        return low, self.smin(self.size(a.keys), end)

    def shown(self, x: Vec, given: Mapping[str, Vec], keys: VecI32 | None, own: VecI32 | None) -> Vec:
        """Scores with the mask, and with the fill in place of those that masks or positions hide."""
        a = self.problem
        if "mask" in given and a.filled != "first":
            x = self.fadd(x, given["mask"])
        x = self._filled(x, given, keys, own)
        return self.fadd(x, given["mask"]) if "mask" in given and a.filled == "first" else x

    def _filled(self, x: Vec, given: Mapping[str, Vec], keys: VecI32 | None, own: VecI32 | None) -> Vec:
        a = self.problem
        visible = self.visible(given, keys, own)
        if visible is None:
            return x
        fill = self.constant(-math.inf if a.fill is None else a.fill)
        if a.fill_takes_all:
            return self.select(visible, x, fill)
        return self.fadd(x, self.select(visible, self.constant(0.0), fill))

    def visible(self, given: Mapping[str, Vec], keys: VecI32 | None, own: VecI32 | None) -> Mask | None:
        """Which queries see a key, by masks and positions; None where all of them do."""
        a = self.problem
        seen = [self.fcmp("une", given["keep"], self.constant(0.0))] if "keep" in given else []
        if a.zero_unseen and "mask" in given:
            seen.append(self.fcmp("une", given["mask"], self.constant(-math.inf)))
        if keys is not None and own is not None:
            seen.append(self._icmp("sle", keys, own))
            if a.window is not None:
                low = self.let(f"sub {self.int_vec} {own}, splat (i32 {min(a.window, 2**30)})")
                seen.append(self._icmp("sgt", keys, VecI32(low)))
        if not seen:
            return None
        found = seen[0]
        for more in seen[1:]:
            found = self.mask_and(found, more)
        return found

    def _icmp(self, order: str, x: VecI32, y: VecI32) -> Mask:
        return Mask(self.let(f"icmp {order} {self.int_vec} {x}, {y}"))

    def positions(self, first: Int, i: int) -> VecI32:
        """Positions from `first` on, those of vector i."""
        own = self.lane_numbers_i32(i * self.lanes)
        return VecI32(self.let(f"add {self.int_vec} {self.splat_i32(first)}, {own}"))

    def any_lane(self, masks: Iterable[Mask]) -> I1:
        """Whether some lane of some mask is true."""
        found = FALSE
        for mask in masks:
            found = self.or_(found, self.icmp("ne", self.bits(mask), 0))
        return found

    def inverse(self, total: Vec) -> Vec:
        """What accumulated values are multiplied by; 0 makes 0 of anything."""
        a = self.problem
        found = self.fdiv(self.constant(1.0), total)
        if a.empty == "zero":
            found = self.select(self.fcmp("ogt", total, self.constant(0.0)), found, self.constant(0.0))
        elif a.zero_unseen:
            # All scores were -inf; a NaN among them is a NaN in the sum.
            found = self.select(self.fcmp("oeq", total, self.constant(0.0)), self.constant(0.0), found)
        return self.select_vec(self.icmp("eq", self.size(a.keys), 0), ZERO, found)


__all__ = ["AttendBuilder"]
