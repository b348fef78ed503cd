"""Functions of f64 that GPUs have no code for: they run on the host without the steps around them, and are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dovetail import Graph, compile, library, ops
from dovetail.ir.dtype import DType, f32, f64
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.ops.region import region
from dovetail.runtime.program import Program
from tests.targets.cuda.judged import expected_of, feeds_of
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.tolerances import assert_close

LACKING: dict[str, Callable[[Value, Value], Value]] = {
    "sin": lambda x, y: ops.sin(x),
    "cos": lambda x, y: ops.cos(x),
    "tan": lambda x, y: ops.tan(x),
    "erf": lambda x, y: ops.erf(x),
    "rem": ops.rem,
    "gelu": lambda x, y: library.gelu(x),
}


def compiled(function: Callable[[Value, Value], Value], dtype: DType) -> Program:
    """The function amid steps that are compiled."""
    x, y = (input(name, dtype[6, 40]) for name in "xy")
    value = ops.exp(ops.mul(function(x * 0.5 + 1.0, y), 0.25) - y)
    return compile(Graph.of({"y": value}), target=target_of(SimulatedDriver()), cache="off")


@pytest.mark.slow
@pytest.mark.parametrize("name", LACKING)
def test_the_host_computes_the_function_and_kernels_the_steps_around_it(name: str) -> None:
    program = compiled(LACKING[name], f64)
    assert [k.op for k in program.report.kernels if k.on_host] == [name]
    assert [k.op for k in program.report.kernels if not k.on_host] == [region.name] * 2
    lacks = "erf in f64" if name == "gelu" else f"{name} in f64"
    told = [" ".join(line.split()) for line in str(program.report).splitlines()]
    assert f"HOST 1 × {name} has no compiled kernel: {lacks}" in told
    graph = program.plan.graph
    feeds = feeds_of(graph, {})
    assert_close(program.run(feeds)["y"], expected_of(graph, feeds)["y"], f64)


@pytest.mark.parametrize("name", LACKING)
def test_in_f32_all_of_it_is_one_kernel(name: str) -> None:
    (kernel,) = compiled(LACKING[name], f32).report.kernels
    assert kernel.op == region.name and not kernel.on_host and not kernel.lacks
