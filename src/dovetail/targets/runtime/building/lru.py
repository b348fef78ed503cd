"""A least-recently-used cache that several threads may use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Generic, TypeVar

from dovetail.dataclass import dataclass

V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    values: list[V] = field(default_factory=list[V])


class LRU(Generic[V]):
    """Values by key, each computed once; beyond `most`, the least recently used one is dropped."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[V]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key. Threads that need the same key wait for one of them to compute it; others do not wait."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
                while len(self._entries) > self.most:
                    self._entries.popitem(last=False)
            else:
                self._entries.move_to_end(key)
                if entry.values:
                    return entry.values[0]
        with entry.lock:
            if not entry.values:
                entry.values.append(make())
            return entry.values[0]

    def __len__(self) -> int:
        return len(self._entries)
