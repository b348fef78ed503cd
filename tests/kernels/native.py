"""Graphs whose every step is compiled code, against their meaning."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from dovetail import Graph, Value
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.kernels.spec import Job
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close


def native_of(
    outputs: Graph | Value | Mapping[str, Value],
    threads: int | None = None,
    *,
    kernel: str = "",
    served: Collection[str] | None = None,
) -> NativeGraph:
    """A compiled graph. No step runs on the host, or none of `served`; the name of a kernel begins with `kernel`."""
    graph = outputs if isinstance(outputs, Graph) else Graph.of(outputs)
    native = NativeGraph(make_plan(graph, target=CPU), threads=threads)
    ops = [s.value.op.name for s in native.on_host]
    assert not [name for name in ops if served is None or name in served], f"on the host: {ops}"
    names = [job.kernel.name for part in native.sections for job in part.jobs if isinstance(job, Job)]
    assert not kernel or any(name.startswith(kernel) for name in names), f"no {kernel} among {names}"
    return native


def compiled(outputs: Graph | Value | Mapping[str, Value], threads: int | None = None) -> NativeRunner:
    """A graph that runs, none of its steps on the host."""
    return native_of(outputs, threads).bind({})


def check(
    outputs: Graph | Value | Mapping[str, Value],
    *feeds: Mapping[str, Array],
    params: Mapping[str, Array] | None = None,
    threads: int | None = None,
    kernel: str = "",
    served: Collection[str] | None = None,
) -> list[Array]:
    """The one output for each of the feeds, after each was compared with its meaning in float64. See `native_of`."""
    native = native_of(outputs, threads, kernel=kernel, served=served)
    return compared(native.bind(params or {}), params or {}, *feeds)


def compared(runner: NativeRunner, params: Mapping[str, Array], *feeds: Mapping[str, Array]) -> list[Array]:
    """The one output for each of the feeds, after each was compared with its meaning in float64."""
    found: list[Array] = []
    for fed in feeds:
        (got,) = near(runner, fed, params=params).values()
        found.append(got)
    return found


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


def near(
    runner: NativeRunner,
    feeds: Mapping[str, Array],
    scale: float = 1.0,
    params: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """What a graph gives, which is near its meaning in float64."""
    found = runner.run(feeds)
    with np.errstate(all="ignore"):
        expected = evaluate(runner.plan.graph, feeds, params=params, lift=True)
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
