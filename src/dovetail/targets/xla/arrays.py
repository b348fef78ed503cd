"""Arrays on the devices of XLA: put there once, read back when someone asks, split over a mesh in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail.errors import BindError
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.device_array import DeviceArray, Lease
from dovetail.targets.xla.package import jax, wide_types

_DISTINCT = 48
"""Bits between the made-up addresses of two arrays, more than the bytes of either."""


class XlaBuffer:
    """An array of JAX. A run that is donated it puts the new array in its place."""

    __slots__ = ("array", "device")

    def __init__(self, array: Any, device: str) -> None:
        self.array = array
        self.device = device

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    @property
    def address(self) -> int:
        """The address on one device; a split array has many, and one number of its own instead."""
        if len(self.array.sharding.device_set) == 1:
            return int(self.array.unsafe_buffer_pointer())
        return id(self) << _DISTINCT

    @property
    def host_view(self) -> Array | None:
        return None

    def copy_from_host(self, source: Array) -> None:
        self.array = put(source.reshape(self.array.shape), self.array.sharding)

    def copy_to_host(self, target: Array) -> None:
        target.reshape(-1)[...] = fetched(self.array).reshape(-1)

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        if len(self.array.sharding.device_set) > 1:
            raise BindError("an array that is split over devices has no one address", hint="copy it: array.numpy()")
        return self.array.__dlpack_device__()


def device_array(array: Any, element: DType, device: str) -> DeviceArray:
    """An array of JAX as a device array."""
    return DeviceArray(Lease(XlaBuffer(array, device)), tuple(array.shape), element)


def buffer_of(array: DeviceArray) -> XlaBuffer:
    """Return the buffer of a device array of an XLA runner."""
    buffer = array.lease.buffer
    assert isinstance(buffer, XlaBuffer), "arrays of other devices are refused before"
    return buffer


def put(array: Array, sharding: Any) -> Any:
    """A copy of an array on the devices; of several processes each puts its own parts."""
    own = np.array(array, order="C")  # JAX may keep the memory that it gets
    with wide_types():
        if sharding is None:
            return jax.device_put(own)
        if jax.process_count() == 1:
            return jax.device_put(own, sharding)
        return jax.make_array_from_callback(own.shape, sharding, own.__getitem__)


def fetched(array: Any) -> Array:
    """The elements on the host; parts on devices of other processes are gathered by all of them together."""
    if not (array.is_fully_addressable or array.is_fully_replicated):
        sharding = jax.sharding.NamedSharding(array.sharding.mesh, jax.sharding.PartitionSpec())
        with wide_types():
            array = jax.jit(_same, out_shardings=sharding)(array)
    return np.array(array)


def _same(array: Any) -> Any:
    return array


def any_set(flags: list[Any]) -> bool:
    """Whether a flag is set, as far as this process sees: its peers look at theirs."""
    return any(bool(np.asarray(part.data).any()) for flag in flags for part in flag.addressable_shards)


def on_host(inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Array]:
    """Copies of inputs for the reference."""
    return {n: a.numpy() if isinstance(a, DeviceArray) else np.array(a) for n, a in inputs.items()}


__all__ = ["XlaBuffer", "any_set", "buffer_of", "device_array", "fetched", "on_host", "put"]
