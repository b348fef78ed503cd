"""Guards: named facts that must hold before an op may fuse. The name is the code in reports."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.remedy import Remedy


@dataclass(frozen=True, slots=True)
class Guard:
    """A fact about what a pattern caught, with the words for when it does not hold."""

    name: str
    holds: Callable[..., bool]
    reason: str
    hint: str
    asks: tuple[str, ...]
    remedy: Remedy | None = None
    """What would make it hold, for those who ask what that would bring."""

    @staticmethod
    def of(holds: Callable[..., bool], reason: str, hint: str) -> Guard:
        return Guard(holds.__name__, holds, reason, hint, tuple(inspect.signature(holds).parameters))

    def check(self, names: Mapping[str, Any]) -> bool:
        return bool(self.holds(**{name: names.get(name) for name in self.asks}))

    def explain(self, names: Mapping[str, Any]) -> str:
        """What was found, in the words of the declaration."""
        return self.reason.format(**names)
