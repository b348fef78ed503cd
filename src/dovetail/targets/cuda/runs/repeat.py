"""Runs of one set of shapes with inputs and outputs on the device: one call enqueues what the driver has to do.

Results alternate between a few sets of memory, each with a graph of its own, so that the caller may hold the last ones.
A set remembers the arrays that its graph reads: with the same ones nothing is looked at, and with others their
addresses are written into the nodes that take them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from sys import getrefcount
from typing import Any, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.targets.cuda.driver.memory import NAME
from dovetail.targets.cuda.runs.frame import DeviceFrame
from dovetail.targets.cuda.runs.graph import LaunchGraph
from dovetail.targets.cuda.runs.launch_code import REFUSED
from dovetail.targets.cuda.runs.replay import Replay, Uses
from dovetail.targets.runtime.arrays.device_array import DeviceArray

MOST_SETS = 3
"""Sets of results with graphs of their own. Where the caller holds all of them, the oldest set gets new memory."""
MOST_BEFORE = 4
"""Runs back in which the same arrays count as arrays that come again and again."""

Identities: TypeAlias = list[object]
"""Of the arrays of a run, in the order of the inputs."""
_identity: Callable[[Any], object] = attrgetter("identity")
_address: Callable[[Any], int] = attrgetter("held.buffer.address")


@dataclass(slots=True, eq=False)
class _Set:
    """Memory for the results of a run, and the graph that writes there."""

    replay: Replay
    outputs: dict[str, Any]
    """The results by name; None where the caller gets the array of a donated input."""
    arrays: Identities | None
    """The arrays that the graph reads; None between two runs."""
    addresses: list[int]
    """Where the inputs are, as the graph has it."""
    plain: list[Uses | None]
    """What reads each input, where that is an argument alone."""
    owned: list[object]
    """The results and the owners of their memory."""
    counts: list[int]
    """How many references each of those has while neither the caller nor another library has any."""


class RepeatedRun:
    """A frame whose inputs and outputs are device arrays."""

    def __init__(self, frame: DeviceFrame) -> None:
        plan, bound = frame.plan, frame.bound
        self._frame, self._driver = frame, frame.driver
        self._names = tuple(bound.inputs)
        self._count = len(self._names)
        self._arrays: Callable[[Any], tuple[Any, ...]] = self._by_name
        if self._count > 1:
            self._arrays = itemgetter(*self._names)
        self._expected = [(frame.shape(v), v.dtype.numpy) for v in bound.inputs.values()]
        self._input_uses = [frame.uses.get(value, []) for value in bound.inputs.values()]
        self._donated = [(name, self._names.index(d.input)) for name, d in bound.donated.items()]
        self._fresh = {
            name: (root, frame.shape(plan.graph.outputs[name]), plan.graph.outputs[name].dtype)
            for name, root in bound.fresh.items()
        }
        self._moving = sorted(
            {launch for uses in self._input_uses for launch, _, _ in uses}
            | {launch for root in bound.fresh.values() for launch, _, _ in frame.uses.get(root, ())}
        )
        self._check = frame.check if bound.is_checked else None
        self._sets: list[_Set] = []
        """In LRU order: the first one got other arrays longest ago."""
        self._before: deque[Identities] = deque(maxlen=MOST_BEFORE)
        self._lock = threading.Lock()
        self._is_closed = False

    @staticmethod
    def serves(frame: DeviceFrame) -> bool:
        """Whether runs of a frame are launches alone, whose results have memory of their own."""
        bound = frame.bound
        names = frame.plan.graph.outputs.keys() - bound.donated.keys()
        in_place = not any(d.reason for d in bound.donated.values())
        return not frame.staged and not frame.to_host and bound.captures and in_place and names == bound.fresh.keys()

    def run(
        self, inputs: Mapping[str, Any], share_nothing: Callable[[Mapping[str, Any]], bool] = lambda _: True
    ) -> dict[str, DeviceArray] | None:
        """The outputs of a run; None where arrays have other shapes, share what is overwritten, or another thread is
        here. Arrays of an earlier run are not looked at again."""
        try:
            ordered = self._arrays(inputs)
            # This is of no other array, and of none that is freed.
            arrays = [*map(_identity, ordered)]
        except (AttributeError, KeyError):
            return None
        if len(inputs) != self._count or not self._lock.acquire(False):
            return None
        try:
            for one in self._sets:
                if arrays == one.arrays and [*map(getrefcount, one.owned)] == one.counts:
                    return self._launched(one, ordered)
            if self._is_closed or not self._fit(ordered) or not share_nothing(inputs):
                return None
            addresses = [*map(_address, ordered)]
            one = self._chosen(arrays, addresses)
            one.arrays = None  # an interrupt leaves the arguments between two runs
            self._move(one, addresses)
            results = self._launched(one, ordered)
            one.arrays = arrays
            return results
        finally:
            self._lock.release()

    def _by_name(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple([inputs[name] for name in self._names])

    def _fit(self, inputs: tuple[Any, ...]) -> bool:
        """Whether these are device arrays of the frame's shapes and dtypes, none of which is freed."""
        for index, (shape, dtype) in enumerate(self._expected):
            x = inputs[index]
            if x.__class__ is not DeviceArray or x.dtype is not dtype or x.shape != shape:
                return False
            if x.held is None or x.device != NAME:
                return False
        return True

    def _move(self, one: _Set, addresses: list[int]) -> None:
        """Let the graph of a set read arrays at other addresses."""
        before = one.addresses
        for index, address in enumerate(addresses):
            if address == before[index]:
                continue
            plain = one.plain[index]
            if plain is None:
                for launch, argument, offset in self._input_uses[index]:
                    one.replay.set(launch, argument, address + offset)
            else:
                for words, argument, offset, node in plain:
                    words[argument] = address + offset
                    node.changed = 1
            before[index] = address

    def _launched(self, one: _Set, inputs: tuple[Any, ...]) -> dict[str, DeviceArray]:
        if self._driver.lost is not None:
            raise self._driver.lost
        status = one.replay.launch()
        if status:
            if status == REFUSED:
                self._frame.check()
            raise self._driver.error("cuGraphLaunch", status)
        results = one.outputs.copy()
        for name, index in self._donated:
            results[name] = inputs[index]
        return results

    def _chosen(self, arrays: Identities, addresses: list[int]) -> _Set:
        """A set for these arrays whose results the caller does not have."""
        comes_again = arrays in self._before
        self._before.append(arrays)
        idle: _Set | None = None
        for one in self._sets:
            if [*map(getrefcount, one.owned)] == one.counts:
                if one.addresses == addresses:
                    return one
                idle = idle or one
        if not self._sets or (comes_again and len(self._sets) < MOST_SETS):
            chosen = self._new(addresses)
            self._sets.append(chosen)
            return chosen
        chosen = idle or self._sets[0]
        if idle is None:
            self._renew(chosen)
        if chosen is not self._sets[-1]:
            self._sets.remove(chosen)
            self._sets.append(chosen)
        return chosen

    def _new(self, addresses: list[int]) -> _Set:
        """A set whose graph reads arrays at these addresses."""
        frame = self._frame
        outputs, owned = self._results()
        moving = {index: frame.launches[index].copy() for index in self._moving}
        places = [*zip(self._input_uses, addresses, strict=True)]
        places += [(frame.uses.get(root, []), outputs[name].address) for name, (root, _, _) in self._fresh.items()]
        for uses, address in places:
            for launch, argument, offset in uses:
                moving[launch].set(argument, address + offset)
        graph, frame.graph = frame.graph, None
        launches = [moving.get(index, launch) for index, launch in enumerate(frame.launches)]
        if graph is None:
            graph = LaunchGraph(frame.driver, launches)
        else:
            # It had other arguments, and may have had other sizes.
            for index, launch in enumerate(launches):
                graph.update(index, launch)
        replay = Replay(graph, moving, frame.stream, frame.flag.address)
        plain = [replay.plain(uses) for uses in self._input_uses]
        return _Set(replay, outputs, None, addresses.copy(), plain, owned, _counts(owned, outputs))

    def _results(self) -> tuple[dict[str, Any], list[object]]:
        """Results in new memory by name, and all that owns it."""
        frame = self._frame
        outputs: dict[str, Any] = dict.fromkeys(frame.plan.graph.outputs)
        owned: list[object] = []
        for name, (root, shape, dtype) in self._fresh.items():
            buffer = frame.bound.new(frame.memory.number(root.tensor.bytes))
            outputs[name] = DeviceArray(frame.bound.lease(buffer, self._check), shape, dtype)
            owned += (outputs[name], outputs[name].lease)
        return outputs, owned

    def _renew(self, one: _Set) -> None:
        """Give a set other memory: the caller has its results."""
        outputs, owned = self._results()
        for name, (root, _, _) in self._fresh.items():
            for launch, argument, offset in self._frame.uses.get(root, ()):
                one.replay.set(launch, argument, outputs[name].address + offset)
        one.outputs, one.owned, one.counts = outputs, owned, _counts(owned, outputs)

    def closed(self) -> DeviceFrame | None:
        """The frame, which no run uses from now on; it takes a graph along. None where a run uses it now."""
        if not self._lock.acquire(False):
            return None
        try:
            self._is_closed = True
            if self._sets:
                self._frame.graph = self._sets[0].replay.graph
                self._frame.changed = set(range(len(self._frame.launches)))
            self._sets = []
            return self._frame
        finally:
            self._lock.release()


def _counts(owned: list[object], _: Mapping[str, object]) -> list[int]:
    """The references of results that nothing but the dictionary of outputs holds."""
    return [*map(getrefcount, owned)]


__all__ = ["RepeatedRun"]
