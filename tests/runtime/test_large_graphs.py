"""Graphs of many nodes: passes stay linear, so that these compile at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Value, ops
from dovetail.dtypes import f32
from dovetail.ir import origin
from dovetail.ir.rewrite import Replacement, replace_roots


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2_000, pytest.param(20_000, marks=pytest.mark.exhaustive)])
def test_a_long_chain_compiles_and_runs(count: int) -> None:
    b = Builder("g")
    x = b.input("x", f32[4])
    y = x
    for _ in range(count // 2):
        y = ops.relu(-y)
    b.output("y", y)
    given = np.array([-1.0, 0.0, 2.0, np.nan], np.float32)
    found = dovetail.compile(b.graph(), cache="off")(x=given)["y"]
    np.testing.assert_array_equal(found, dovetail.evaluate(b.graph(), {"x": given})["y"])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_a_sum_of_many_inputs_compiles_and_runs(count: int) -> None:
    b = Builder("g")
    inputs = [b.input(f"x{i}", f32[4]) for i in range(count)]
    total = inputs[0]
    for value in inputs[1:]:
        total = total + value
    b.output("y", total)
    feeds = {f"x{i}": np.full(4, i % 7, np.float32) for i in range(count)}
    found = dovetail.compile(b.graph(), cache="off").run(feeds)["y"]
    np.testing.assert_allclose(found, sum(i % 7 for i in range(count)), rtol=1e-5)


def test_origins_of_one_replacement_are_merged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region of n nodes merged n ever longer lists."""
    b = Builder("g")
    x = b.input("x", f32[4])
    y = x
    members = [y := ops.exp(y) for _ in range(500)]
    b.output("y", y)
    merged: list[int] = []
    kept = origin.merge

    def counted(*groups: Iterable[origin.Origin]) -> tuple[origin.Origin, ...]:
        merged.append(len(groups))
        return kept(*groups)

    def build(new: Callable[[Value], Value]) -> Value:
        return ops.tanh(new(x))

    monkeypatch.setattr(origin, "merge", counted)
    replace_roots(b.graph(), {members[-1]: Replacement((x,), build, tuple(members))})
    assert len(merged) <= 2
