"""Tiers, turns of serial tests, and skips that CI does not allow."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.skips import unexpected
from tests.tiers import QUICK, STANDARD, THOROUGH, first_of_each, serial_last
from tests.turns import Turns


def case(test: str, *marks: str, op: str | None = None) -> Any:
    """What pytest collects for one case of a test."""

    def get_closest_marker(mark: str) -> str | None:
        return mark if mark in marks else None

    params = {"op": SimpleNamespace(name=op)} if op else {}
    return SimpleNamespace(
        path=Path("tests/test_one.py"),
        name=test,
        originalname=test,
        callspec=SimpleNamespace(params=params),
        get_closest_marker=get_closest_marker,
    )


def test_each_tier_takes_its_cases() -> None:
    fast, slow = [case("fast") for _ in range(21)], [case("slow", "slow") for _ in range(3)]
    rare = [case("rare", "exhaustive"), case("rare", "exhaustive", "slow")]
    law = [case("law", op="linear"), case("law", op="softmax"), case("law", op="linear")]
    items = [*fast, *slow, *rare, *law]
    assert QUICK.of(items) == [fast[0], law[0], law[1]]
    assert STANDARD.of(items) == [fast[0], fast[10], fast[20], slow[0], law[0], law[2], law[1]]
    spread = [fast[at] for at in (0, 2, 4, 6, 8, 11, 13, 15, 17, 20)]
    assert THOROUGH.of(items) == [*spread, slow[0], rare[0], law[0], law[2], law[1]]


def test_a_test_with_an_exhaustive_case_keeps_the_others() -> None:
    first, second = case("test", "exhaustive"), case("test")
    assert QUICK.of([first, second]) == STANDARD.of([first, second]) == [second]
    assert THOROUGH.of([first, second]) == [first, second]


def test_the_thorough_tier_has_a_case_of_every_test() -> None:
    items = [case(f"test{number}", *marks) for number, marks in enumerate([(), ("slow",), ("exhaustive",)])]
    assert THOROUGH.of(items) == items


def test_serial_tests_come_last_and_keep_their_order() -> None:
    items = [case("a", "serial"), case("b"), case("c", "serial"), case("d")]
    assert [item.name for item in serial_last(items)] == ["b", "d", "a", "c"]


def test_the_quick_tier_makes_one_case_of_a_list_and_all_of_ops() -> None:
    made: list[Any] = []

    def parametrize(names: str, values: list[Any], ids: list[str] | None = None) -> None:
        made.append((names, values, ids))

    first = first_of_each(parametrize)
    first("size", (size for size in (3, 4)), ids=["three", "four"])
    first("op", ["linear", "softmax"])
    first("size", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
    assert made == [("size", [3], ["three"]), ("op", ["linear", "softmax"], None), ("size", [2], None)]


def report(reason: str, **more: Any) -> Any:
    return SimpleNamespace(outcome="skipped", longrepr=("file", 1, f"Skipped: {reason}"), **more)


def test_a_skip_needs_a_listed_reason() -> None:
    assert unexpected(report("could not import 'torch': No module named 'torch'")) == ""
    assert unexpected(report("not today", wasxfail="")) == ""
    assert unexpected(SimpleNamespace(outcome="passed")) == ""
    assert "there is no Chromium" in unexpected(report("there is no Chromium: make browser installs it"))


@contextmanager
def turn(turns: Turns, *marks: str) -> Generator[None]:
    """Go through the hook around a test."""
    steps = turns.pytest_runtest_protocol(case("test", *marks))
    next(steps)
    yield
    with pytest.raises(StopIteration):
        steps.send(None)


def test_a_serial_test_runs_alone(tmp_path: Path) -> None:
    here, there = Turns(tmp_path), Turns(tmp_path)
    begun = threading.Event()

    def other(*marks: str) -> threading.Thread:
        def run() -> None:
            with turn(there, *marks):
                begun.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with turn(here):
        thread = other()
        assert begun.wait(30), "two ordinary tests run side by side"
        thread.join()
        begun.clear()
        thread = other("serial")
        assert not begun.wait(0.05), "a serial test waits for an ordinary one"
    thread.join()
    begun.clear()
    with turn(here, "serial"):
        thread = other()
        assert not begun.wait(0.05), "an ordinary test waits for a serial one"
    thread.join()
    for turns in (here, there):
        turns.pytest_unconfigure()
