"""Extraction: shared work once, no cycles, and as good as an integer program on small problems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dovetail.egraph.extract import acyclic, components, extract, first_choice
from dovetail.egraph.problem import Option, Problem
from tests.egraph.oracle import least_cost


def problem(*classes: list[tuple[float, tuple[int, ...]]], roots: tuple[int, ...] = (0,)) -> Problem:
    return Problem([[Option(cost, reads) for cost, reads in listed] for listed in classes], roots)


def test_a_matmul_that_feeds_two_bias_adds_is_not_computed_twice() -> None:
    # Each add alone is cheaper fused with the matmul; both together share it.
    add, fused, matmul = 1.0, 10.5, 10.0
    found = problem(
        [(0.0, (1, 2))],
        [(add, (3,)), (fused, (4,))],
        [(add, (3,)), (fused, (4,))],
        [(matmul, (4,))],
        [(0.0, ())],
    )
    assert extract(found).cost == 12.0


def test_several_classes_adopt_what_they_share_at_once() -> None:
    # One wide product is dearer than any member alone and cheaper than all three.
    member = [(4.0, (5,)), (0.0, (4,))]
    found = problem([(0.0, (1, 2, 3))], member, member, member, [(9.0, (5,))], [(0.0, ())])
    assert extract(found).cost == 9.0


def test_a_cheaper_cycle_is_not_taken() -> None:
    found = problem([(0.0, (1,))], [(5.0, (3,)), (0.0, (2,))], [(6.0, (3,)), (0.0, (1,))], [(0.0, ())])
    assert extract(found).cost == 5.0
    assert components(found)[1] == components(found)[2] and 0 not in components(found)


def test_cycles_in_a_start_are_broken() -> None:
    found = problem([(0.0, (1,))], [(5.0, (3,)), (0.0, (2,))], [(6.0, (3,)), (0.0, (1,))], [(0.0, ())])
    first = first_choice(found)
    assert acyclic(found, [0, 1, 1, 0], first) in ([0, 0, 1, 0], [0, 1, 0, 0])
    assert extract(found, [{1: 1, 2: 1}]).cost == 5.0


def test_a_long_chain_of_residual_adds_has_no_number_too_large() -> None:
    layers = 2_000
    classes = [[(1.0, (2 * i + 1, 2 * i + 2)), (2.5, (2 * i + 2,))] for i in range(layers)]
    spread: list[list[tuple[float, tuple[int, ...]]]] = []
    for i, options in enumerate(classes):
        spread += [options, [(1.0, (2 * i + 2,))]]
    assert extract(problem(*spread, [(0.0, ())])).cost == 2.0 * layers


@st.composite
def problems(draw: DrawFn) -> Problem:
    """Small problems, cycles included: the last option of each class reads later classes only, so that all end."""
    count = draw(st.integers(2, 9))
    cost = st.integers(0, 12).map(float)
    classes: list[list[Option]] = []
    for c in range(count):
        others = st.lists(st.integers(0, count - 1).filter(lambda r, c=c: r != c), max_size=3, unique=True)
        later = st.lists(st.integers(c + 1, count - 1), max_size=2, unique=True) if c < count - 1 else st.just([])
        free = draw(st.lists(st.tuples(cost, others), max_size=3))
        classes.append([Option(w, tuple(reads)) for w, reads in [*free, (draw(cost) + 3, draw(later))]])
    return Problem(classes, (0,))


@given(problems())
def test_search_is_never_below_the_integer_program_and_has_no_cycle(found: Problem) -> None:
    reached = extract(found)
    order = {c: at for at, c in enumerate(found.live(reached.picks))}
    for c, at in order.items():
        assert all(order[r] < at for r in found.options[c][reached.picks[c]].reads)
    assert reached.cost >= least_cost(found) - 1e-6


def test_search_finds_the_optimum_of_most_random_problems() -> None:
    seen: list[bool] = []

    @given(problems())
    def look(found: Problem) -> None:
        seen.append(extract(found).cost <= least_cost(found) + 1e-6)

    look()
    assert sum(seen) >= 0.9 * len(seen)


@pytest.mark.parametrize("size", [3, 6])
def test_extraction_is_deterministic(size: int) -> None:
    member = [(4.0, (size + 2,)), (0.0, (size + 1,))]
    found = problem([(0.0, tuple(range(1, size + 1)))], *[member] * size, [(9.0, (size + 2,))], [(0.0, ())])
    assert len({extract(found).picks for _ in range(3)}) == 1
