"""Where inputs and outputs of a run are: arrays of the host, or arrays that stay on a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from dovetail.errors import BindError, OptionError
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.targets.runtime.arrays.buffer import HostAllocator
from dovetail.targets.runtime.arrays.device_array import HOST, DeviceArray, host_array, refuse_other_device
from dovetail.targets.runtime.arrays.foreign import adopted, is_foreign

Place: TypeAlias = Literal["host", "device"]
_ALIGNMENT = 64


def check_place(outputs: str) -> None:
    """Raise unless it says where outputs go."""
    if outputs not in ("host", "device"):
        raise OptionError(f"outputs={outputs!r}", hint='outputs is "host" or "device"')


def has_device_arrays(inputs: Mapping[str, Array | DeviceArray]) -> bool:
    return any(isinstance(array, DeviceArray) or is_foreign(array) for array in inputs.values())


def with_adopted(inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Array | DeviceArray]:
    """The inputs with arrays of other libraries on a device as device arrays, without a copy."""
    return {name: adopted(name, array) if is_foreign(array) else array for name, array in inputs.items()}


def on_host(inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Array]:
    """The inputs of a program that runs in host memory: device arrays of the host as views, without a copy."""
    found: dict[str, Array] = {}
    for name, array in with_adopted(inputs).items():
        if isinstance(array, DeviceArray):
            refuse_other_device(name, array, HOST)
            array = array.numpy()
        found[name] = array
    return found


def stand_ins(inputs: Mapping[str, Array | DeviceArray], device: str) -> dict[str, Array]:
    """The inputs of a program that runs on another device, as arrays that have their dtypes and shapes."""
    found: dict[str, Array] = {}
    for name, array in inputs.items():
        if isinstance(array, DeviceArray):
            refuse_other_device(name, array, device)
            assert array.lease is not None, "one that was freed is refused"
            array = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        found[name] = array
    return found


def copied_to_host_memory(array: Array, value: Value) -> DeviceArray:
    """A copy of an array in memory of the runtime, for programs that run in host memory."""
    buffer = HostAllocator(_ALIGNMENT, "an array").allocate(array.nbytes)
    there = buffer.array.view(array.dtype).reshape(array.shape)
    there[...] = array
    return host_array(there, value.dtype)


def check_donated_arrays(
    donated: Iterable[str], inputs: Mapping[str, Array | DeviceArray], outputs: Place
) -> tuple[str, ...]:
    """Raise unless a run can overwrite the device arrays of donated inputs; gives the names of those on the host."""
    there: list[str] = []
    spans: list[tuple[int, int, str]] = []
    for name, array in inputs.items():
        if isinstance(array, DeviceArray) and array.nbytes:
            spans.append((array.address, array.address + array.nbytes, name))
    spans.sort()
    names = tuple(donated)
    for (_, end, one), (start, _, other) in pairwise(spans):
        if start < end and (one in names or other in names):
            first, second = (one, other) if one in names else (other, one)
            raise BindError(
                f"the donated input {first} shares memory with the input {second}",
                hint="pass a copy: a run overwrites what is donated",
            )
    for name in names:
        if not isinstance(inputs[name], DeviceArray):
            if outputs == "device":
                raise BindError(
                    f"the input {name} is donated and on the host, and outputs stay on the device",
                    hint=f"put it there first: program.to_device({{{name!r}: array}})",
                )
            there.append(name)
    return tuple(there)


__all__ = [
    "Place",
    "check_donated_arrays",
    "check_place",
    "copied_to_host_memory",
    "has_device_arrays",
    "on_host",
    "stand_ins",
    "with_adopted",
]
