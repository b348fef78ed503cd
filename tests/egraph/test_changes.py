"""What is tried again: only what something near has changed since."""

from __future__ import annotations

import pytest

from dovetail.egraph.changes import Changes
from dovetail.egraph.problem import Option

# 0 reads 1, or 2 instead; both read 3; 4 stands apart.
OPTIONS = [
    [Option(1.0, (1,)), Option(1.0, (2,))],
    [Option(1.0, (3,))],
    [Option(1.0, (3,))],
    [Option(1.0, ())],
    [Option(1.0, ())],
]


@pytest.mark.parametrize(
    ("changed", "tried", "due"),
    [(0, 0, True), (2, 0, True), (1, 3, True), (0, 1, True), (3, 2, True), (3, 0, False), (4, 0, False), (2, 1, False)],
)
def test_a_class_is_due_again_when_it_or_what_it_may_read_or_who_reads_it_changed(
    changed: int, tried: int, due: bool
) -> None:
    changes = Changes(OPTIONS, {})
    assert changes.is_due(tried, [tried])
    assert not changes.is_due(tried, [tried])
    changes.note([changed])
    assert changes.is_due(tried, [tried]) == due


def test_a_change_in_a_cycle_concerns_all_of_it() -> None:
    changes = Changes(OPTIONS, {0: 7, 4: 7})
    assert changes.is_due(0, [0])
    changes.note([4])
    assert changes.is_due(0, [0])
    assert not changes.is_due(0, [0])


def test_what_is_there_at_no_cost_concerns_nobody() -> None:
    changes = Changes([[Option(1.0, (1,))], [Option(0.0, ())]], {})
    assert changes.is_due(0, [0])
    changes.note([1])
    assert not changes.is_due(0, [0])
