"""Hints, followed and measured: whether the gain that a report predicts has the right sign and about the right size.

    python benchmarks/hints.py [--threads N] [--runs N] [--all]

Draws models in which a guard refuses a fusion, follows each hint that their reports give, and measures both models in
turn. The sign is to be right for 95 % of the hints, the size within a factor of 2 for 80 %. Without epilogues, as most
of these models have no gap left otherwise. Calibrate first: dovetail doctor --calibrate.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dovetail
from dovetail import Builder, Graph, Value, f32, library, ops
from dovetail.ops import build

Array = NDArray[Any]
Write = Callable[[Builder, bool], Value]
"""A model: with True, as the hint asks for it."""
SIGN, SIZE, FACTOR = 0.95, 0.8, 2.0
NOISE = 1e-6
"""Gains below a microsecond drown in the noise of a call."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What a hint promised and what it brought."""

    rule: str
    reason: str
    shape: tuple[int, ...]
    predicted: float
    measured: float


def linear_with_one_bias(batch: int, rows: int, k: int, n: int) -> Write:
    def write(b: Builder, wide: bool) -> Value:
        product = b.input("x", f32[batch, rows, k]) @ b.param("w", f32[k, n])
        return ops.relu(product + b.input("b", f32[n if wide else 1]))

    return write


def product_and_rows(batch: int, rows: int, k: int, n: int) -> Write:
    def write(b: Builder, wide: bool) -> Value:
        product = b.input("x", f32[batch, rows, k]) @ b.param("w", f32[k, n])
        return product + b.input("d", f32[(batch, rows, n) if wide else (rows, n)])

    return write


def residual_rows(batch: int, rows: int, k: int, n: int) -> Write:
    def write(b: Builder, wide: bool) -> Value:
        total = b.input("x", f32[batch, rows, n]) + b.input("r", f32[(batch, rows, n) if wide else (rows, n)])
        made: Value = library.layer_norm.body(total, b.param("g", f32[n]), b.param("c", f32[n]), eps=1e-5)
        return made

    return write


def one_batch_of_keys(batch: int, rows: int, k: int, n: int) -> Write:
    def write(b: Builder, wide: bool) -> Value:
        q, v = (b.input(name, f32[batch, 4, rows, 64]) for name in "qv")
        keys = b.input("k", f32[batch if wide else 1, 4, rows, 64])
        scores = (q @ build.swap(keys, -1, -2)) * 0.125
        made: Value = library.softmax.body(scores, axis=-1) @ v
        return made

    return write


def residual_rms(batch: int, rows: int, k: int, n: int) -> Write:
    def write(b: Builder, wide: bool) -> Value:
        total = b.input("x", f32[batch, rows, n]) + b.input("r", f32[(batch, rows, n) if wide else (rows, n)])
        made: Value = library.rms_norm.body(total, b.param("g", f32[n]), eps=1e-5)
        return made

    return write


def one_gain(batch: int, rows: int, k: int, n: int) -> Write:
    def write(b: Builder, wide: bool) -> Value:
        gain = b.input("g", f32[n if wide else 1])
        made: Value = library.layer_norm.body(b.input("x", f32[batch, rows, n]), gain, b.param("c", f32[n]), eps=1e-5)
        return made

    return write


MODELS: Mapping[str, Callable[[int, int, int, int], Write]] = {
    "linear": linear_with_one_bias,
    "matmul_add": product_and_rows,
    "residual_layer_norm": residual_rows,
    "residual_rms_norm": residual_rms,
    "layer_norm": one_gain,
    "attention": one_batch_of_keys,
}
SHAPES = (
    (2, 64, 64, 128),
    (4, 128, 16, 256),
    (8, 64, 256, 256),
    (2, 256, 8, 512),
    (16, 32, 128, 128),
    (2, 32, 4, 1024),
    (4, 16, 8, 64),
)


def graph_of(write: Write, wide: bool) -> Graph:
    builder = Builder("hint", lines=False)
    builder.output("y", write(builder, wide))
    return builder.graph()


def arrays_for(graph: Graph, like: Mapping[str, Array]) -> dict[str, Array]:
    """Random numbers; those of another graph again, repeated where this one has larger tensors."""
    rng = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for value in (*graph.inputs, *graph.parameters):
        name, shape = str(value.attrs["name"]), tuple(int(str(s)) for s in value.shape)
        drawn = like.get(name, rng.normal(size=shape).astype(np.float32))
        found[name] = np.ascontiguousarray(np.broadcast_to(drawn, shape))
    return found


def best_of(programs: list[tuple[dovetail.Program, dict[str, Array]]], runs: int) -> list[float]:
    """The least seconds of each program, in turns."""
    best = [float("inf")] * len(programs)
    for _ in range(runs):
        for at, (program, feeds) in enumerate(programs):
            started = time.perf_counter()
            program(**feeds)
            best[at] = min(best[at], time.perf_counter() - started)
    return best


def follow(name: str, shape: tuple[int, int, int, int], options: dict[str, Any], runs: int) -> Iterator[Followed]:
    """Every hint of one model."""
    write = MODELS[name](*shape)
    graphs = [graph_of(write, wide) for wide in (False, True)]
    before = dovetail.scan(graphs[0], **options)
    types = {str(v.attrs["name"]): str(v.type) for v in (*graphs[1].inputs, *graphs[1].parameters)}
    for miss in before.missed:
        if not miss.changes or any(types[leaf] != type for leaf, type in miss.changes.items()):
            continue
        numbers = arrays_for(graphs[0], {})
        prepared: list[tuple[dovetail.Program, dict[str, Array]]] = []
        for graph in graphs:
            arrays = arrays_for(graph, numbers)
            program = dovetail.compile(graph, cache="off", **options)
            bound = {str(v.attrs["name"]) for v in graph.parameters}
            program.bind({leaf: arrays[leaf] for leaf in bound})
            prepared.append((program, {leaf: a for leaf, a in arrays.items() if leaf not in bound}))
        first, second = (program(**feeds)["y"] for program, feeds in prepared)
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)
        times = best_of(prepared, runs)
        yield Followed(miss.rule, miss.reason, shape, miss.gain_seconds, times[0] - times[1])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    options: dict[str, Any] = {"threads": args.threads, "without": ["fuse_epilogues"]}
    found = [one for name in MODELS for shape in SHAPES for one in follow(name, shape, options, args.runs)]
    clear = [one for one in found if abs(one.measured) > NOISE or one.predicted > NOISE]
    signs = [one.measured > 0 for one in clear]
    near = [one.measured > 0 and 1 / FACTOR <= one.predicted / one.measured <= FACTOR for one in clear]
    if args.all:
        for one in found:
            reason = re.sub("_", " ", one.reason)
            print(
                f"{one.rule:20} {one.shape!s:22} predicted {one.predicted * 1e6:8.1f} µs, "
                f"measured {one.measured * 1e6:8.1f} µs  {reason}"
            )
    count = max(len(clear), 1)
    print(
        f"{len(found)} hints followed, {len(clear)} above the noise: sign right {sum(signs) / count:.0%} "
        f"(wanted {SIGN:.0%}), size within a factor of {FACTOR:g} {sum(near) / count:.0%} (wanted {SIZE:.0%})"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
