"""A CUDA driver that does nothing and takes no time, so that a machine without a GPU shows what calls take beside it.

Functions that runs call are machine code that returns at once, called as those of the real driver are: through ctypes.
What is called once, such as an allocation or a capture, is the fake driver of the tests.
"""

from __future__ import annotations

import ctypes
from typing import Any

from dovetail.targets.cpu.jit import compile_text
from dovetail.targets.cuda.driver.api import SIGNATURES
from tests.targets.cuda.fake_driver import FakeLibrary
from tests.targets.cuda.fake_graph import Node
from tests.targets.cuda.simulated import SimulatedDriver

RUN = (
    "cuCtxSetCurrent", "cuEventRecord", "cuEventSynchronize", "cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch",
    "cuGraphNodeSetEnabled", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2",
    "cuStreamSynchronize", "cuTensorMapEncodeTiled",
)  # fmt: skip
"""Functions that a run calls."""


class _Idle(FakeLibrary):
    """A library whose kernels do nothing."""

    def _run(self, node: Node) -> None:
        pass


class StubDriver(SimulatedDriver):
    """The simulated driver whose runs do nothing."""

    def __init__(self) -> None:
        super().__init__(_Idle(8 << 30))
        self._code = compile_text("define i32 @nothing() {\n  ret i32 0\n}\n")
        self.functions = {name: self.library[name] for name in self.library} | {n: self._nothing(n) for n in RUN}

    def _nothing(self, name: str) -> Any:
        return ctypes.CFUNCTYPE(ctypes.c_int, *SIGNATURES[name])(self._code.address("nothing"))


__all__ = ["StubDriver"]
