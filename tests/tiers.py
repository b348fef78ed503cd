"""Tiers of tests: quick (while one works), standard (`make test`), exhaustive (the rest). CI runs the last two.

The exhaustive tier holds tests with `@pytest.mark.exhaustive`, and of the tests in tests/exhaustive.txt all cases but
one; laws keep one of each op. It runs tests of random examples again, with more of them. All other tests run with every
case in the standard tier. Plain pytest runs all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Generator, Hashable, Iterable, Iterator
from pathlib import Path

import pytest

LEFT_OUT = (
    "tests/bench/",
    "tests/browser/",
    "tests/codegen/test_generated.py",
    "tests/conformance/",
    "tests/frontends/torch/",
    "tests/fuzz/test_faults.py",
    "tests/hostile/",
    "tests/models/",
    "tests/page/",
    "tests/test_examples.py",
    "tests/test_rooms.py",
    "tests/torch_networks/",
    "tests/torch_operators/",
    "tests/traps/test_defences.py",
    "tests/traps/test_tests.py",
    "tests/zoo/",
)
"""Files that start processes, or look at everything there is."""
ROOT = Path(__file__).resolve().parent.parent
SLOW = Path(__file__).with_name("slow.txt")
"""Tests whose first case takes long; `make slow` measures and rewrites it."""
LONG = 0.15
"""Seconds of processor time that make a test slow."""
MANY = Path(__file__).with_name("exhaustive.txt")
"""Tests whose cases take long together; `make slow` measures and rewrites it."""
LONG_TOGETHER = 0.3
"""Seconds of processor time of all cases that put a test into that list."""

SECONDS = Path(__file__).with_name("seconds.txt")
"""Files that take long, with the mean seconds of processor time of a test; `make slow` measures and rewrites it."""
LONG_FILE = 3.0
"""Seconds of processor time of all tests that put a file into that list."""


def quick_ones(items: list[pytest.Item]) -> list[pytest.Item]:
    """The first case of each test, of the laws the first of each op, without what is serial, slow or left out."""
    slow = frozenset(SLOW.read_text(encoding="utf-8").split())
    return [item for item in _first_cases(items) if not _takes_long(item, slow)]


def exhaustive_ones(items: list[pytest.Item]) -> list[pytest.Item]:
    """What the standard tier leaves out, and tests of random examples, of which it draws a few."""
    left_out = _left_out(items)
    return [item for item in items if item in left_out or draws_examples(item)]


def standard_ones(items: list[pytest.Item]) -> list[pytest.Item]:
    """What `make test` runs."""
    left_out = _left_out(items)
    return [item for item in items if item not in left_out]


def draws_examples(item: pytest.Item) -> bool:
    """Whether Hypothesis draws what a test is given."""
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    many = frozenset(MANY.read_text(encoding="utf-8").split())
    groups: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_case(item), []).append(item)
    left_out: set[pytest.Item] = set()
    for cases in groups.values():
        if cases[0].nodeid.partition("[")[0] in many:
            left_out |= set(cases[1:])
        left_out |= {item for item in cases if item.get_closest_marker("exhaustive") is not None}
    return left_out


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
        or item.get_closest_marker("exhaustive") is not None
        or item.nodeid.startswith(LEFT_OUT)
        or item.nodeid.partition("[")[0] in slow
    )


class Stopwatch:
    """Notes which tests are slow while first cases run in one process, and rewrites the list."""

    def __init__(self) -> None:
        self.slow: list[str] = []
        self.files: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.files.add(item.nodeid.partition("::")[0])
        began = time.process_time()
        done = yield
        if time.process_time() - began >= LONG:
            self.slow.append(item.nodeid.partition("[")[0])
        return done

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [i for i in _first_cases(items) if not _takes_long(i, ())]

    def pytest_sessionfinish(self) -> None:
        _write(SLOW, [*self.slow, *_unmeasured(SLOW, self.files)])


class Totals:
    """Notes which tests take long with all their cases, while everything runs in one process, and rewrites the list."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        began = _processor_time()
        done = yield
        self.seconds.setdefault(item.nodeid.partition("[")[0], []).append(_processor_time() - began)
        return done

    def pytest_sessionfinish(self) -> None:
        files: dict[str, list[float]] = {}
        for test, took in self.seconds.items():
            files.setdefault(test.partition("::")[0], []).extend(took)
        many = [test for test, took in self.seconds.items() if len(took) > 1 and sum(took) >= LONG_TOGETHER]
        _write(MANY, [*many, *_unmeasured(MANY, files)])
        means = [f"{f} {sum(took) / len(took):.2g}" for f, took in files.items() if sum(took) >= LONG_FILE]
        _write(SECONDS, [*means, *_unmeasured(SECONDS, files)])


def _unmeasured(path: Path, files: Collection[str]) -> list[str]:
    """The lines of a list about files of which no test ran, such as those of torch where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines()
    named = {line: line.split()[0].partition("::")[0] for line in lines}
    return [line for line, file in named.items() if file not in files and (ROOT / file).is_file()]


def mean_seconds() -> dict[str, float]:
    """Seconds that a test takes on average, of the files that take long."""
    lines = [line.split() for line in SECONDS.read_text(encoding="utf-8").splitlines()]
    return {file: float(seconds) for file, seconds in lines}


def _processor_time() -> float:
    """Seconds of this process and of those that it started and that ended."""
    took = os.times()
    return took.user + took.system + took.children_user + took.children_system


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("\n".join([*sorted(set(lines)), ""]), encoding="utf-8")
