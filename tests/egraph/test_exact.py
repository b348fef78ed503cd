"""Exact extraction: small problems have no doubt, large ones are left to local search."""

from __future__ import annotations

from dovetail.egraph.exact import MOST_CLASSES, cheapest, is_small
from dovetail.egraph.extract import extract
from dovetail.egraph.problem import Option, Problem


def together(pairs: int = 1) -> Problem:
    """Pairs of classes that gain only if both leave what they have for two ways that share their source."""
    options: list[list[Option]] = [[Option(0.0, tuple([r for at in range(pairs) for r in (5 * at + 1, 5 * at + 2)]))]]
    for at in range(pairs):
        source = 5 * at + 5
        options += [[Option(3.0, ()), Option(1.0, (5 * at + way,))] for way in (3, 4)]
        options += [[Option(0.5, (source,))], [Option(0.5, (source,))], [Option(2.0, ())]]
    return Problem(options, (0,))


def test_two_classes_that_gain_only_together_are_changed_together() -> None:
    found = together()
    assert cheapest(found, (0, 0, 0, 0, 0, 0), 6.0, 0.0) == (0, 1, 1, 0, 0, 0)
    assert extract(found).cost == 5.0


def test_a_choice_that_is_the_cheapest_stays() -> None:
    assert cheapest(together(), (0, 1, 1, 0, 0, 0), 5.0, 0.0) is None


def test_a_cheaper_cycle_is_no_choice() -> None:
    ring = [[Option(0.0, (1,))], [Option(5.0, ()), Option(0.0, (2,))], [Option(6.0, ()), Option(0.0, (1,))]]
    assert cheapest(Problem(ring, (0,)), (0, 0, 0), 9.0, 0.0) == (0, 0, 0)


def test_what_is_done_once_is_won_back_or_not_done() -> None:
    options = [[Option(5.0, (2,)), Option(4.0, (1,))], [Option(0.0, (2,), toll=2.0)], [Option(0.0, ())]]
    assert cheapest(Problem(options, (0,)), (0, 0, 0), 5.0, 0.0) is None
    assert cheapest(Problem(options, (0,)), (0, 0, 0), 5.0, 2.0) == (1, 0, 0)


def test_large_problems_are_left_to_local_search() -> None:
    assert is_small(together(MOST_CLASSES // 2)) and not is_small(together(MOST_CLASSES // 2 + 1))
