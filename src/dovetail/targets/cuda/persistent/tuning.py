"""Autotuning: waits of persistent kernels are tuned in the first run of some sizes, and kept for later processes.

How long blocks best wait before they look for words, and how fast copies start, follows from the model and from the
card, and no estimate has given it. These numbers are arguments, and no result depends on them. Trials run on a frame of
their own, with copies of what a run overwrites.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from threading import Lock
from typing import Any, TypeGuard

from dovetail.dataclass import dataclass
from dovetail.errors import OutOfMemoryError
from dovetail.settings import TUNE_ALWAYS, TUNE_OFF
from dovetail.targets.cuda.code.code import digest
from dovetail.targets.cuda.driver.driver import Driver
from dovetail.targets.cuda.driver.streams import Event
from dovetail.targets.cuda.runs.bound_plan import BoundPlan, LoadedKernel
from dovetail.targets.cuda.runs.frame import Frame, Inputs
from dovetail.targets.cuda.runs.graph import LaunchGraph
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.persistent.cycle_search import MOST_CYCLES, Counts, search
from dovetail.targets.runtime.arrays.device_array import DeviceArray, Lease
from dovetail.targets.runtime.building.store import CodeStore, StoreKey

KIND = "cycles"
"""Of the entries of the store."""
LEAST_PASSES = 8
"""Of a kernel that is tuned by itself, at least: small models start at once."""
_SECONDS, _MOST_RUNS = 2e-3, 64
"""Of the runs that a trial takes the time of, and how many these are at most."""
_MOST_MEMORY = 0.5
"""The part of the free memory that copies of what a run overwrites may take."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Numbers of cycles by name, and how they were found."""

    graph: str
    date: str
    before: float
    """Seconds of a run with the estimates."""
    after: float
    cycles: Mapping[str, int]

    def counts(self, one: LoadedKernel) -> Counts:
        """In the order of the arguments of a kernel."""
        return tuple([self.cycles[wait.name] for wait in one.kernel.kernel.cycles])


class Tuner:
    """How long the kernels of a bound plan wait: as estimated, as the store says, or as its first runs find."""

    def __init__(self, mode: str, store: CodeStore | None, device: Driver, ptx: Mapping[str, str]) -> None:
        """`ptx` is that of each kernel by its text."""
        self.mode, self.store, self.device, self.ptx = mode, store, device, ptx
        self.found: dict[str, Tuned | None] = {}
        """What was measured, here or in an earlier process, by the name of its entry; None where estimates stay."""
        self._tried: set[str] = set()
        self._codes: dict[str, str] = {}
        """What tells the code of each kernel, by its text."""
        self._lock = Lock()

    def settle(self, frame: Frame, inputs: Inputs) -> None:
        """Let the kernels of a frame wait as long as is best for its sizes. What is not known yet is measured, on runs
        with these inputs, none of which changes."""
        bound = frame.bound
        tunable = [i for i, one in enumerate(bound.loaded) if is_tunable(one.kernel)]
        if not tunable or self.mode == TUNE_OFF or not bound.captures:
            return
        with self._lock:
            keys = {index: self._key(bound.loaded[index], frame) for index in tunable}
            for index, key in keys.items():
                if key.name not in self.found:
                    self.found[key.name] = self._kept(bound.loaded[index], key)
            left = {i: key for i, key in keys.items() if self._is_measured(bound.loaded[i], key)}
            if left:
                self._measure(bound, inputs, left)
            for index, key in keys.items():
                found = self.found[key.name]
                if found is not None:
                    set_cycles(frame, index, found.counts(bound.loaded[index]))

    def _is_measured(self, one: LoadedKernel, key: StoreKey) -> bool:
        """Whether a kernel is measured now: once where nothing is kept, and anything could be."""
        if self.found[key.name] is not None or key.name in self._tried:
            return False
        return self.mode == TUNE_ALWAYS or (self.store is not None and one.kernel.kernel.passes >= LEAST_PASSES)

    def _measure(self, bound: BoundPlan, inputs: Inputs, left: Mapping[int, StoreKey]) -> None:
        self._tried |= {key.name for key in left.values()}
        copied = sum([x.nbytes for name, x in inputs.items() if _is_copied(x, name, bound)])
        if _MOST_MEMORY * self.device.free_memory()[0] < copied:
            return
        try:
            trials = Trials(bound, inputs)
        except OutOfMemoryError:
            return  # estimates take no memory
        for index, key in left.items():
            self.found[key.name] = made = trials.tuned(index)
            if made is not None and self.store is not None:
                self.store.put(key, json.dumps(_spelled(made)).encode())
        trials.close()

    def _key(self, one: LoadedKernel, frame: Frame) -> StoreKey:
        """What a search depends on: the code, about how large sizes are, and the card with its driver."""
        text, sizes = one.kernel.text, map(frame.memory.number, one.kernel.kernel.sizes)
        code = self._codes.get(text) or self._codes.setdefault(text, digest(self.ptx[text].encode()))
        about = " ".join([str(4 ** (size.bit_length() // 2)) for size in sizes])
        return StoreKey(
            KIND, {"code": code, "sizes": about, "card": self.device.name, "driver": str(self.device.version)}
        )

    def _kept(self, one: LoadedKernel, key: StoreKey) -> Tuned | None:
        content = None if self.store is None or self.mode == TUNE_ALWAYS else self.store.get(key)
        return None if content is None else parsed(content, [wait.name for wait in one.kernel.kernel.cycles])


def is_tunable(made: GpuKernel) -> bool:
    """Whether a kernel waits in each of several passes."""
    return any([wait.passes > 1 for wait in made.kernel.cycles])


def set_cycles(frame: Frame, index: int, counts: Counts) -> None:
    """Let a launch of a frame wait some numbers of cycles."""
    kernel = frame.bound.loaded[index].kernel.kernel
    first = len(kernel.pointers) + len(kernel.sizes)
    for at, count in enumerate(counts):
        frame.launches[index].set(first + at, count)
    frame.changed.add(index)


def _spelled(found: Tuned) -> dict[str, Any]:
    return {name: getattr(found, name) for name in ("graph", "date", "before", "after", "cycles")}


def parsed(content: bytes, names: list[str] | None = None) -> Tuned | None:
    """What was kept of a kernel with these waits; None for other content."""
    try:
        given = json.loads(content)
        cycles = {str(name): int(count) for name, count in given["cycles"].items()}
        found = Tuned(str(given["graph"]), str(given["date"]), float(given["before"]), float(given["after"]), cycles)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    fits = names is None or cycles.keys() == {*names}
    return found if fits and all([0 <= count <= MOST_CYCLES for count in cycles.values()]) else None


def kept(store: CodeStore | None, device: Driver) -> list[Tuned]:
    """What is kept of kernels on a card, those that were used last first."""
    found: list[Tuned] = []
    for words in () if store is None else store.keys(KIND):
        parts = {name: part for name, part in words.items() if name != "kind"}
        content = store.get(StoreKey(KIND, parts)) if store is not None and parts.get("card") == device.name else None
        made = None if content is None else parsed(content)
        found += [] if made is None else [made]
    return found


class Trials:
    """Runs of a plan on memory of their own."""

    def __init__(self, bound: BoundPlan, inputs: Inputs) -> None:
        self.bound, self.driver = bound, bound.driver
        given = {name: _copied(bound, name, x) for name, x in inputs.items()}
        frame = self.frame = Frame(bound, given, to_host=False)
        frame.put(given)
        frame.renew()
        self.given = given
        """Holds the memory of the copies."""
        self.graph = LaunchGraph(self.driver, frame.launches)
        self.begin, self.end = Event(self.driver), Event(self.driver)
        self._timed(1)
        self.seconds = self._timed(3) / 3
        self.runs = max(1, min(_MOST_RUNS, round(_SECONDS / max(self.seconds, 1e-9))))

    def tuned(self, index: int) -> Tuned | None:
        """Search the counts of a kernel; None where a run is refused."""
        cycles = self.bound.loaded[index].kernel.kernel.cycles

        def timed(counts: Counts) -> float:
            set_cycles(self.frame, index, counts)
            self.graph.update(index, self.frame.launches[index])
            return self._timed(self.runs)

        found = search(cycles, timed)
        timed(found.counts)
        if self.frame.status[0]:
            return None
        named = {wait.name: count for wait, count in zip(cycles, found.counts, strict=True)}
        date, name = time.strftime("%Y-%m-%d %H:%M"), self.bound.plan.graph.name
        return Tuned(name, date, self.seconds, self.seconds * found.ratio, named)

    def _timed(self, runs: int) -> float:
        """Seconds of runs that follow one."""
        self.graph.launch(self.frame.stream)
        self.begin.record(self.frame.stream)
        for _ in range(runs):
            self.graph.launch(self.frame.stream)
        self.end.record(self.frame.stream)
        return self.end.seconds_since(self.begin)

    def close(self) -> None:
        self.driver.wait_for(self.frame.stream)
        self.frame.release()


def _is_copied(given: Any, name: str, bound: BoundPlan) -> TypeGuard[DeviceArray]:
    """Whether a run overwrites an array of the caller; what comes from the host has memory of its own in any case."""
    return isinstance(given, DeviceArray) and any([d.input == name for d in bound.donated.values()])


def _copied(bound: BoundPlan, name: str, given: Any) -> Any:
    """An input of trials."""
    if not _is_copied(given, name, bound):
        return given
    buffer = bound.allocator.allocate(given.nbytes)
    buffer.copy_from_device(given.address, given.nbytes)
    return DeviceArray(Lease(buffer), given.shape, bound.inputs[name].dtype)


__all__ = ["KIND", "LEAST_PASSES", "Trials", "Tuned", "Tuner", "is_tunable", "kept", "parsed", "set_cycles"]
