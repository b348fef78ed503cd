"""Graphs whose every step is compiled code, against their meaning."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail import Graph, Value
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


def compiled(outputs: Value | Mapping[str, Value], threads: int | None = None) -> NativeRunner:
    """A graph that runs, none of its steps on the host."""
    native = NativeGraph(make_plan(Graph.of(outputs), target=CPU), threads=threads)
    assert not native.on_host, f"on the host: {[s.value.op.name for s in native.on_host]}"
    return native.bind({})


def same_bits(runner: NativeRunner, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What a graph gives, which is its meaning to the last bit."""
    found = runner.run(feeds)
    with np.errstate(all="ignore"):
        expected = evaluate(runner.plan.graph, feeds)
    for name, array in expected.items():
        got = found[name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert got.tobytes() == np.ascontiguousarray(array).tobytes(), f"{name}: {got} is not {array}"
    return found


def near(runner: NativeRunner, feeds: Mapping[str, Array], scale: float = 1.0) -> dict[str, Array]:
    """What a graph gives, which is near its meaning in float64."""
    found = runner.run(feeds)
    with np.errstate(all="ignore"):
        expected = evaluate(runner.plan.graph, feeds, lift=True)
    for name, value in runner.plan.graph.outputs.items():
        assert_close(found[name], expected[name], value.dtype, scale=scale)
    return found


def bits(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Any bits of a dtype: infinities, NaN and denormals among them."""
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng([seed, *shape]).integers(0, 256, count, np.uint8)
    if dtype.kind == "bool":
        raw &= 1
    if dtype.bits < 8:
        raw &= (1 << dtype.bits) - 1
    return raw.view(dtype.numpy).reshape(shape)


def numbers(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Small numbers of a dtype, many of them equal."""
    raw = np.random.default_rng([seed, *shape]).integers(0 if dtype.kind in ("uint", "bool") else -8, 9, shape)
    return (raw > 4 if dtype.kind == "bool" else raw).astype(dtype.numpy)
