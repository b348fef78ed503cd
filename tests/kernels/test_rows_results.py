"""Row kernels with several results: what one writes is not what another still reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import dovetail
from dovetail import Value, library, ops
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.ir.inline import outline
from dovetail.ops.region import region
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


@pytest.mark.slow
@pytest.mark.parametrize("names", [("normed", "sum"), ("sum", "normed")])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_sum_that_is_kept_beside_its_norm(names: tuple[str, str], norm: str) -> None:
    x, r, gain = leaf.input("x", f32["b", 33]), leaf.input("r", f32["b", 33]), leaf.input("gain", f32[33])
    total = x * 2.0 + r * 3.0
    normed = library.layer_norm(total, gain, eps=1e-5) if norm == "layer" else library.rms_norm(total, gain, eps=1e-5)
    values = {"normed": normed, "sum": total}
    graph = Graph.of({name: values[name] for name in names})
    # By cost the sum would be a kernel of its own here, with what is in front of it.
    program = dovetail.compile(graph, engine="greedy")
    assert program.report.count(f"residual_{norm}_norm") == 1
    rng = np.random.default_rng(0)
    for rows in (1, 5):
        feeds = {"x": rng.standard_normal((rows, 33)), "r": rng.standard_normal((rows, 33)), "gain": np.ones(33)}
        feeds = {name: a.astype(np.float32) for name, a in feeds.items()}
        found, expected = program.run(feeds), evaluate(graph, feeds, lift=True)
        for name in names:
            assert_close(found[name], expected[name], f32)


_LAST: dict[str, Callable[[Value, Value], Value]] = {
    "sum": lambda y, z: y + z,
    "product": lambda y, z: y * z,
    "chosen": lambda y, z: ops.where(ops.less(y, z), y, z),
}
_ROWS: dict[str, Callable[[Value, Value], Value]] = {
    "softmax": lambda x, z: library.softmax(x * 0.5 + z),
    "l2": lambda x, z: ops.exp(x + z) / ops.sqrt(ops.reduce_sum(ops.exp(x + z), axes=(-1,)) + 1e-6),
    "two reductions": lambda x, z: _centred(x + z) / ops.reduce_sum(_centred(x + z), axes=(-1,)),
}


def _centred(x: Value) -> Value:
    """Dear enough to be kept from one pass to the next."""
    return ops.exp(x - ops.reduce_max(x, axes=(-1,)))


@pytest.mark.slow
@pytest.mark.parametrize("as_region", [True, False])
@pytest.mark.parametrize("last", _LAST)
@pytest.mark.parametrize("rows", _ROWS)
def test_an_operand_that_a_later_pass_reads_keeps_its_memory(rows: str, last: str, as_region: bool) -> None:
    """A row kernel may keep a value in the row of its result: no operand that it reads afterwards is there."""
    x, z, r = (ops.tanh(leaf.input(n, f32[7, 37])) for n in "xzr")
    y = _LAST[last](_ROWS[rows](x, z), r)
    if as_region:
        y = region(outline([y], [x, z, r]), (x, z, r))
    graph = Graph.of(ops.tanh(y))
    plan = make_plan(graph, target=CPU)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((7, 37)).astype(np.float32) for n in "xzr"}
    wanted = evaluate(graph, {n: a.astype(np.float64) for n, a in feeds.items()}, lift=True)
    for threads in (1, 2):
        (found,) = NativeGraph(plan, threads=threads).bind({}).run(feeds).values()
        assert_close(found, next(iter(wanted.values())), f32)
    if not as_region:
        program = dovetail.compile(graph, threads=1)
        (found,) = program.run(feeds).values()
        assert_close(found, next(iter(wanted.values())), f32)
