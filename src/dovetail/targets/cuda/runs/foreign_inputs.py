"""Arrays of other libraries among the inputs of a runner: where the driver says they are, and as a run reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, cast

from dovetail.errors import BindError
from dovetail.ir.literal import Array
from dovetail.kernels.spec import ALIGNMENT
from dovetail.targets.cuda.driver.driver import DEFAULT_STREAM
from dovetail.targets.cuda.driver.memory import NAME, bytes_from
from dovetail.targets.cuda.driver.streams import order
from dovetail.targets.cuda.runs.bound_plan import BoundPlan
from dovetail.targets.cuda.runs.frame import Inputs
from dovetail.targets.runtime.arrays.device_array import DeviceArray
from dovetail.targets.runtime.arrays.foreign import ForeignBuffer, adopted, is_foreign

MOST_CHECKED = 256
"""Sets of addresses of donated arrays that are known to share no memory, and addresses of other libraries' arrays."""


class ForeignInputs:
    """Checks and prepares arrays of other libraries for the runs of a plan."""

    def __init__(self, bound: BoundPlan, overwritten: Sequence[str]) -> None:
        """`overwritten` are the donated inputs."""
        self._bound, self._driver, self._overwritten = bound, bound.driver, overwritten
        self._known: dict[int, int] = {}
        """Addresses of arrays, and how many bytes the driver knows there. An owner may free them and have less at the
        same address later: then an array whose shape is wrong is read after its end, as if nothing were checked."""
        self._lock = Lock()

    def adopted(self, inputs: Mapping[str, Any]) -> Inputs | None:
        """The inputs with device arrays in place of those of other libraries; None where one has to be checked."""
        arrays: dict[str, Array | DeviceArray] = {}
        unready: list[str] = []
        for name, x in inputs.items():
            if is_foreign(x):
                if name in self._overwritten or name not in self._bound.inputs:
                    return None  # the caller gets its own array back
                x = adopted(name, x)
                buffer = cast(ForeignBuffer, x.lease.buffer)
                if self._known.get(buffer.address, 0) < buffer.nbytes:
                    return None
                is_odd = buffer.address % ALIGNMENT
                if is_odd and self._overwritten:
                    return None  # arrays share no memory by the addresses that they come with
                if is_odd or buffer.stream is not None:
                    unready.append(name)
            arrays[name] = x
        for name in unready:
            arrays[name] = self._ready(cast(DeviceArray, arrays[name]))
        return arrays

    def checked(self, inputs: Inputs) -> Inputs:
        """The inputs as a run reads them, where device arrays of other libraries are what they say."""
        arrays = dict(inputs)
        for name, array in inputs.items():
            if isinstance(array, DeviceArray) and isinstance(buffer := array.lease.buffer, ForeignBuffer):
                if buffer.nbytes:
                    self._check_place(name, buffer.address, buffer.nbytes)
                if name in self._overwritten:
                    _refuse_overwriting(name, buffer)
                arrays[name] = self._ready(array)
        return arrays

    def _ready(self, array: DeviceArray) -> DeviceArray:
        """An array for a run, after the work of its stream: a copy, where it is not aligned."""
        buffer = cast(ForeignBuffer, array.lease.buffer)
        if buffer.stream is not None:
            order(self._driver, buffer.stream, DEFAULT_STREAM)
        if buffer.address % ALIGNMENT == 0:
            return array
        # The copy goes back to the pool after the run, where later work on the same stream may overwrite it.
        there = self._bound.new(buffer.nbytes)
        there.copy_from_device(buffer.address, buffer.nbytes)
        return DeviceArray(self._bound.lease(there), array.shape, array.element)

    def _check_place(self, name: str, address: int, nbytes: int) -> None:
        """Refuse memory that is not where it says: a kernel that reads it would lose the device."""
        where = self._driver.device_of(address)
        if where != self._driver.device:
            said = "is no memory of a device" if where is None else f"is on cuda:{where}"
            raise BindError(
                f"the input {name} at {address:#x} {said}, and the program runs on {NAME}",
                hint="pass an array of that device",
            )
        there = bytes_from(self._driver, address)
        if there is not None and there < nbytes:
            raise BindError(
                f"the input {name} takes {nbytes:,} bytes from {address:#x} on, and {there:,} are allocated there",
                hint="pass an array whose shape and strides stay within its memory",
            )
        with self._lock:
            if len(self._known) >= MOST_CHECKED:
                self._known.clear()
            self._known[address] = nbytes


def _refuse_overwriting(name: str, buffer: ForeignBuffer) -> None:
    """Raise unless a run may overwrite a donated array where it is."""
    if buffer.is_read_only:
        raise BindError(f"the input {name} is donated and read-only, and a run overwrites it", hint="pass a copy of it")
    if buffer.address % ALIGNMENT:
        raise BindError(
            f"the input {name} is donated and starts at {buffer.address:#x}, which is no multiple of {ALIGNMENT}",
            hint="pass an array of its own, such as x.clone()",
        )


__all__ = ["MOST_CHECKED", "ForeignInputs"]
