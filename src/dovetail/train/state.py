"""The arrays that a training step updates in place: on the host, or on the devices that run the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dovetail.ir.literal import Array
from dovetail.runtime.program import Program
from dovetail.targets.runtime.arrays.device_array import HOST, DeviceArray


class State:
    """Arrays by name. Where the device of a program has memory of its own they stay there between steps."""

    def __init__(self, arrays: Mapping[str, Array], programs: Sequence[Program]) -> None:
        self.like = {name: np.broadcast_to(np.zeros((), a.dtype), a.shape) for name, a in arrays.items()}
        """Arrays of the same shapes and dtypes, which take no memory."""
        self.arrays: dict[str, Array | DeviceArray] = dict(arrays)
        self.on_device = False
        # The smallest first: it tells whether there is such a device, and a large one would be copied for that.
        for name in sorted(arrays, key=lambda n: arrays[n].nbytes):
            reads = next(p for p in programs if any(v.attrs["name"] == name for v in p.graph.inputs))
            there = reads.to_device({name: arrays[name]})[name]
            if there.device == HOST:
                break  # the host's own arrays will do
            self.arrays[name], self.on_device = there, True

    def only(self, names: Iterable[str]) -> dict[str, Array | DeviceArray]:
        """Return some of the arrays, to pass to a run."""
        return {name: self.arrays[name] for name in names}

    def host(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Copy the arrays to the host; all processes of a mesh must call it together."""
        arrays: dict[str, Array] = {}
        for name in self.arrays if names is None else names:
            array = self.arrays[name]
            arrays[name] = array.numpy() if isinstance(array, DeviceArray) else array
        return arrays

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Put elements in place of those before."""
        for name, new in arrays.items():
            array = self.arrays[name]
            if isinstance(array, DeviceArray):
                array.lease.buffer.copy_from_host(np.ascontiguousarray(new))
            else:
                array[...] = new

    def clear(self) -> None:
        """Write zeros everywhere."""
        self.write(self.like)


def ran(program: Program, inputs: Mapping[str, Array | DeviceArray], names: Iterable[str], state: State) -> list[float]:
    """Run a step: the outputs that are one number each. All others stay where they are."""
    if state.on_device:
        there = program.run(inputs, outputs="device")
        return [float(np.squeeze(there[name].numpy())) for name in names]
    results = program.run(inputs)
    return [float(np.squeeze(results[name])) for name in names]


__all__ = ["State", "ran"]
