"""Weights that were laid out for kernels, shared by the programs of a process that bind the same arrays."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.runtime.weights import Cell


@dataclass(frozen=True, slots=True)
class _Entry:
    """One layout of arrays; it holds neither them nor itself."""

    owners: tuple[weakref.ref[Cell] | weakref.ref[Array], ...]
    packed: weakref.ref[Array]


class Shelf:
    """Packed arrays by layout and by whose content they hold. What no program uses any more is not there."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.Lock()

    def get(self, layout: Hashable, cells: Sequence[Cell], pack: Callable[[], Array]) -> Array:
        """The layout of these cells. Arrays that their owner can change are packed anew, and shared if they did not."""
        constant = all(cell.is_constant for cell in cells)
        # Whoever asks holds the arrays of the cells meanwhile.
        owners = tuple([cell if cell.is_constant else cell.array() for cell in cells])
        key = (layout, *map(id, owners))
        found = self._find(key, owners)
        if found is not None and constant:
            return found
        fresh = pack()
        if found is not None and _equal(found, fresh):
            return found
        self._keep(key, owners, fresh)
        return fresh

    def _find(self, key: Hashable, owners: Sequence[Cell | Array]) -> Array | None:
        with self._lock:
            entry = self._entries.get(key)
        if entry is None or any(ref() is not owner for ref, owner in zip(entry.owners, owners, strict=True)):
            return None
        return entry.packed()

    def _keep(self, key: Hashable, owners: Sequence[Cell | Array], packed: Array) -> None:
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


SHELF = Shelf()

__all__ = ["SHELF", "Shelf"]
