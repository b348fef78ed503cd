"""The quick tier: what one runs while one works. CI and `make test` run everything."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Hashable, Iterator
from pathlib import Path

import pytest

LEFT_OUT = (
    "tests/bench/",
    "tests/browser/",
    "tests/codegen/test_generated.py",
    "tests/conformance/",
    "tests/hostile/",
    "tests/models/",
    "tests/page/",
    "tests/test_examples.py",
    "tests/test_rooms.py",
    "tests/traps/test_defences.py",
    "tests/traps/test_tests.py",
    "tests/zoo/",
)
"""Files that start processes, or look at everything there is."""
SLOW = Path(__file__).with_name("slow.txt")
"""Tests whose first case takes long; `make slow` measures and rewrites it."""
LONG = 0.15
"""Seconds of processor time that make a test slow."""


def quick_ones(items: list[pytest.Item]) -> list[pytest.Item]:
    """The first case of each test, of the laws the first of each op, without what is serial, slow or left out."""
    slow = frozenset(SLOW.read_text(encoding="utf-8").split())
    return [item for item in _first_cases(items) if not _takes_long(item, slow)]


def _first_cases(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    seen: set[Hashable] = set()
    for item in items:
        case = _case(item)
        if case not in seen:
            seen.add(case)
            yield item


def _case(item: pytest.Item) -> Hashable:
    """The test without its parameters; laws keep their op."""
    spec = getattr(item, "callspec", None)
    op = None if spec is None else getattr(spec.params.get("op"), "name", None)
    return item.path, getattr(item, "originalname", item.name), op


def _takes_long(item: pytest.Item, slow: Collection[str]) -> bool:
    return (
        item.get_closest_marker("serial") is not None
        or item.nodeid.startswith(LEFT_OUT)
        or item.nodeid.partition("[")[0] in slow
    )


class Stopwatch:
    """Notes which tests are slow while first cases run in one process, and rewrites the list."""

    def __init__(self) -> None:
        self.slow: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began = time.process_time()
        done = yield
        if time.process_time() - began >= LONG:
            self.slow.append(item.nodeid.partition("[")[0])
        return done

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [i for i in _first_cases(items) if not _takes_long(i, ())]

    def pytest_sessionfinish(self) -> None:
        SLOW.write_text("\n".join([*sorted(set(self.slow)), ""]), encoding="utf-8")
