"""Packed weights, shared by the programs of a process that bind the same arrays."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array
from dovetail.targets.runtime.weights import Cell


@dataclass(frozen=True, slots=True)
class _Entry:
    """One packed array, with weak references to it and to the arrays that it was packed from."""

    owners: tuple[weakref.ref[Cell] | weakref.ref[Array], ...]
    packed: weakref.ref[Array]


class PackedWeightCache:
    """Packed arrays by layout and source arrays. It holds no strong reference: an entry dies with its programs."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    def get(self, layout: Hashable, cells: Sequence[Cell], pack: Callable[[], Array]) -> Array:
        """The packed form of these cells. Writeable arrays are packed again, and shared if equal."""
        constant = all(cell.is_constant for cell in cells)
        # The caller holds the arrays of the cells meanwhile.
        owners = tuple([cell if cell.is_constant else cell.array() for cell in cells])
        key = (layout, *map(id, owners))
        found = self._find(key, owners)
        if found is not None and constant:
            return found
        fresh = pack()
        if found is not None and _equal(found, fresh):
            return found
        self._add(key, owners, fresh)
        return fresh

    def _find(self, key: Hashable, owners: Sequence[Cell | Array]) -> Array | None:
        with self._lock:
            entry = self._entries.get(key)
        if entry is None or any(ref() is not owner for ref, owner in zip(entry.owners, owners, strict=True)):
            return None
        return entry.packed()

    def _add(self, key: Hashable, owners: Sequence[Cell | Array], packed: Array) -> None:
        def gone(_: object) -> None:
            if self._entries.get(key) is entry:
                self._entries.pop(key, None)

        entry = _Entry(tuple(map(weakref.ref, owners)), weakref.ref(packed, gone))
        with self._lock:
            self._entries[key] = entry

    def __len__(self) -> int:
        return len(self._entries)


def _equal(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


PACKED_WEIGHTS = PackedWeightCache()

__all__ = ["PACKED_WEIGHTS", "PackedWeightCache"]
