"""The dataclasses that stored jobs may hold: a stored file can name these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
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

    def __init__(self, kinds: Mapping[str, type[Any]]) -> None:
        """`kinds` are the target's own, in addition to `CORE`."""
        self._kinds = {**CORE, **kinds}
        self._names = {kind: name for name, kind in self._kinds.items()}
        assert len(self._names) == len(CORE) + len(kinds), "every name and every class is registered once"
        assert all(map(is_dataclass, self._names)), "only dataclasses are stored"

    def name_of(self, kind: type[Any]) -> str | None:
        """The name of a class; None where it is not registered."""
        return self._names.get(kind)

    def kind(self, name: str) -> type[Any]:
        """The class of a name; a name that is not registered is refused."""
        found = self._kinds.get(name)
        if found is None:
            raise ValueError(f"{name} is not a record of a stored job")
        return found

    @property
    def kinds(self) -> Mapping[str, type[Any]]:
        return MappingProxyType(self._kinds)


__all__ = ["CORE", "Registry"]
