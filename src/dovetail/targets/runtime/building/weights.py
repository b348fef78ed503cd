"""Parameters by name. An array whose content a target keeps in a layout of its own can be freed, and recovered."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from dovetail.ir.literal import Array


class WeightCell:
    """One array, held, or let go together with how to make it again. Other holders of the array still have it."""

    def __init__(self, array: Array) -> None:
        self.shape: tuple[int, ...] = array.shape
        self.ndim = array.ndim
        self._held: Array | None = array
        self._seen = weakref.ref(array)
        self._again: Callable[[], Array] | None = None
        self._lock = threading.Lock()

    def array(self) -> Array:
        """The array itself while anybody holds it, else an equal one that is read-only."""
        with self._lock:
            array = self._held if self._held is not None else self._seen()
            if array is None:
                assert self._again is not None, "what is let go can be made again"
                array = self._again()
                array.flags.writeable = False
                self._seen = weakref.ref(array)
            return array

    def let_go(self, again: Callable[[], Array]) -> None:
        """Hold the array no longer; `again` makes an equal one."""
        with self._lock:
            if self._again is None:
                self._again = again
            self._held = None

    def is_of(self, array: Array) -> bool:
        """Whether it is this very array that it holds, or held while the array lived."""
        return self._held is array or self._seen() is array

    @property
    def is_constant(self) -> bool:
        """Whether what it holds can never change."""
        with self._lock:
            array = self._held if self._held is not None else self._seen()
        return array is None or is_constant(array)


class Weights(Mapping[str, Array]):
    """Arrays by name. Mappings that are derived from this one share its cells."""

    def __init__(self, arrays: Mapping[str, Array] | None = None) -> None:
        self.cells: dict[str, WeightCell] = {}
        if isinstance(arrays, Weights):
            self.cells = dict(arrays.cells)
        elif arrays is not None:
            self.cells = {name: cell_of(array) for name, array in arrays.items()}

    def __getitem__(self, name: str) -> Array:
        return self.cells[name].array()

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __contains__(self, name: object) -> bool:
        return name in self.cells

    def joined(self, others: Mapping[str, Array]) -> Weights:
        """These, and the others in place of those with the same name."""
        weights = Weights(self)
        weights.cells |= Weights(others).cells
        return weights

    def only(self, names: Mapping[str, object]) -> Weights:
        """Those of these names."""
        weights = Weights()
        weights.cells = {name: cell for name, cell in self.cells.items() if name in names}
        return weights


_cells: weakref.WeakValueDictionary[int, WeightCell] = weakref.WeakValueDictionary()
_cells_lock = threading.Lock()


def cell_of(array: Array) -> WeightCell:
    """A cell for an array; the same one again while what the array holds cannot change."""
    if not is_constant(array):
        return WeightCell(array)
    with _cells_lock:
        cell = _cells.get(id(array))
        if cell is None or not cell.is_of(array):
            cell = _cells[id(array)] = WeightCell(array)
        return cell


def is_constant(array: Array) -> bool:
    """Whether nothing can write to an array, by itself or by what it is a view of."""
    at: object = array
    while isinstance(at, np.ndarray):
        if at.flags.writeable:
            return False
        at = at.base  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    try:
        return at is None or memoryview(at).readonly  # pyright: ignore[reportArgumentType]
    except TypeError:
        return False


def owned(arrays: Mapping[str, Array]) -> Weights:
    """The arrays, with a read-only copy of each that its owner can still write to."""
    weights = Weights()
    weights.cells = {name: cell_of(a) if is_constant(a) else _copied(a) for name, a in arrays.items()}
    return weights


_copies: dict[int, tuple[weakref.ref[Array], weakref.ref[WeightCell]]] = {}
"""The last copy of an array, by the id of the array: programs that bind one array share its copy."""


def _copied(array: Array) -> WeightCell:
    """A cell with a copy of an array; the same one again while the array holds what it held."""
    key = id(array)
    entry = _copies.get(key)
    known = entry[1]() if entry is not None and entry[0]() is array else None
    if known is not None and _same_bytes(known.array(), array):
        return known
    copy = array.copy(order="K")
    copy.flags.writeable = False
    cell = WeightCell(copy)

    def gone(ref: weakref.ref[WeightCell]) -> None:
        if (kept := _copies.get(key)) is not None and kept[1] is ref:
            _copies.pop(key, None)

    with _cells_lock:
        _copies[key] = (weakref.ref(array), weakref.ref(cell, gone))
    return cell


def _same_bytes(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    plain = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (one, other)]
    return np.array_equal(plain[0], plain[1])


__all__ = ["WeightCell", "Weights", "cell_of", "is_constant", "owned"]
