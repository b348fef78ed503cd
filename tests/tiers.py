"""Tiers of tests: quick (`make quick`, while you work) and standard (`make test`). Without one, every case runs.

| | quick | standard | all (CI) |
|---|---|---|---|
| a test | its first case | its first, middle and last case | every case |
| marked `slow` | | its first case | every case |
| marked `exhaustive` | | | every case |

A test that compares every fused op (a parameter `op`) counts once for each op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest

Groups = dict[Hashable, list[pytest.Item]]


def quick_ones(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the first case of each test that is fast."""
    return [cases[0] for cases in _by_test(items).values() if not _is_marked("slow", cases[0])]


def standard_ones(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the first case of each slow test, and up to three of each other one."""
    chosen: list[pytest.Item] = []
    for cases in _by_test(items).values():
        last = 0 if _is_marked("slow", cases[0]) else len(cases) - 1
        chosen += [cases[at] for at in sorted({0, last // 2, last})]
    return chosen


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


def _by_test(items: Iterable[pytest.Item]) -> Groups:
    """Return the cases of each test, without exhaustive ones."""
    groups: Groups = {}
    for item in items:
        if not _is_marked("exhaustive", item):
            groups.setdefault(_test_of(item), []).append(item)
    return groups


def _test_of(item: pytest.Item) -> Hashable:
    spec = getattr(item, "callspec", None)
    op = None if spec is None else getattr(spec.params.get("op"), "name", None)
    return item.path, getattr(item, "originalname", item.name), op


def _is_marked(mark: str, item: pytest.Item) -> bool:
    return item.get_closest_marker(mark) is not None
