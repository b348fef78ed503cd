"""CUDA graphs: launches that one call of the driver enqueues, and whose arguments change without a new capture."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int, c_void_p

from dovetail.targets.cuda.driver.api import KernelNodeParams
from dovetail.targets.cuda.driver.driver import Driver, PreparedLaunch
from dovetail.targets.cuda.driver.streams import CAPTURES, NON_BLOCKING, Event

_RELAXED = 2
"""A capture that other threads of the process do not disturb."""
_ACTIVE = 1
_WITH_EDGES = "cuStreamGetCaptureInfo_v3"


class LaunchGraph:
    """Launches in their order as a graph. Nodes without blocks are disabled, so that every launch has its node."""

    def __init__(self, driver: Driver, launches: Sequence[PreparedLaunch], events: Sequence[Event] = ()) -> None:
        """`events`, if any, are recorded before each launch and after the last one."""
        self.driver = driver
        self._graph = self.handle = 0
        self.nodes: list[int] = []
        """The node of each launch, the last one where a library makes several."""
        graph = c_void_p()
        stream = c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        try:
            with CAPTURES:
                driver.call("cuStreamBeginCapture_v2", stream, _RELAXED)
                try:
                    self._capture(stream.value or 0, launches, events)
                finally:
                    driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        finally:
            driver.quietly("cuStreamDestroy_v2", stream)
        self._graph = graph.value or 0
        handle = c_void_p()
        driver.call("cuGraphInstantiateWithFlags", ctypes.byref(handle), self._graph, 0)
        self.handle = handle.value or 0
        self._enabled = [True] * len(launches)
        for index, launch in enumerate(launches):
            self._enable(index, bool(launch.grid))

    def _capture(self, stream: int, launches: Sequence[PreparedLaunch], events: Sequence[Event]) -> None:
        for index, launch in enumerate(launches):
            if events:
                events[index].record(stream, captured=True)
            launch.enqueue_blocks(max(launch.grid, 1), stream, in_order=bool(events))
            self.nodes.append(self._last(stream))
        if events:
            events[len(launches)].record(stream, captured=True)

    def _last(self, stream: int) -> int:
        """The node that a capture added last."""
        status, nodes, count = c_int(), POINTER(c_void_p)(), ctypes.c_size_t()
        captured = (ctypes.byref(status), None, None, ctypes.byref(nodes))
        if _WITH_EDGES in self.driver.functions:
            # The older function refuses to leave out that a node starts before the one before it has ended.
            edges = c_void_p()
            self.driver.call(_WITH_EDGES, stream, *captured, ctypes.byref(edges), ctypes.byref(count))
        else:
            self.driver.call("cuStreamGetCaptureInfo_v2", stream, *captured, ctypes.byref(count))
        assert status.value == _ACTIVE and count.value == 1, "a chain of launches ends in one node"
        return nodes[0] or 0

    def _enable(self, index: int, enabled: bool) -> None:
        if self._enabled[index] != enabled:
            self.driver.call("cuGraphNodeSetEnabled", self.handle, self.nodes[index], int(enabled))
            self._enabled[index] = enabled

    def update(self, index: int, launch: PreparedLaunch) -> None:
        """Give a node other arguments, or another grid, for runs from now on; what is fixed has those that it had."""
        self._enable(index, bool(launch.grid))
        if launch.grid and not launch.is_fixed:
            params = ctypes.byref(self.params(launch))
            self.driver.call("cuGraphExecKernelNodeSetParams_v2", self.handle, self.nodes[index], params)

    @staticmethod
    def params(launch: PreparedLaunch) -> KernelNodeParams:
        """A launch as its node has it; the arguments are read from the memory of the launch."""
        shape = (launch.grid, 1, 1, launch.block, 1, 1, launch.shared_bytes)
        arguments = ctypes.cast(launch.pointers, c_void_p)
        return KernelNodeParams(launch.function.handle, *shape, arguments, None, None, None)

    def launch(self, stream: int) -> None:
        """Enqueue all launches."""
        self.driver.call("cuGraphLaunch", self.handle, stream)

    def __del__(self) -> None:
        if self.handle:
            self.driver.quietly("cuGraphExecDestroy", self.handle)
        if self._graph:
            self.driver.quietly("cuGraphDestroy", self._graph)


__all__ = ["LaunchGraph"]
