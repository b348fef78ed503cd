"""A plan on the device with its parameters: runs by frames, results that stay there, and times of its steps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TypeAlias, TypeVar, cast

import numpy as np

from dovetail.errors import BindError, OutOfMemoryError
from dovetail.ir.literal import Array
from dovetail.ir.solve import solve_symbols
from dovetail.ir.value import Value
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan, step_by_step
from dovetail.targets.cuda.driver.driver import DEFAULT_STREAM, Driver
from dovetail.targets.cuda.driver.memory import NAME
from dovetail.targets.cuda.driver.shortage import shortage
from dovetail.targets.cuda.driver.streams import CAPTURES
from dovetail.targets.cuda.driver.timing import run_timed
from dovetail.targets.cuda.runs.bound_plan import BoundPlan, LoadedKernel, OnHost
from dovetail.targets.cuda.runs.foreign_inputs import MOST_CHECKED, ForeignInputs
from dovetail.targets.cuda.runs.frame import DeviceFrame, Inputs
from dovetail.targets.cuda.runs.graph import LaunchGraph
from dovetail.targets.cuda.runs.repeat import RepeatedRun
from dovetail.targets.runtime.arrays.device_array import DeviceArray
from dovetail.targets.runtime.arrays.feeds import actual_leaf
from dovetail.targets.runtime.arrays.memory import Memory

MOST_FRAMES = 16
"""Frames that a runner holds between runs: one for each set of shapes, more where threads run at once."""
MOST_REPEATED = 8
"""Sets of shapes whose runs on device arrays are kept ready, apart from other frames."""

FrameKey: TypeAlias = tuple[object, ...]
R = TypeVar("R")


class CudaRunner:
    """A plan on the device with its parameters."""

    def __init__(
        self,
        plan: Plan,
        device: Driver,
        kept: Memory,
        params: Mapping[str, Array],
        work: tuple[LoadedKernel | OnHost, ...],
    ) -> None:
        bound = self.bound = BoundPlan(plan, device, kept, params, work)
        bound.reclaim = self._reclaim
        self.plan, self.driver = plan, device
        self._overwritten = tuple([d.input for d in plan.donations])
        self._idle: OrderedDict[FrameKey, list[DeviceFrame]] = OrderedDict()
        self._count = 0
        self._apart: set[FrameKey] = set()
        """Addresses of donated arrays that share no memory with other inputs."""
        self._foreign = ForeignInputs(bound, self._overwritten)
        self._repeated: OrderedDict[FrameKey, RepeatedRun] = OrderedDict()
        """What serves runs on device arrays of the same shapes as earlier ones; the last one is the last."""
        self._again: tuple[RepeatedRun, ...] = ()
        """The same, the last first."""
        self._lock = Lock()

    @property
    def device(self) -> str:
        """The device that holds what stays there."""
        return NAME

    @property
    def threads(self) -> int:
        """Threads of the host that a run uses."""
        return 1

    def to_device(self, array: Array, value: Value) -> DeviceArray:
        """A copy of an array in the memory of the device."""
        buffer = self.bound.new(array.nbytes)
        buffer.copy_from_host(np.ascontiguousarray(array))
        return DeviceArray(self.bound.lease(buffer), array.shape, value.dtype)

    def quick(self, inputs: Inputs) -> dict[str, Array] | None:
        """The outputs on the host of a run whose shapes came before; None leaves it to look at the inputs closely."""
        adopted = self._adopted(inputs)
        key = None if adopted is None else self._known(adopted, to_host=True)
        return None if adopted is None or key is None else self._with_frame(key, adopted, self._to_host, to_host=True)

    def quick_on_device(self, inputs: Inputs) -> dict[str, DeviceArray] | None:
        """The outputs on the device of a run whose shapes came before; None leaves it to look at the inputs closely."""
        for again in self._again:
            results = again.run(inputs, self._share_nothing)
            if results is not None:
                return results
        adopted = self._adopted(inputs)
        key = None if adopted is None else self._known(adopted, to_host=False)
        return None if adopted is None or key is None else self._run_on_device(key, adopted)

    def _adopted(self, inputs: Inputs) -> Inputs | None:
        """The inputs with arrays of other libraries as device arrays; None where one of these must be checked."""
        if all(x.__class__ is DeviceArray or x.__class__ is np.ndarray for x in inputs.values()):
            return inputs
        return self._foreign.adopted(inputs)

    def run(self, inputs: Inputs) -> dict[str, Array]:
        """The outputs by name on the host; those that take the memory of a device array are that array."""
        key, checked = self._checked(inputs, to_host=True)
        return self._with_frame(key, checked, self._to_host, to_host=True)

    def run_on_device(self, inputs: Inputs) -> dict[str, DeviceArray]:
        """The outputs by name on the device. Nothing is waited for.

        An index out of range is an error when the host reads a result, or at the latest in a later run.
        """
        return self._run_on_device(*self._checked(inputs, to_host=False))

    def _run_on_device(self, key: FrameKey, inputs: Inputs) -> dict[str, DeviceArray]:
        again = self._repeated.get(key) or self._repeat(key)
        if again is not None and (results := again.run(inputs)) is not None:
            return results
        return self._with_frame(key, inputs, self._on_device, to_host=False)

    def _repeat(self, key: FrameKey) -> RepeatedRun | None:
        """What serves the runs of a key from the second one on; None where it is the first, or they are not served."""
        frame = self._taken(key)
        if frame is None:
            return None
        if not frame.runs or not RepeatedRun.serves(frame):
            self._give_back(key, frame)
            return None
        repeated = RepeatedRun(frame)
        with self._lock:
            kept = self._repeated.setdefault(key, repeated)
            oldest = next(iter(self._repeated.items())) if len(self._repeated) > MOST_REPEATED else None
            if oldest is not None:
                del self._repeated[oldest[0]]
            self._again = tuple(reversed(self._repeated.values()))
        if kept is not repeated:  # another thread was here
            self._give_back(key, frame)
        if oldest is not None and (frame := oldest[1].closed()) is not None:
            self._give_back(oldest[0], frame)
        return kept

    def run_marked(self, inputs: Inputs) -> tuple[dict[str, Array], Sequence[Mark]]:
        """The outputs by name on the host, and when each step ran on the device."""
        marks: list[Mark] = []

        def timed(frame: DeviceFrame, arrays: Inputs) -> dict[str, Array]:
            return self._to_host(frame, arrays, lambda: marks.extend(run_timed(frame)))

        key, checked = self._checked(inputs, to_host=True)
        return self._with_frame(key, checked, timed, to_host=True), marks

    def _to_host(
        self, frame: DeviceFrame, inputs: Inputs, launch: Callable[[], None] | None = None
    ) -> dict[str, Array]:
        frame.put(inputs)
        (launch or frame.launch)()
        results = frame.results()
        frame.overwrite(inputs)
        if frame.status[0]:
            frame.status[0] = 0
            self._refuse(inputs)
        arrays: dict[str, Array | DeviceArray] = {}
        for name in self.plan.graph.outputs:
            donation = self.bound.donated.get(name)
            if donation is None:
                arrays[name] = results[name]
                continue
            donated = arrays[name] = inputs[donation.input]
            if not isinstance(donated, DeviceArray):
                donated[...] = results[name]
        return cast("dict[str, Array]", arrays)

    def _on_device(self, frame: DeviceFrame, inputs: Inputs) -> dict[str, DeviceArray]:
        frame.check()
        frame.put(inputs)
        frame.renew()
        frame.launch()
        results = {name: frame.kept(name, value, inputs) for name, value in self.plan.graph.outputs.items()}
        frame.overwrite(inputs)
        return results

    def _refuse(self, inputs: Inputs) -> None:
        """Raise what a kernel has refused, such as an index out of range: the run is repeated by its meaning."""
        memory = self.bound.kept.copy()
        memory.plan = step_by_step(self.plan)
        arrays = {name: self._read(x) if isinstance(x, DeviceArray) else np.array(x) for name, x in inputs.items()}
        memory.give(self.plan.graph.inputs, arrays)
        memory.solve(self.bound.symbolic)
        memory.run_skipped()
        memory.reserve("arena", memory.plan.arena_size)
        memory.run(self.plan.phase("run"))
        raise BindError(
            f"an index was out of range in a run of {self.plan.graph.name}, which has overwritten the index",
            hint="check what indices are made from",
        )

    def _read(self, array: DeviceArray) -> Array:
        """The elements of a device array, which may be another library's."""
        content = np.empty(array.shape, array.dtype)
        if content.nbytes:
            data = content.ctypes.data
            self.driver.call("cuMemcpyDtoHAsync_v2", data, array.address, content.nbytes, DEFAULT_STREAM)
            self.driver.wait_for(DEFAULT_STREAM)
        return content

    def _key(self, inputs: Inputs, to_host: bool) -> FrameKey | None:
        """Return the key of a frame: shapes, dtypes and places of inputs."""
        key: list[object] = [to_host]
        for name in self.bound.inputs:
            x = inputs.get(name)
            if isinstance(x, DeviceArray):
                if x.device != NAME or x.is_freed:
                    return None
                key += (x.shape, x.dtype, True)
            elif isinstance(x, np.ndarray):
                key += (x.shape, x.dtype, False)
            else:
                return None
        return tuple(key) if len(inputs) == len(self.bound.inputs) else None

    def _known(self, inputs: Inputs, *, to_host: bool) -> FrameKey | None:
        """The key of a run that needs no checks; None where it may need some."""
        key = self._key(inputs, to_host)
        if key not in self._repeated and key not in self._idle:
            return None
        return key if self._share_nothing(inputs) else None

    def _share_nothing(self, inputs: Inputs) -> bool:
        """Whether donated arrays are known to share no memory with others."""
        return not self._overwritten or self._addresses(inputs) in self._apart

    def _addresses(self, inputs: Inputs) -> FrameKey | None:
        """Addresses and lengths of all arrays; None where a donated one is on the host."""
        if any(not isinstance(inputs[name], DeviceArray) for name in self._overwritten):
            return None
        return tuple([x for a in inputs.values() if isinstance(a, DeviceArray) for x in (a.address, a.nbytes)])

    def _checked(self, inputs: Inputs, *, to_host: bool) -> tuple[FrameKey, Inputs]:
        """The key of a run whose inputs the program has checked, and the inputs as it reads them."""
        key = self._key(inputs, to_host)
        assert key is not None, "the program has checked the inputs"
        arrays = self._foreign.checked(inputs)
        if self._overwritten and (addresses := self._addresses(inputs)) is not None:
            with self._lock:
                if len(self._apart) >= MOST_CHECKED:
                    self._apart.clear()
                self._apart.add(addresses)
        return key, arrays

    def _with_frame(
        self, key: FrameKey, inputs: Inputs, run: Callable[[DeviceFrame, Inputs], R], *, to_host: bool
    ) -> R:
        """Run with a frame that no other thread uses."""
        frame = self._taken(key)
        if frame is None:
            frame = self._new_frame(inputs, to_host=to_host)
        try:
            return run(frame, inputs)
        finally:
            if self.driver.lost is None:
                self._give_back(key, frame)

    def _taken(self, key: FrameKey) -> DeviceFrame | None:
        with self._lock:
            frames = self._idle.get(key)
            if not frames:
                return None
            self._count -= 1
            frame = frames.pop()
            if not frames:
                # An empty list stays: the key is known.
                self._idle.move_to_end(key)
            return frame

    def _give_back(self, key: FrameKey, frame: DeviceFrame) -> None:
        with self._lock:
            self._idle.setdefault(key, []).append(frame)
            self._idle.move_to_end(key)
            self._count += 1

    def _evicted(self) -> DeviceFrame | None:
        """The frame that was used longest ago, where there are too many."""
        with self._lock:
            while self._count >= MOST_FRAMES:
                key, frames = next(iter(self._idle.items()))
                if frames:
                    self._count -= 1
                    frame = frames.pop()
                    if not frames:
                        del self._idle[key]
                    return frame
                del self._idle[key]
        return None

    def _new_frame(self, inputs: Inputs, *, to_host: bool) -> DeviceFrame:
        graph: LaunchGraph | None = None
        old = self._evicted()
        if old is not None:
            graph = old.graph
            self.driver.wait_for(old.stream)
            old.release()
        try:
            frame = DeviceFrame(self.bound, inputs, to_host=to_host, graph=graph)
        except OutOfMemoryError as error:
            if not error.needed:
                raise  # a stream or a graph ran out of memory, not the run
            facts = [actual_leaf(v, inputs[v.attrs["name"]]) for v in self.plan.graph.inputs]
            sizes = solve_symbols([*facts, *self.bound.symbolic], dict(self.bound.kept.sizes))
            workspaces = [one.kernel.workspace_bytes for one in self.bound.loaded]
            raise shortage(self.plan, workspaces, sizes, error.free, NAME) from None
        return frame

    def _reclaim(self) -> None:
        """Give the memory of frames that wait for later runs back to the pool."""
        with self._lock:
            frames = [frame for frames in self._idle.values() for frame in frames]
            self._idle.clear()
            self._count = 0
            repeated = [*self._repeated.values()]
            self._repeated.clear()
            self._again = ()
        # One that runs, perhaps the one that wants memory, has its own until it is done.
        frames += [frame for one in repeated if (frame := one.closed()) is not None]
        with CAPTURES:
            self.driver.synchronize()
        for frame in frames:
            frame.release()


__all__ = ["CudaRunner"]
