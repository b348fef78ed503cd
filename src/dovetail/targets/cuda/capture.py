"""Runs as CUDA graphs: all copies and kernels of a run, enqueued by one call of the driver.

A graph has fixed addresses: its own arena and outputs, and pinned memory of the host for inputs and results. Inputs on
the device are read where they are, so a graph serves one set of addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_void_p
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from dovetail.errors import BindError
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.targets.cuda.driver import Device, Replayable
from dovetail.targets.cuda.memory import CudaBuffer
from dovetail.targets.runtime.device_array import DeviceArray, Lease

_WORD = 8


class Run(Protocol):
    """What is captured: one run, with its buffers."""

    inputs: Mapping[str, Array | DeviceArray]
    leases: dict[Value | str, Lease]

    def launch(self, stream: int) -> None:
        """Launch every kernel."""
        ...

    def dense_outputs(self) -> dict[str, tuple[int, tuple[int, ...], Value]] | None:
        """The address and shape of every output; None where one is not dense."""
        ...

    def input_buffer(self, name: str) -> CudaBuffer:
        """The memory of the device that holds an input."""
        ...

    def owner(self, name: str) -> CudaBuffer | None:
        """The buffer that an output has for itself; None where it shares one."""
        ...

    def status(self) -> CudaBuffer | None:
        """The error flag of runs; None where no kernel sets it."""
        ...

    def reset_status(self) -> None:
        """Clear the error flag."""
        ...


class PinnedBuffer:
    """Memory of the host that the device copies from and to without the processor."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self._device = device
        found = c_void_p()
        device.call("cuMemAllocHost_v2", ctypes.byref(found), max(nbytes, 1))
        self.address = found.value or 0
        self.array: Array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self._device.quietly("cuMemFreeHost", self.address)


@dataclass(slots=True)
class _Output:
    address: int
    shape: tuple[int, ...]
    value: Value
    pinned: PinnedBuffer | None
    buffer: CudaBuffer | None
    is_held: bool = False
    """Whether a device array of the last run is in use."""

    def give_back(self) -> None:
        self.is_held = False


class Captured:
    """A run that was captured."""

    def __init__(
        self,
        device: Device,
        graph: Replayable,
        run: Run,
        staged: Mapping[str, PinnedBuffer],
        outputs: Mapping[str, _Output],
        status: PinnedBuffer | None,
        *,
        to_host: bool,
    ) -> None:
        self.device, self.graph, self.run = device, graph, run
        self.staged, self.outputs, self.to_host = staged, outputs, to_host
        self._status = None if status is None else status.array.view(np.int64)
        self._pinned_status = status

    def replay(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Array | DeviceArray] | None:
        """Run it again; None where a result of the last run is still in use, or where a kernel refuses its operands.

        Where nothing is waited for, reading a result raises the refusal, or the next run.
        """
        if any([out.is_held for out in self.outputs.values()]):
            return None
        self.check()
        for name, pinned in self.staged.items():
            given = inputs[name]
            assert isinstance(given, np.ndarray), "the key of the graph says which inputs are on the host"
            pinned.array.view(given.dtype).reshape(given.shape)[...] = given
        self.graph.launch()
        if self.to_host:
            self.graph.synchronize()
            if self._status is not None and self._status[0]:
                return None
        return {name: self._result(out) for name, out in self.outputs.items()}

    def check(self) -> None:
        """Raise what a kernel of the last run has refused."""
        if self._status is not None and self._status[0] and not self.to_host:
            self._status[0] = 0
            self.run.reset_status()
            raise BindError(
                "an index of an earlier run was out of range",
                hint='run it with outputs="host", which says which one',
            )

    def _result(self, out: _Output) -> Array | DeviceArray:
        if out.pinned is not None:
            return np.array(out.pinned.array.view(out.value.dtype.numpy).reshape(out.shape))
        assert out.buffer is not None, "outputs on the device have buffers of their own"
        out.is_held = True
        lease = Lease(out.buffer, partial(_given_back, self, out), self.check if self._status is not None else None)
        return DeviceArray(lease, out.shape, out.value.dtype)


def _given_back(captured: Captured, out: _Output) -> None:
    """The graph, whose memory this is, lives as long as its results."""
    out.give_back()


def capture(device: Device, run: Run, *, to_host: bool) -> Captured | None:
    """Capture a run; None where an output has no memory of its own, or the device has no graphs."""
    found = run.dense_outputs()
    if found is None:
        return None
    staged = {n: PinnedBuffer(device, x.nbytes) for n, x in run.inputs.items() if isinstance(x, np.ndarray)}
    outputs: dict[str, _Output] = {}
    for name, (address, shape, value) in found.items():
        nbytes = int(np.prod(shape)) * value.dtype.itemsize
        buffer = run.owner(name)
        if not to_host and buffer is None:
            return None
        outputs[name] = _Output(address, shape, value, PinnedBuffer(device, nbytes) if to_host else None, buffer)

    flag = run.status()
    status = None if flag is None else PinnedBuffer(device, _WORD)
    if status is not None:
        status.array[:] = 0

    def enqueue(stream: int) -> None:
        for name, pinned in staged.items():
            target = run.input_buffer(name).address
            if pinned.array.nbytes:
                device.call("cuMemcpyHtoDAsync_v2", target, pinned.address, pinned.array.nbytes, stream)
        run.launch(stream)
        for out in outputs.values():
            if out.pinned is not None:
                device.call("cuMemcpyDtoHAsync_v2", out.pinned.address, out.address, out.pinned.array.nbytes, stream)
        if status is not None and flag is not None:
            device.call("cuMemcpyDtoHAsync_v2", status.address, flag.address, _WORD, stream)

    return Captured(device, device.capture(enqueue), run, staged, outputs, status, to_host=to_host)


__all__ = ["Captured", "PinnedBuffer", "Run", "capture"]
