"""The KV caches of all slots: arrays of the host, or of the card once a run has taken them there.

On a card each cache is one array with the slots after each other. A run is given the part of its slots, and writes its
rows there: nothing is copied from token to token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import UnsupportedError
from dovetail.ir.literal import Array
from dovetail.language.programs import Programs
from dovetail.models import kv_cache
from dovetail.runtime.program import Program
from dovetail.targets.runtime.arrays.device_array import DeviceArray, Lease

PADDING = 32
"""Rows of the cache that a run reads come in multiples of this, so that few sizes are prepared."""
FIRST_ROOM = 256
MOST_RANGES = 64
"""Ranges of slots whose arrays are kept: requests that come and leave make others."""


class Caches:
    """Keys and values of all layers, [slots, heads, room, width] each, by the names of the programs' inputs."""

    def __init__(self, programs: Programs, count: int) -> None:
        self._programs, self._count = programs, count
        self.room = 0
        """Rows of each slot."""
        self._here: dict[str, Array] = {}
        """The caches on the host; empty while they are on the card."""
        self._there: dict[str, DeviceArray] = {}
        """The caches on the card, with the rows of all slots as those of one: [1, heads, slots x room, width]."""
        self._parts: dict[tuple[int, int], dict[str, Array] | dict[str, DeviceArray]] = {}
        """The caches of some slots: runs that are given the same arrays check them once."""

    def of(self, low: int, high: int, program: Program) -> dict[str, Array] | dict[str, DeviceArray]:
        """The caches of neighbouring slots, where the program runs."""
        if self._programs.on_card and not self._there:
            # Every program takes one sequence with this many rows: that of several need not be compiled for it.
            joined = {name: cache.reshape(1, cache.shape[1], -1, cache.shape[3]) for name, cache in self._here.items()}
            self._there, self._here = program.to_device(joined), {}
        if (low, high) not in self._parts:
            if len(self._parts) >= MOST_RANGES:
                self._parts.clear()
            there = {name: self._part(cache, low, high) for name, cache in self._there.items()}
            self._parts[low, high] = there or {name: cache[low:high] for name, cache in self._here.items()}
        return self._parts[low, high]

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first rows of one slot to another."""
        for cache in self._here.values():
            cache[target, :, :count] = cache[source, :, :count]
        if self._there:
            program = self._programs.copy
            caches = self.of(target, target + 1, program)
            given = {f"source.{name}": cache for name, cache in self.of(source, source + 1, program).items()}
            program.run({"positions": self.keys(count), **given, **caches}, outputs="device")

    def keys(self, end: int) -> Array:
        """Positions of the rows that a run reads: rows after the last token are after all of its queries, too."""
        return np.arange(min(-(-end // PADDING) * PADDING, self.room))

    def make_room(self, length: int, held: int) -> None:
        """Make room for a number of tokens, and keep the first `held` rows; other rows are finite numbers."""
        if length <= self.room:
            return
        of = self._programs.shape
        most = -(-of.context // PADDING) * PADDING
        room = min(max(FIRST_ROOM, -(-length // PADDING) * PADDING, self.room * 3 // 2 // PADDING * PADDING), most)
        old = self._on_host()
        size = (self._count, of.kv_heads, room)
        for index in range(of.layers):
            wider = kv_cache.zeros(self._programs.kind, index, size, of.width)
            for name, cache in wider.items():
                if held:
                    cache[:, :, :held] = old[name][:, :, :held]
            self._here |= wider
        self.room, self._there, self._parts = room, {}, {}

    def _on_host(self) -> dict[str, Array]:
        """Copies of what is on the card, or what is on the host."""
        if not self._there:
            return self._here
        size = (self._count, self._programs.shape.kv_heads, self.room)
        return {name: cache.numpy().reshape(*size, -1) for name, cache in self._there.items()}

    def _part(self, cache: DeviceArray, low: int, high: int) -> DeviceArray:
        """Some slots of a cache, which stays its owner."""
        _, heads, _, width = cache.shape
        size = cache.nbytes // self._count
        owner = cache.lease
        if high - low < self._count:
            owner = Lease(_Part(owner, low * size, (high - low) * size))
        return DeviceArray(owner, (high - low, heads, self.room, width), cache.element)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Some bytes of a buffer, which its owner frees."""

    owner: Lease
    start: int
    nbytes: int

    @property
    def device(self) -> str:
        return self.owner.buffer.device

    @property
    def address(self) -> int:
        return self.owner.buffer.address + self.start

    @property
    def host_view(self) -> Array | None:
        whole = self.owner.buffer.host_view
        return None if whole is None else whole[self.start : self.start + self.nbytes]

    def copy_from_host(self, source: Array) -> None:
        raise _whole()

    def copy_to_host(self, target: Array) -> None:
        raise _whole()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        raise _whole()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.owner.buffer.__dlpack_device__()


def _whole() -> UnsupportedError:
    return UnsupportedError("a part of a cache that is copied by itself", hint="copy the whole cache")


__all__ = ["MOST_RANGES", "PADDING", "Caches"]
