"""A graph that one call enqueues: what changed is written into its nodes, and it is launched.

The call is compiled code that Python calls as it calls its own functions, at a tenth of the price of two calls through
ctypes. It gives up Python's lock, so that other threads run while the driver works. Until the code is compiled, and
where a driver's functions are not machine code, Python does the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_int64, c_void_p
from functools import partial
from typing import Any, TypeAlias

from dovetail.targets.cuda.driver.driver import PreparedLaunch
from dovetail.targets.cuda.runs.graph import LaunchGraph
from dovetail.targets.cuda.runs.launch_code import REFUSED, Node, Record, launch_code

_CONTEXT, _UPDATE, _LAUNCH = "cuCtxSetCurrent", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch"
_FUNCTION = type(ctypes.pythonapi.Py_IncRef).__base__ or object
"""The type of all functions that ctypes calls."""


Uses: TypeAlias = list[tuple[Any, int, int, Node]]
"""Arguments of launches that are the address of one array and some bytes, and the nodes of those launches."""


class Replay:
    """A graph on a stream, and the launches of it whose arguments change from run to run, by index."""

    def __init__(self, graph: LaunchGraph, moving: Mapping[int, PreparedLaunch], stream: int, flag: int) -> None:
        """`flag` is the address of a word that is not 0 once a kernel has refused its operands."""
        self.graph, self._moving = graph, moving
        self._stream, self._flag = stream, c_int64.from_address(flag)
        self._params = [graph.params(launch) for launch in moving.values()]
        nodes = [(graph.nodes[i], ctypes.addressof(p), 0) for i, p in zip(moving, self._params, strict=True)]
        self._all = (Node * max(1, len(nodes)))(*nodes)
        self._nodes = {index: self._all[at] for at, index in enumerate(moving)}
        self.launch: Callable[[], int] = self._launch
        """Write what changed into the nodes, and enqueue the graph; gives the driver's status, or REFUSED."""
        self._record: Record | None = None
        functions = [_address(graph.driver.functions[name]) for name in (_CONTEXT, _UPDATE, _LAUNCH)]
        if all(functions):
            place = ctypes.addressof(self._all)
            self._record = Record(graph.driver.context, graph.handle, stream, flag, *functions, place, len(nodes))
            launch_code.start()

    def set(self, index: int, argument: int, address: int) -> None:
        """Point an argument of a launch elsewhere, from the next launch of the graph on."""
        launch = self._moving[index]
        launch.set(argument, address)
        if launch.grid:
            # It stays so until the driver has taken it: what fails, or is interrupted, is repeated.
            self._nodes[index].changed = 1

    def plain(self, uses: Sequence[tuple[int, int, int]]) -> Uses | None:
        """The arguments, offsets and nodes that read one array, for what writes them itself; None where it must not."""
        launches = [self._moving[index] for index, _, _ in uses]
        if any([launch.maps or not launch.grid for launch in launches]):
            return None
        return [(self._moving[i].words, argument, offset, self._nodes[i]) for i, argument, offset in uses]

    def _launch(self) -> int:
        if self._record is not None and launch_code.function is not None:
            self.launch = partial(launch_code.function, ctypes.addressof(self._record))
            return self.launch()
        if self._flag.value:
            return REFUSED
        for index, node in self._nodes.items():
            if node.changed:
                self.graph.update(index, self._moving[index])
                node.changed = 0
        return self.graph.driver.status_of(_LAUNCH, self.graph.handle, self._stream)


def _address(function: Any) -> int:
    """The address of a function that is machine code; 0 where it is not."""
    return (ctypes.cast(function, c_void_p).value or 0) if isinstance(function, _FUNCTION) else 0


__all__ = ["Replay", "Uses"]
