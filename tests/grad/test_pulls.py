"""The law of every gradient rule: central differences in the middle of a graph, and linearity in g."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import ops
from dovetail.dtypes import f64
from dovetail.grad.walk import pull_back
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.ops.gradient import Constant, Nested, Refused
from dovetail.targets.reference.interpreter import evaluate
from tests.grad.cases import CASES, SIZES, Case, Shape
from tests.grad.judge import assert_near, differences, total

Array = NDArray[Any]


def test_every_primitive_has_a_rule_or_is_constant_or_refused() -> None:
    without = [op.name for op in ops.ALL if op.pull is None]
    assert not without, f"declare `pull=` for {without}"


def test_every_rule_has_a_case() -> None:
    ruled = {op.name for op in ops.ALL if not isinstance(op.pull, Constant | Refused)}
    assert ruled == {case.op for case in CASES}
    assert {op.name for op in ops.ALL if isinstance(op.pull, Nested)} == {"if", "scan", "while"}


@pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbols"])
def test_pull(case: Case, symbolic: bool) -> None:
    if symbolic and not any(isinstance(size, str) for shape in case.shapes for size in shape):
        pytest.skip("no symbols")
    names = [f"x{i}" for i in range(len(case.shapes))]
    rng = np.random.default_rng(len(case.label) + 7)
    sizes = [tuple(SIZES[s] if isinstance(s, str) else s for s in shape) for shape in case.shapes]
    at = {n: rng.uniform(*case.within, size) for n, size in zip(names, sizes, strict=True)}
    inputs = [leaf.input(n, f64[_declared(s, symbolic)]) for n, s in zip(names, case.shapes, strict=True)]
    # The rule stands in the middle: its operands are computed and used twice, its result counts with a coefficient.
    middle = [x * 0.25 + x * 0.75 for x in inputs]
    y = case(*middle)
    weight = leaf.constant(rng.normal(size=_numbers(y, inputs, at)))
    loss = total(y * 1.7 * weight) + total(y * y) * 0.3
    grads = pull_back({loss: leaf.scalar(1.0, f64)}, inputs)
    outputs = {n: grads[x] for n, x in zip(names, inputs, strict=True) if x in grads}
    found = evaluate(Graph.of({"loss": loss, **outputs}, inputs=inputs), at)
    only = Graph.of({"loss": loss}, inputs=inputs)

    def loss_at(arrays: Mapping[str, Array]) -> float:
        return float(evaluate(only, arrays)["loss"])

    for name in names:
        expected = differences(loss_at, at, name)
        assert_near(found.get(name, np.zeros_like(expected)), expected, f"{case} by {name}")


@pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
def test_pull_is_linear(case: Case) -> None:
    rng = np.random.default_rng(3)
    sizes = [tuple(SIZES[s] if isinstance(s, str) else s for s in shape) for shape in case.shapes]
    inputs = [leaf.input(f"x{i}", f64[size]) for i, size in enumerate(sizes)]
    y = case(*inputs)
    shape = tuple(int(str(s)) for s in y.shape)
    seeds = [leaf.input(f"g{i}", f64[shape]) for i in range(2)]
    both = leaf.input("both", f64[shape])
    outputs: dict[str, Value] = {}
    for seed in (*seeds, both):
        for x, g in pull_back({y: seed}, inputs).items():
            outputs[f"{seed.attrs['name']}.{x.attrs['name']}"] = g
    feeds = {str(x.attrs["name"]): rng.uniform(*case.within, s) for x, s in zip(inputs, sizes, strict=True)}
    feeds |= {"g0": rng.normal(size=shape), "g1": rng.normal(size=shape)}
    feeds["both"] = feeds["g0"] * 2.0 - feeds["g1"] * 0.5
    graph = Graph.of(outputs, inputs=(*inputs, *seeds, both))
    found = evaluate(graph, feeds)
    for x in inputs:
        name = str(x.attrs["name"])
        if f"both.{name}" in found:
            expected = found[f"g0.{name}"] * 2.0 - found[f"g1.{name}"] * 0.5
            assert_near(found[f"both.{name}"], expected, f"{case} by {name}", near=1e-12)


def _declared(shape: Shape, symbolic: bool) -> tuple[int | str, ...]:
    return shape if symbolic else tuple(SIZES[s] if isinstance(s, str) else s for s in shape)


def _numbers(y: Value, inputs: list[Value], at: Mapping[str, Array]) -> tuple[int, ...]:
    """The shape of y in a run."""
    found = evaluate(Graph.of({"y": y}, inputs=inputs), at)["y"]
    return found.shape
