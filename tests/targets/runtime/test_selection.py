"""The selection table: conditions refuse by name, the lowest estimate wins, and the order decides within the noise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Graph, ops
from dovetail.declare.machine import NOISE, Cost, Machine, preferred
from dovetail.dtypes import f32
from dovetail.errors import SizeLimitError
from dovetail.ir.leaf import input
from dovetail.kernels.choice import Answer, Offer, Refused, StepProblem
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.plan import Step, make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.runtime.selection import Kind, Row, Table

MACHINE = Machine(1e9, 1e12, 0.0)
"""A flop takes a nanosecond."""


def a_step() -> tuple[Step, TensorLocations]:
    plan = make_plan(Graph.of(ops.exp(input("x", f32[4]))), target=CPU)
    return plan.phase("run")[0], TensorLocations(plan.locate, (), target=loops_of(host_device()))


def named(name: str) -> Job:
    return Job(Kernel(name, (), (), "tile", ()), {}, Tiles(1, 1))


def offering(name: str, flops: int, build: Callable[[], Job | Refused] | None = None) -> Row[None]:
    made = build or (lambda: named(name))
    return Row(name, lambda of: Offer(made, lambda: Cost(flops, 0)))


def table(*rows: Row[None], on_host: str = "") -> Table[None]:
    return Table((Kind("any", lambda value: True, lambda: rows),), on_host)


def selected(of: Table[None], machine: Machine = MACHINE) -> str | None:
    job = of.select(*a_step(), None, machine)
    return None if job is None else job.kernel.name


def refusing(of: StepProblem[None]) -> Answer:
    return Refused("pixels_are_few", "900", "at most 800")


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=8))
def test_nothing_is_slower_than_the_best_by_more_than_the_noise(seconds: list[float]) -> None:
    at = preferred(seconds)
    assert seconds[at] <= min(seconds) * (1 + NOISE)
    assert all(one > min(seconds) * (1 + NOISE) for one in seconds[:at]), "the first of those that are equal"


def test_the_lowest_estimate_wins_unless_it_is_within_the_noise() -> None:
    assert selected(table(offering("first", 1000), offering("second", 500))) == "second"
    assert selected(table(offering("first", 1000), offering("second", 900))) == "first"


def test_conditions_come_before_estimates() -> None:
    made = table(Row("small", refusing), offering("large", 10**6), on_host="host")
    assert selected(made) == "large"
    small, large, host = made.considered(*a_step(), None, MACHINE)
    assert (small.condition, small.found, small.expected) == ("pixels_are_few", "900", "at most 800")
    assert small.reason == "not: pixels are few (found 900, expected at most 800)" and small.seconds is None
    assert large.taken and large.ratio == 1 and large.bound == "compute" and large.kind == "any"
    assert not host.taken


def test_a_kernel_that_cannot_be_built_leaves_the_step_to_the_next() -> None:
    def too_long() -> Job:
        raise SizeLimitError("a size of a thousand terms")

    for build in (too_long, lambda: Refused("places_are_affine")):
        made = table(offering("first", 1, build), offering("second", 1000))
        assert selected(made) == "second"
        first, second = made.considered(*a_step(), None, MACHINE)
        assert first.condition in ("sizes_can_be_written", "places_are_affine") and second.taken


def test_a_row_that_is_left_alone_is_taken() -> None:
    assert selected(table(Row("small", refusing), offering("large", 10))) == "large"
    assert selected(table(Row("small", refusing))) is None


def test_losers_tell_by_how_much() -> None:
    rows = table(offering("a", 1000), offering("b", 1100), offering("c", 3000)).considered(*a_step(), None, MACHINE)
    assert [row.ratio for row in rows] == pytest.approx([1.0, 1.1, 3.0])
    assert rows[1].reason.startswith("equal within the model's noise of 25%") and rows[2].reason == "3.00 times a"


def test_the_host_is_taken_where_every_row_refuses() -> None:
    rows = table(Row("small", refusing), on_host="host").considered(*a_step(), None, MACHINE)
    assert [row.name for row in rows if row.taken] == ["host"]
