"""Layers as passes of one kernel whose blocks stay: runs of steps that repeat with other tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.persistent.bodies import refused_part
from dovetail.kernels.loops.persistent.kernel import persistent_kernel
from dovetail.kernels.loops.persistent.part import Part
from dovetail.kernels.loops.persistent.stream import THREADS as COPYING_THREADS
from dovetail.kernels.loops.persistent.stream import in_turn, paced
from dovetail.kernels.loops.persistent.trace import traced
from dovetail.kernels.loops.persistent.words import START, Published, Sent, Words
from dovetail.kernels.spec import ALIGNMENT, Packed
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import RESIDENT, Code, GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints
from dovetail.targets.gpu.persistent.exchange import RECEIVED_BYTES, Exchange
from dovetail.targets.gpu.persistent.repetition import LEAST_PASSES, LaunchedSteps, Repetition
from dovetail.targets.gpu.select import Selection

MOST_AFTER = 4
"""Kernels after all layers that the last pass runs, at most: all passes carry the code of them."""
ARGUMENT_BYTES = 4000
"""Arguments of a kernel that every driver takes."""
IS_APART = "rows_are_read_apart"
"""The condition that no block writes where another one reads rows that both compute."""
_COUNTER = "blocks"
Judge: TypeAlias = Callable[[Kernel, LaunchedSteps], Refused | None]
"""Sees a kernel and the steps of a pass of it, and may refuse it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What a pointer points to in each pass, and where that is: equal places are one pointer."""

    where: tuple[Hashable, ...]
    bound: tuple[Value | Packed | Size | None, ...] = field(compare=False)
    """A tensor, packed weights, an offset in the workspace, or None for the error flag."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """The kernels of a pass by the number of the part, and the tensors that they alone use."""

    kernels: Sequence[GpuKernel | None]
    """None where a pass does not run a part: the last one may end early, and it alone has parts after all layers."""
    inner: Mapping[Value, Size]
    start: Size
    """Where these tensors start in the workspace."""

    @property
    def end(self) -> Size:
        last = [*self.inner][-1:]
        return self.start + (self.inner[last[0]] + last[0].tensor.bytes if last else 0)


@dataclass(frozen=True, slots=True)
class _Composed:
    """A kernel of several passes, before it has a text."""

    kernel: GpuKernel
    alignment: Mapping[str, int]
    steps: range = range(0)
    """The numbers of its steps."""

    @property
    def argument_bytes(self) -> int:
        kernel = self.kernel.kernel
        return 8 * (len(kernel.pointers) + len(kernel.sizes))

    def printed(self, of: Selection) -> GpuKernel:
        code = Code(partial(of.backend.printer, self.kernel.kernel, self.alignment, of.device.architecture))
        return replace(self.kernel, code=code)


@dataclass(slots=True)
class PersistentRuns:
    """Finds the steps of a plan that repeat, and makes one kernel of them."""

    memory: Footprints
    selection: Selection

    def fused(
        self, steps: LaunchedSteps, launched: LaunchedSteps, again: Repetition, judge: Judge
    ) -> list[tuple[Step, Kernels]] | Refused:
        """The kernels of each step, with those of layers in one, or what refuses that; the judge sees a pass of it.
        Other steps are launched."""
        fused = [*launched]
        refused = self._refused(steps[again.first : again.first + again.length])
        if refused is not None:
            return refused
        again = again.of_kernels(steps)
        left, after = again.every, self._after(steps, again.first + again.covered)
        while len(left) >= LEAST_PASSES:
            composed = self._largest(steps, left, after)
            if isinstance(composed, Refused):
                return composed
            refused = judge(composed.kernel.kernel, steps[left[0].start : left[0].stop])
            if refused is not None:
                return refused
            for index in composed.steps:
                fused[index] = (steps[index][0], None)
            last = composed.steps[-1]
            fused[last] = (steps[last][0], (composed.printed(self.selection),))
            left = left[composed.kernel.kernel.passes :]
        return fused

    def _after(self, steps: LaunchedSteps, first: int) -> range:
        """The few steps after all layers whose kernels can be parts."""
        end, count = first, 0
        for at in range(first, len(steps)):
            kernels = steps[at][1]
            count += len(kernels or ())
            if kernels == () or count > MOST_AFTER or (kernels and self._refused([steps[at]]) is not None):
                break
            if any([_grid(kernel) > self.selection.device.multiprocessors for kernel in kernels or ()]):
                break  # blocks that take turns do not copy ahead
            end = at + 1 if kernels else end
        return range(first, end)

    def _refused(self, steps: LaunchedSteps) -> Refused | None:
        kernels = [(step, kernel) for step, several in steps for kernel in several or ()]
        if not kernels:
            return Refused("steps_have_kernels", "steps that run on the host")
        for step, kernel in kernels:
            refused = refused_part(kernel.kernel, self.selection.device.multiprocessors)
            if refused is None and not isinstance(kernel.workspace_bytes, int):
                refused = Refused("workspace_is_counted", "a workspace whose size is known at run time")
            if refused is not None:
                return replace(refused, found=f"{step.value.op.name}: {refused.found}")
        return None

    def _largest(self, steps: LaunchedSteps, passes: Sequence[range], after: range) -> _Composed | Refused:
        """The kernel of as many passes as its arguments allow, which share them evenly."""
        count = 0
        for pieces in range(1, len(passes) // LEAST_PASSES + 1):
            count = -(-len(passes) // pieces)
            tries = [(after, RECEIVED_BYTES)] if count == len(passes) and after else []
            composed: _Composed | Refused = Refused("")
            # What is not sent needs no shared memory of the block that reads it.
            for later, most in (*tries, (range(0), RECEIVED_BYTES), (range(0), 0)):
                each = [self._pass(steps, of, passes[0], later, of is passes[-1]) for of in passes[:count]]
                composed = self._composed(each, range(passes[0].start, (later or passes[count - 1]).stop), most)
                if isinstance(composed, _Composed):
                    break
            if isinstance(composed, Refused) or composed.argument_bytes <= ARGUMENT_BYTES:
                return composed
        return Refused("arguments_fit_a_launch", f"{count} passes take more", f"{ARGUMENT_BYTES:,} bytes")

    def _pass(self, steps: LaunchedSteps, own: range, whole: range, after: range, is_last: bool) -> _Pass:
        """A pass of some steps, where others have as many as `whole`; the last one also has those after all layers."""
        every, later, layer = (_kernels(steps, of) for of in (own, after, whole))
        left = len(layer) - len(every)
        ran = [*own, *(after if is_last else ())]
        return _Pass(
            [*every, *([None] * left), *(later if is_last else [None] * len(later))],
            self.memory.inner([steps[at][0] for at in ran]),
            max([k.workspace_bytes for k in (*layer, *later) if isinstance(k.workspace_bytes, int)]),
        )

    def _composed(self, passes: Sequence[_Pass], steps: range, most: int) -> _Composed | Refused:
        """One kernel for passes, each of which has the same kernels with other pointers."""
        if any([self._is_disturbed(kernel) for of in passes for kernel in of.kernels if kernel is not None]):
            return Refused(IS_APART, "a result where blocks read rows of others", "results elsewhere")
        exchange = Exchange(self.memory, [of.kernels for of in passes], steps, most)
        names: dict[_Place, str] = {}
        written: dict[str, None] = {}
        parts = [self._part(passes, number, exchange, names, written) for number in range(len(passes[0].kernels))]
        published = tuple(
            [
                Published(self._only(passes[0], i, n, names), got)
                for (i, n), got in exchange.received.items()
                if got.is_before and 0 in exchange.of(i)
            ]
        )
        device = self.selection.device
        awaits = exchange.awaits_passes(passes[0].inner)
        words = Words(_COUNTER, exchange.nbytes, published, awaits, device.pause, device.evict_first)
        after = [part for part in parts if part.passes and part.passes.start]
        if after and (words.awaits_passes or any(part.waits for part in after)):
            return Refused("all_is_sent_after_layers", "a barrier of the grid in each pass", "words")
        tabled = [name for place, name in names.items() if len(set(place.where)) > 1]
        threads = max([part.launch.block for part in parts]) + COPYING_THREADS
        copying_warp = device.copying_warp and threads <= device.threads_per_block
        kernel = persistent_kernel(
            RESIDENT,
            parts,
            blocks=device.multiprocessors,
            room=device.shared_bytes,
            passes=len(passes),
            tabled=tabled,
            words=words,
            copying_warp=copying_warp,
            # Copies at the pace of memory delay no words.
            words_first=not (copying_warp and device.bytes_per_cycle),
        )
        if isinstance(kernel, Refused):
            return kernel
        assert kernel.launch is not None, "it has one"
        launch = replace(kernel.launch, dependent=self.selection.request.starts_early)
        kernel = paced(replace(kernel, stream=in_turn(kernel.stream), launch=launch), device.bytes_per_cycle)
        composed = self._bound(kernel, names, tabled, tuple(written), passes)
        kernel, nbytes = composed.kernel.kernel, START + exchange.nbytes * (len(passes) + 1)
        if self.selection.request.traced:
            kernel, more = traced(kernel, nbytes)
            nbytes += more
        return replace(composed, kernel=replace(composed.kernel, kernel=kernel, counter_bytes=nbytes), steps=steps)

    def _is_disturbed(self, kernel: GpuKernel) -> bool:
        """Whether a block may write where another one of the same kernel still reads."""
        read = self.memory.storages([kernel.bindings[n] for n in kernel.reread])
        return bool(read & self.memory.written(kernel))

    def _part(
        self,
        passes: Sequence[_Pass],
        number: int,
        exchange: Exchange,
        names: dict[_Place, str],
        written: dict[str, None],
    ) -> Part:
        """A part with its pointers in the whole kernel, to which it adds some."""
        ran, part = [*exchange.of(number)], exchange.part(number)
        own: dict[str, str] = {}
        for pointer in part.kernel.pointers:
            at = number, pointer
            if at in exchange.sent or at in exchange.received:
                own[pointer] = f"words{number}_{pointer}"
                continue
            # A pass that does not run a part has the pointers of one that does.
            bound = {at: self._bound_of(passes[at], number, pointer) for at in ran}
            bound_by_pass = [bound[min(max(at, ran[0]), ran[-1])] for at in range(len(passes))]
            place = _Place(tuple([where for where, _ in bound_by_pass]), tuple([bound for _, bound in bound_by_pass]))
            own[pointer] = names.setdefault(place, f"x{len(names)}")
            if pointer in part.kernel.written:
                written[own[pointer]] = None
        sent: dict[str, Sent] = {}
        for pointer in part.kernel.written:
            if (number, pointer) in exchange.sent:
                sent[pointer] = exchange.sent[number, pointer]
            if (number, pointer) in exchange.kept:
                kept = self._only(passes[ran[-1]], number, pointer, names)
                written[kept] = None
                sent[pointer] = replace(sent[pointer], kept=kept)
        received = {n: got for (i, n), got in exchange.received.items() if i == number}
        after, waits = self._waits(passes, number, exchange)
        runs = range(ran[0], ran[-1] + 1)
        return Part(part.kernel, own, after, sent, received, waits, exchange.near(number), runs)

    def _waits(self, passes: Sequence[_Pass], number: int, exchange: Exchange) -> tuple[frozenset[int], frozenset[int]]:
        """The parts that one comes after, and those of them that it does not receive everything from."""
        after: set[int] = set()
        waits: set[int] = set()
        for of in passes:
            later = of.kernels[number]
            for index, earlier in enumerate(of.kernels[:number]):
                if earlier is not None and later is not None and self.memory.must_wait(earlier, later):
                    after.add(index)
                    plain = exchange.plain(index, earlier), exchange.plain(number, later)
                    if self.memory.must_wait(*plain):
                        waits.add(index)
        return frozenset(after), frozenset(waits)

    def _only(self, of: _Pass, number: int, pointer: str, names: dict[_Place, str]) -> str:
        """The pointer to what a part reads or writes in one pass."""
        where, bound = self._bound_of(of, number, pointer)
        return names.setdefault(_Place((where,), (bound,)), f"x{len(names)}")

    def _bound(
        self,
        kernel: Kernel,
        names: Mapping[_Place, str],
        tabled: Sequence[str],
        written: tuple[str, ...],
        passes: Sequence[_Pass],
    ) -> _Composed:
        """The kernel, and what its pointers point to."""
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
            alignment[name] = min([self.memory.locations.alignment({"": v})[""] for v in tensors], default=ALIGNMENT)
            if all([isinstance(v, (Value, Packed)) and self.memory.locations.is_constant(v) for v in place.bound]):
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
        end = max([of.end for of in passes if isinstance(of.end, int)])
        gpu_kernel = GpuKernel(kernel, "", bindings, workspace, end, tuple(checks), (_COUNTER,), packed)
        return _Composed(gpu_kernel, alignment)

    def _bound_of(self, of: _Pass, number: int, pointer: str) -> tuple[Hashable, Value | Packed | Size | None]:
        """Where a pointer of a kernel points to, and what is there."""
        kernel = of.kernels[number]
        assert kernel is not None, "this pass runs it"
        if pointer in kernel.workspace:
            return ("workspace", kernel.workspace[pointer]), kernel.workspace[pointer]
        if pointer in kernel.packed:
            return ("packed", kernel.packed[pointer].key), kernel.packed[pointer]
        if pointer in kernel.checks:
            return ("check",), None
        value = kernel.bindings[pointer]
        at = self.memory.locations(value)
        if at.root in of.inner:
            # Kernels have the start of the workspace.
            offset = of.start + of.inner[at.root] + at.offset
            return ("workspace", offset), offset
        return (self.memory.storage(value), at.offset), value


def _grid(kernel: GpuKernel) -> int:
    launch = kernel.kernel.launch
    assert launch is not None and isinstance(launch.grid, int), "it was checked"
    return launch.grid


def _kernels(steps: LaunchedSteps, own: range) -> list[GpuKernel]:
    return [kernel for at in own for kernel in steps[at][1] or ()]


__all__ = ["IS_APART", "Judge", "PersistentRuns"]
