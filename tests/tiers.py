"""Tiers of tests: quick (`make quick`, while you work), standard (`make test`) and thorough (`.ci/run`).

Without one, every case runs, as CI does at night.

| | quick | standard | thorough | all |
|---|---|---|---|---|
| a test | its first case | up to 3 cases | up to 10 cases | every case |
| marked `slow` | | its first case | its first case | every case |
| marked `exhaustive` | | | its first case | every case |

Cases are spread evenly, the first and the last among them. A test that compares every fused op (a parameter `op`)
counts once for each op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Tier:
    """How many cases run of each test, at most."""

    fast: int
    slow: int
    exhaustive: int

    def of(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        """Return the cases that run."""
        return [case for cases in _by_test(items).values() for case in _spread(cases, self._most(cases[0]))]

    def _most(self, case: pytest.Item) -> int:
        if _is_marked("exhaustive", case):
            return self.exhaustive
        return self.slow if _is_marked("slow", case) else self.fast


QUICK = Tier(fast=1, slow=0, exhaustive=0)
STANDARD = Tier(fast=3, slow=1, exhaustive=0)
THOROUGH = Tier(fast=10, slow=1, exhaustive=1)


def _spread(cases: Sequence[pytest.Item], most: int) -> list[pytest.Item]:
    """Return at most that many cases: the first, the last, and others evenly between them."""
    if most < 2 or len(cases) <= most:
        return list(cases[:most])
    return [cases[number * (len(cases) - 1) // (most - 1)] for number in range(most)]


def first_of_each(parametrize: Callable[..., None]) -> Callable[..., None]:
    """Return what makes tests of the first value of a list of parameters only, or of all of them for `op`."""

    def first(names: str | Sequence[str], values: Iterable[Any], *args: Any, **options: Any) -> None:
        kept = list(values)
        if names != "op":
            kept = [value for value in kept if not _is_exhaustive(value)][:1] or kept[:1]
            if isinstance(options.get("ids"), Iterable):
                options["ids"] = list(options["ids"])[: len(kept)]
        parametrize(names, kept, *args, **options)

    return first


def _is_exhaustive(value: Any) -> bool:
    return any(mark.name == "exhaustive" for mark in getattr(value, "marks", ()))


def serial_last(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return all tests, those that run alone after the others."""
    return sorted(items, key=lambda item: _is_marked("serial", item))


def _by_test(items: Iterable[pytest.Item]) -> dict[Hashable, list[pytest.Item]]:
    """Return the cases of each test, exhaustive ones apart from others."""
    groups: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_test_of(item), []).append(item)
    return groups


def _test_of(item: pytest.Item) -> Hashable:
    spec = getattr(item, "callspec", None)
    op = None if spec is None else getattr(spec.params.get("op"), "name", None)
    return item.path, getattr(item, "originalname", item.name), op, _is_marked("exhaustive", item)


def _is_marked(mark: str, item: pytest.Item) -> bool:
    return item.get_closest_marker(mark) is not None
