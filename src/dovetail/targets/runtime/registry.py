"""The dataclasses that stored jobs may hold: a stored file can name these and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any

from dovetail.kernels.spec import Grid, Job, Packed, Status, Template, Tiles, Tiling, Variant

CORE: Mapping[str, type[Any]] = MappingProxyType(
    {
        "job": Job,
        "template": Template,
        "variant": Variant,
        "packed": Packed,
        "status": Status,
        "tiles": Tiles,
        "grid": Grid,
        "tiling": Tiling,
    }
)
"""What the jobs of every target hold."""


class Registry:
    """Dataclasses by short names that stay the same when code moves. Nothing is imported by name."""

    def __init__(
        self, kinds: Mapping[str, type[Any]], later: Sequence[Callable[[], Mapping[str, type[Any]]]] = ()
    ) -> None:
        """`kinds` are the target's own, in addition to `CORE`; `later` gives more, one by one until a name is found."""
        self._kinds: dict[str, type[Any]] = {}
        self._names: dict[type[Any], str] = {}
        self._later = list(later)
        self._lock = threading.Lock()
        self._add({**CORE, **kinds})

    def _add(self, kinds: Mapping[str, type[Any]]) -> None:
        count = len(self._kinds) + len(kinds)
        self._kinds |= kinds
        self._names |= {kind: name for name, kind in kinds.items()}
        assert len(self._kinds) == len(self._names) == count, "every name and every class is registered once"
        assert all(map(is_dataclass, self._names)), "only dataclasses are stored"

    def _load(self, is_known: Callable[[], bool]) -> None:
        with self._lock:
            while self._later and not is_known():
                self._add(self._later.pop(0)())

    def name_of(self, kind: type[Any]) -> str | None:
        """The name of a class; None where it is not registered."""
        if kind not in self._names:
            self._load(lambda: kind in self._names)
        return self._names.get(kind)

    def kind(self, name: str) -> type[Any]:
        """The class of a name; a name that is not registered is refused."""
        if name not in self._kinds:
            self._load(lambda: name in self._kinds)
        kind = self._kinds.get(name)
        if kind is None:
            raise ValueError(f"{name} is not a record of a stored job")
        return kind

    @property
    def kinds(self) -> Mapping[str, type[Any]]:
        self._load(lambda: False)
        return MappingProxyType(self._kinds)


__all__ = ["CORE", "Registry"]
