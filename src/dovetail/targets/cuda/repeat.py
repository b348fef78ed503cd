"""Runs with the same device arrays as the run before: nothing is looked up, one call of the driver enqueues them.

Results alternate between a few sets of memory, each with a graph of its own, so that the caller may hold the last ones.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from functools import partial

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array
from dovetail.targets.cuda.frame import Frame, Inputs
from dovetail.targets.cuda.graph import LaunchGraph
from dovetail.targets.cuda.memory import CudaBuffer
from dovetail.targets.runtime.device_array import DeviceArray, Lease

MOST_SETS = 3
"""Sets of results that a caller may hold; a run with more of them takes the longer way."""


class Seen:
    """The device arrays of a run, without holding them."""

    __slots__ = ("_refs",)

    def __init__(self, inputs: Inputs) -> None:
        self._refs = [(name, weakref.ref(x)) for name, x in inputs.items() if isinstance(x, DeviceArray)]

    @property
    def is_gone(self) -> bool:
        """Whether an array of the run is dropped, so that it cannot come again."""
        return any(ref() is None for _, ref in self._refs)

    def are(self, inputs: Mapping[str, Array | DeviceArray]) -> bool:
        """Whether these are the same arrays, and none is freed."""
        if len(inputs) != len(self._refs):
            return False
        for name, ref in self._refs:
            x = ref()
            if x is None or x is not inputs.get(name) or x.is_freed:
                return False
        return True


@dataclass(slots=True)
class _Results:
    """Memory for the results of a run, and the graph that writes there."""

    buffers: list[CudaBuffer]
    graph: LaunchGraph
    held: int = 0
    """Results that the caller has."""

    def give_back(self) -> None:
        self.held -= 1


class Repeated:
    """A frame whose inputs stay the same arrays."""

    def __init__(self, frame: Frame, inputs: Inputs) -> None:
        self.frame, self.seen = frame, Seen(inputs)
        bound = frame.bound
        self._results: list[_Results] = []
        self._donated = {name: weakref.ref(inputs[d.input]) for name, d in bound.donated.items()}
        self._fresh = {
            name: (root, frame.shape(frame.plan.graph.outputs[name]), frame.plan.graph.outputs[name].dtype)
            for name, root in bound.fresh.items()
        }
        self._names = tuple(frame.plan.graph.outputs)
        self._check = frame.check if bound.is_checked else None
        self._lock = threading.Lock()

    @staticmethod
    def serves(frame: Frame) -> bool:
        """Whether runs of a frame are launches alone, whose results have memory of their own."""
        bound = frame.bound
        names = frame.plan.graph.outputs.keys() - bound.donated.keys()
        in_place = not any(d.reason for d in bound.donated.values())
        return not frame.staged and not frame.to_host and bound.captures and in_place and names == bound.fresh.keys()

    def run(self) -> dict[str, DeviceArray] | None:
        """The outputs; None where the caller holds too many results, or another thread is here."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            results = next((one for one in self._results if not one.held), None)
            if results is None:
                if len(self._results) >= MOST_SETS:
                    return None
                results = self._new()
            if self._check is not None:
                self._check()
            results.graph.launch(self.frame.stream)
            return self._outputs(results)
        finally:
            self._lock.release()

    def _outputs(self, results: _Results) -> dict[str, DeviceArray]:
        found: dict[str, DeviceArray] = {}
        buffers = iter(results.buffers)
        for name in self._names:
            fresh = self._fresh.get(name)
            if fresh is None:
                given = self._donated[name]()
                assert isinstance(given, DeviceArray), "the caller gave it for this run"
                found[name] = given
            else:
                results.held += 1
                lease = Lease(next(buffers), partial(_given_back, self, results), self._check)
                found[name] = DeviceArray(lease, fresh[1], fresh[2])
        return found

    def _new(self) -> _Results:
        frame = self.frame
        buffers: list[CudaBuffer] = []
        for name in self._names:
            if name in self._fresh:
                root = self._fresh[name][0]
                buffers.append(frame.bound.new(frame.memory.number(root.tensor.bytes)))
                frame.move(root, buffers[-1].address)
        self._results.append(_Results(buffers, LaunchGraph(frame.driver, frame.launches)))
        return self._results[-1]


def _given_back(repeated: Repeated, results: _Results) -> None:
    """The runs, whose memory this is, live as long as their results."""
    results.give_back()


__all__ = ["Repeated", "Seen"]
