"""Layers as passes of one kernel whose blocks stay: runs of steps that repeat with other tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace

from dovetail.codegen.llvm import ptx
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.resident import Part, as_resident, is_part
from dovetail.kernels.spec import ALIGNMENT, Packed, TensorLocations
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cuda.gpu_kernel import GpuKernel, Kernels
from dovetail.targets.runtime.result_roots import chained, fresh_results

LEAST_PASSES = 3
"""Fewer are not worth a kernel of their own."""
LONGEST = 64
"""Steps of a pass, at most."""
ARGUMENT_BYTES = 4000
"""Arguments of a kernel that every driver takes."""
_COUNTER = "blocks"


@dataclass(frozen=True, slots=True)
class Repetition:
    """Steps that follow each other and repeat with the same kernels."""

    first: int
    length: int
    """Steps of a pass."""
    covered: int
    """Steps of all passes, and those of one that is not complete."""

    @property
    def passes(self) -> int:
        return self.covered // self.length

    def from_step(self, shift: int) -> Repetition:
        """The same without its first steps."""
        return replace(self, first=self.first + shift, covered=self.covered - shift)


def longest_repetition(keys: Sequence[Hashable]) -> Repetition | None:
    """The repetition that covers most; of equal ones that with the shortest pass. A key of () repeats nothing."""
    best: Repetition | None = None
    for length in range(1, min(LONGEST, len(keys) // LEAST_PASSES) + 1):
        start = 0
        for end in range(len(keys) - length + 1):
            if end < len(keys) - length and keys[end] != () and keys[end] == keys[end + length]:
                continue
            one = Repetition(start, length, end - start + length)
            if one.passes >= LEAST_PASSES and (best is None or one.passes * length > best.passes * best.length):
                best = one
            start = end + 1
    return best


@dataclass(frozen=True, slots=True)
class _Place:
    """What a pointer points to in each pass, and where that is: equal places are one pointer."""

    where: tuple[Hashable, ...]
    bound: tuple[Value | Packed | Size | None, ...] = field(compare=False)
    """A tensor, packed weights, an offset in the workspace, or None for the error flag."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """The kernels of a pass, and the tensors that they alone use."""

    kernels: Sequence[GpuKernel]
    inner: Mapping[Value, Size]
    start: Size
    """Where these tensors start in the workspace."""

    @property
    def end(self) -> Size:
        last = [*self.inner][-1:]
        return self.start + (self.inner[last[0]] + last[0].tensor.bytes if last else 0)


@dataclass(slots=True)
class ResidentRuns:
    """Finds the steps of a plan that repeat, and makes one kernel of them."""

    plan: Plan
    locations: TensorLocations
    device: GpuDevice
    must_wait: Callable[[GpuKernel, GpuKernel, Mapping[Value, Size]], bool]
    """Whether a kernel must wait for an earlier one, where some tensors have memory of their own."""
    inner: Callable[[Sequence[Step]], Mapping[Value, Size]]
    """The tensors that some steps alone use, and where they are in memory of their own."""
    apart: Mapping[Value, Value] = field(init=False)

    def __post_init__(self) -> None:
        self.apart = chained(self.plan, fresh_results(self.plan).values())

    def fused(self, steps: Sequence[tuple[Step, Kernels]]) -> list[tuple[Step, Kernels]]:
        """The kernels of each step, with those of layers in one."""
        found = [*steps]
        again = longest_repetition([_key(kernels) for _, kernels in steps])
        if again is None or not self._fits(steps[again.first : again.first + again.length]):
            return found
        # A pass ends with a step that has a kernel: others join the one after them.
        last = again.first + again.length - 1
        again = again.from_step(next(i for i in range(again.length) if steps[last + i][1] is not None))
        at, left = again.first, again.passes
        while left >= LEAST_PASSES:
            made, passes = self._largest(steps, at, again.length, left)
            if made is None:
                return [*steps]
            end = at + passes * again.length
            for index in range(at, end):
                found[index] = (steps[index][0], (made,) if index == end - 1 else None)
            at, left = end, left - passes
        return found

    def _fits(self, steps: Sequence[tuple[Step, Kernels]]) -> bool:
        kernels = [made for _, several in steps for made in several or ()]
        return bool(kernels) and all(
            [isinstance(k.workspace_bytes, int) and is_part(k.kernel, self.device.multiprocessors) for k in kernels]
        )

    def _largest(
        self, steps: Sequence[tuple[Step, Kernels]], first: int, length: int, passes: int
    ) -> tuple[GpuKernel | None, int]:
        """The kernel of as many passes as its arguments allow, which share them evenly."""
        for pieces in range(1, passes // LEAST_PASSES + 1):
            count = -(-passes // pieces)
            each = [steps[at : at + length] for at in range(first, first + count * length, length)]
            made = self._composed([self._pass(of) for of in each])
            if made is None or 8 * (len(made.kernel.pointers) + len(made.kernel.sizes)) <= ARGUMENT_BYTES:
                return made, count
        return None, 0

    def _pass(self, steps: Sequence[tuple[Step, Kernels]]) -> _Pass:
        kernels = [made for _, several in steps for made in several or ()]
        return _Pass(
            kernels,
            self.inner([step for step, _ in steps]),
            max([k.workspace_bytes for k in kernels if isinstance(k.workspace_bytes, int)]),
        )

    def _composed(self, passes: Sequence[_Pass]) -> GpuKernel | None:
        """One kernel for passes, each of which has the same kernels with other pointers."""
        kernels = passes[0].kernels
        after = [
            frozenset(
                i for i in range(j) if any(self.must_wait(of.kernels[i], of.kernels[j], of.inner) for of in passes)
            )
            for j in range(len(kernels))
        ]
        names: dict[_Place, str] = {}
        parts: list[Part] = []
        written: dict[str, None] = {}
        for number, made in enumerate(kernels):
            own: dict[str, str] = {}
            for pointer in made.kernel.pointers:
                found = [self._bound_of(of, number, pointer) for of in passes]
                place = _Place(tuple([where for where, _ in found]), tuple([bound for _, bound in found]))
                own[pointer] = names.setdefault(place, f"x{len(names)}")
                if pointer in made.kernel.written:
                    written[own[pointer]] = None
            parts.append(Part(made.kernel, own, after[number]))
        tabled = [name for place, name in names.items() if len(set(place.where)) > 1]
        device = self.device
        kernel = as_resident(
            "resident",
            parts,
            blocks=device.multiprocessors,
            room=device.shared_bytes,
            passes=len(passes),
            tabled=tabled,
        )
        return None if kernel is None else self._bound(kernel, names, tabled, tuple(written), passes)

    def _bound(
        self,
        kernel: Kernel,
        names: Mapping[_Place, str],
        tabled: Sequence[str],
        written: tuple[str, ...],
        passes: Sequence[_Pass],
    ) -> GpuKernel:
        """The kernel with its text, and what its pointers point to."""
        bindings: dict[str, Value] = {}
        packed: dict[str, Packed] = {}
        workspace: dict[str, Size] = {}
        checks: list[str] = []
        alignment: dict[str, int] = {_COUNTER: ALIGNMENT}
        constants: list[str] = []
        for place, name in names.items():
            is_tabled = name in tabled
            for number, bound in enumerate(place.bound if is_tabled else place.bound[:1]):
                flat = f"{name}.{number}" if is_tabled else name
                if isinstance(bound, Value):
                    bindings[flat] = bound
                elif isinstance(bound, Packed):
                    packed[flat] = bound
                elif bound is None:
                    checks.append(flat)
                else:
                    workspace[flat] = bound
            tensors = [v for v in place.bound if isinstance(v, Value)]
            alignment[name] = min([self.locations.alignment({"": v})[""] for v in tensors], default=ALIGNMENT)
            if all([isinstance(v, (Value, Packed)) and self.locations.is_constant(v) for v in place.bound]):
                constants.append(name)
        plain = [name for name in names.values() if name not in tabled]
        flat = [f"{name}.{number}" for number in range(kernel.passes) for name in tabled]
        # Tensors take the memory of others within the kernel: nothing else is known to be apart, or not to change.
        shared = [name for name in names.values() if name not in constants]
        kernel = replace(
            kernel,
            pointers=(*plain, _COUNTER, *flat),
            written=(*written, _COUNTER),
            shared=(*shared, _COUNTER),
            constants=tuple(constants),
            tabled=tuple(tabled),
            counter=_COUNTER,
        )
        return GpuKernel(
            kernel,
            ptx.module(kernel, alignment),
            bindings,
            workspace,
            passes[0].end,
            tuple(checks),
            (_COUNTER,),
            packed,
        )

    def _bound_of(self, of: _Pass, number: int, pointer: str) -> tuple[Hashable, Value | Packed | Size | None]:
        """Where a pointer of a kernel points to, and what is there."""
        made = of.kernels[number]
        if pointer in made.workspace:
            return ("workspace", made.workspace[pointer]), made.workspace[pointer]
        if pointer in made.packed:
            return ("packed", made.packed[pointer].key), made.packed[pointer]
        if pointer in made.checks:
            return ("check",), None
        value = made.bindings[pointer]
        at = self.locations(value)
        if at.root in of.inner:
            # Kernels have the start of the workspace.
            offset = of.start + of.inner[at.root] + at.offset
            return ("workspace", offset), offset
        return self._where(value), value

    def _where(self, value: Value) -> Hashable:
        """Where a tensor is in memory, as far as a plan knows."""
        at = self.locations(value)
        root, offset = at.root, at.offset
        while root not in self.apart:
            slot = self.plan.slots.get(root)
            if slot is None or slot.donor is None:
                if slot is not None and slot.pool != "heap":
                    return slot.pool, slot.offset + offset
                break
            root = slot.donor
        return self.apart.get(root, root), offset


def _key(kernels: Kernels) -> Hashable:
    """What a step shares with those that it repeats."""
    return None if kernels is None else tuple([id(made.kernel) for made in kernels])


__all__ = ["Repetition", "ResidentRuns", "longest_repetition"]
