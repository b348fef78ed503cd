"""Extraction: shared work once, no cycles, and as good as an integer program on small problems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dovetail.declare.cost import Machine, Prices
from dovetail.egraph.cycles import components
from dovetail.egraph.extract import HillClimb, extract
from dovetail.egraph.first_choice import acyclic, first_choice
from dovetail.egraph.joined import Joined, cost_of, readers_of
from dovetail.egraph.problem import Extent, Option, Part, Problem
from tests.egraph.oracle import least_cost, least_joined


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


@pytest.mark.heavy
def test_a_long_chain_of_residual_adds_has_no_number_too_large() -> None:
    layers = 2_000
    classes = [[(1.0, (2 * i + 1, 2 * i + 2)), (2.5, (2 * i + 2,))] for i in range(layers)]
    spread: list[list[tuple[float, tuple[int, ...]]]] = []
    for i, options in enumerate(classes):
        spread += [options, [(1.0, (2 * i + 2,))]]
    assert extract(problem(*spread, [(0.0, ())])).cost == 2.0 * layers


@st.composite
def problems(draw: DrawFn, most: int = 9) -> Problem:
    """Small problems, cycles included: the last option of each class reads later classes only, so that all end."""
    count = draw(st.integers(2, most))
    cost = st.integers(0, 12).map(float)
    classes: list[list[Option]] = []
    for c in range(count):
        others = st.lists(st.integers(0, count - 1).filter(lambda r, c=c: r != c), max_size=3, unique=True)
        later = st.lists(st.integers(c + 1, count - 1), max_size=2, unique=True) if c < count - 1 else st.just([])
        free = draw(st.lists(st.tuples(cost, others), max_size=3))
        classes.append([Option(w, tuple(reads)) for w, reads in [*free, (draw(cost) + 3, draw(later))]])
    return Problem(classes, (0,))


@pytest.mark.slow
@given(problems())
def test_search_is_never_below_the_integer_program_and_has_no_cycle(found: Problem) -> None:
    reached = extract(found)
    order = {c: at for at, c in enumerate(found.live(reached.picks))}
    for c, at in order.items():
        assert all(order[r] < at for r in found.options[c][reached.picks[c]].reads)
    assert reached.cost >= least_cost(found) - 1e-6


@pytest.mark.slow
@given(problems())
def test_the_optimum_of_every_random_problem_is_found(found: Problem) -> None:
    assert extract(found).cost <= least_cost(found) + 1e-6


PRICES = Prices(Machine(flops_per_second=1.0, bytes_per_second=1.0, launch_seconds=1.0))


@st.composite
def joinable(draw: DrawFn) -> Problem:
    """Small problems in which some options are elementwise and some are views."""
    found = draw(problems(most=6))
    extents = [Extent(draw(st.integers(0, 4)), draw(st.booleans())) for _ in found.options]
    parts = st.one_of(st.none(), st.builds(Part, st.integers(0, 3)), st.just(Part(0, view=True)))
    options: list[list[Option]] = []
    for c, listed in enumerate(found.options):
        told: list[Option] = []
        for option in listed:
            part = draw(parts) if option.reads else None
            if part is not None:
                reads = option.reads[:1] if part.view else option.reads
                bytes = extents[c].bytes + sum(extents[r].bytes for r in reads)
                told.append(Option(0.0 if part.view else max(part.flops, bytes) + 1.0, reads, None, part))
            else:
                told.append(option)
        options.append(told)
    return Problem(options, found.roots, (), extents, PRICES)


@pytest.mark.slow
@given(joinable())
def test_what_joins_is_priced_as_one_kernel_however_the_search_came_there(found: Problem) -> None:
    reached = extract(found)
    # Kept up swap by swap, and counted anew.
    assert reached.climbed == pytest.approx(cost_of(found, reached.picks), abs=1e-9)
    assert reached.cost >= least_joined(found) - 1e-6


@pytest.mark.slow
@given(joinable())
def test_the_optimum_of_every_problem_with_regions_is_found(found: Problem) -> None:
    assert extract(found).cost <= least_joined(found) + 1e-6


def test_elementwise_options_that_one_region_reads_cost_its_arithmetic_alone() -> None:
    # A fused op of its own, or three elementwise ops that the target joins: x * sigmoid(x) on the way to an add.
    extents = [Extent(8, False)] * 4 + [Extent(8, True)]
    mul, sigmoid, add = Option(25.0, (3, 2), None, Part(1)), Option(17.0, (3,), None, Part(1)), Part(1)
    opaque, x = Option(18.0, (3,)), Option(0.0, (4,))
    found = Problem(
        [[Option(25.0, (1, 4), None, add)], [opaque, mul], [sigmoid], [x], [Option(0.0, ())]], (0,), (), extents, PRICES
    )
    reached = extract(found)
    assert reached.picks[1] == 1
    assert reached.cost == 8 + 8 + 8 + 1


def test_of_equal_choices_the_one_of_fewer_ops_is_taken() -> None:
    extents = [Extent(8, False)] * 3
    one, two = Option(17.0, (2,), None, Part(2), ops=1), Option(17.0, (1,), None, Part(1), ops=1)
    inner, leaf = Option(17.0, (2,), None, Part(1), ops=1), Option(0.0, ())
    for options in ([one, two], [two, one]):
        assert extract(Problem([options, [inner], [leaf]], (0,), (), extents, PRICES)).ops == 1


def test_work_on_weights_has_to_be_worth_it_and_sparing_it_never_pays_for_a_slower_run() -> None:
    def picked(slow: float, fast: float, toll: float) -> tuple[int, ...]:
        made = [Option(0.0, (2,), None, None, toll)]
        return extract(problem_of_options([Option(fast, (1,)), Option(slow, (2,))], made), [{0: 0}]).picks[:1]

    assert picked(slow=5.0, fast=4.0, toll=9.0) == (0,), "it was there, and a run is faster with it"

    def started_plain(slow: float, fast: float, toll: float) -> tuple[int, ...]:
        made = [Option(0.0, (2,), None, None, toll)]
        return extract(problem_of_options([Option(slow, (2,)), Option(fast, (1,))], made), [{0: 0}]).picks[:1]

    assert started_plain(slow=5.0, fast=4.0, toll=2.0) == (0,)
    assert started_plain(slow=5.0, fast=4.0, toll=0.5) == (1,)


def problem_of_options(root: list[Option], made: list[Option]) -> Problem:
    return Problem([root, made, [Option(0.0, ())]], (0,))


@pytest.mark.parametrize("size", [3, 6])
def test_extraction_is_deterministic(size: int) -> None:
    member = [(4.0, (size + 2,)), (0.0, (size + 1,))]
    found = problem([(0.0, tuple(range(1, size + 1)))], *[member] * size, [(9.0, (size + 2,))], [(0.0, ())])
    assert len({extract(found).picks for _ in range(3)}) == 1


def test_a_second_start_is_climbed_from_where_it_differs() -> None:
    # Two roots, each with a cheap option last; the first climb ends where the second begins, but for one class.
    found = problem([(5.0, ()), (1.0, ())], [(5.0, ()), (1.0, ())], roots=(0, 1))
    climb = HillClimb(found, [0, 0])
    for start in ([0, 0], [1, 0], [0, 1]):
        climb.begin(start)
        assert climb.climb().picks == (1, 1)


def test_what_is_joined_otherwise_is_tried_again() -> None:
    extents = [Extent(8, False)] * 4
    options = [
        [Option(17.0, (1,), None, Part(1))],
        [Option(17.0, (2,), None, Part(1))],
        [Option(9.0, ())],
        [Option(9.0, ())],
    ]
    alone = Problem(options, (0, 1), (), extents, PRICES)
    joined = Problem(options, (0,), (), extents, PRICES)
    one, other = (Joined(p, [0] * 4, readers_of(p, [0] * 4, p.live([0] * 4))) for p in (alone, joined))
    for each, p in ((one, alone), (other, joined)):
        each.update(reversed(p.live([0] * 4)))
    assert one.unlike(other) == {0, 1}
    assert one.unlike(one) == set()
