"""Drawn graphs on drawn meshes with drawn placements, judged by the same graph on one device: `make placements`."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from dovetail import Builder, Graph, compile, ops
from dovetail.ir import origin
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.targets import xla
from tests.strategies import graphs
from tests.tolerances import assert_close

NOWHERE = "the program"
"""Of a collective without a place."""
MESHES = ({"a": 2}, {"a": 4}, {"a": 8}, {"a": 2, "b": 2}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2})


@dataclass(frozen=True, slots=True)
class Placed:
    """A graph, what it is run with, and where its tensors are."""

    graph: Graph
    feeds: Mapping[str, Array]
    mesh: Mapping[str, int]
    place: Mapping[str, str]


@st.composite
def placed(draw: DrawFn) -> Placed:
    """A graph of primitives or a network, whose sizes are powers of two, so that many axes can be split."""
    sizes = st.sampled_from((2, 4, 8))
    graph, feeds = draw(st.one_of(graphs(among=(f32,), extents=sizes, nodes=(5, 12)), networks(), networks()))
    mesh = draw(st.sampled_from(MESHES))
    leaves = [*graph.parameters, *graph.inputs]
    rules = {str(v.attrs["name"]): draw(_words(v, mesh)) for v in leaves}
    return Placed(graph, feeds, mesh, {name: words for name, words in rules.items() if words})


@st.composite
def networks(draw: DrawFn) -> tuple[Graph, dict[str, Array]]:
    """Layers with weights of two axes, one after the other."""
    builder = Builder("network")
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    batch, width = draw(st.sampled_from((4, 8))), draw(st.sampled_from((4, 8, 16)))
    x = builder.input("x", f32[batch, 4, width])
    feeds = {"x": rng.standard_normal((batch, 4, width)).astype(np.float32)}
    for number in range(draw(st.integers(1, 4))):
        with builder.recording(), origin.scope(f"layers.{number}"):
            inner = draw(st.sampled_from((8, 16)))
            up, down = (
                builder.param(f"layers.{number}.{name}", f32[shape], rng.standard_normal(shape).astype(np.float32) / 4)
                for name, shape in (("up", (width, inner)), ("down", (inner, width)))
            )
            match draw(st.sampled_from(("mlp", "softmax", "norm", "mixed", "scores"))):
                case "mlp":
                    x = x + ops.tanh(x @ up) @ down
                case "softmax":
                    h = ops.exp(ops.tanh(x @ up))
                    x = (h / ops.reduce_sum(h, axes=(-1,))) @ down
                case "norm":
                    x = (x - ops.reduce_mean(x, axes=(-1,))) @ up @ down
                case "mixed":
                    x = x + ops.permute(ops.permute(x, order=(-2, -3, -1)) @ up @ down, order=(-2, -3, -1))
                case _:
                    q = x @ up
                    x = x + ops.tanh(q @ ops.permute(q, order=(-1, -2))) @ x
    builder.output("y", ops.tanh(x))
    return builder.graph(), feeds


def _words(value: Value, mesh: Mapping[str, int]) -> SearchStrategy[str]:
    """A placement of a tensor: each mesh axis splits at most one of its axes, evenly."""

    @st.composite
    def words(draw: DrawFn) -> str:
        left = draw(st.permutations(list(mesh)))
        said: list[str] = []
        for size in value.shape:
            over: list[str] = []
            while left and draw(st.integers(0, 3)):
                parts = mesh[left[0]]
                for axis in over:
                    parts *= mesh[axis]
                if not isinstance(size, int) or size % parts:
                    break
                over.append(left.pop(0))
            said.append("+".join(over) or "-")
        return " ".join(said)

    return words()


def check(case: Placed) -> Counter[str]:
    """Run it on the mesh and on one device; explain it. Gives what was counted."""
    from dovetail.mesh import explain_placement
    from dovetail.targets.xla.explain.compiled import read_text

    target = xla.target(mesh=case.mesh, place=case.place)
    program = compile(case.graph, target=target)
    alone = compile(case.graph, target="xla").run(case.feeds)
    found = program.run(case.feeds)
    for name, value in case.graph.outputs.items():
        assert_close(found[name], alone[name], value.dtype, scale=2.0)
    explained = explain_placement(case.graph, mesh=case.mesh, place=case.place)
    for one in explained.collectives:
        assert one.place != NOWHERE and one.why and one.axes and one.origins, (case.mesh, case.place, one)
    runner: Any = program._binding.runner  # pyright: ignore[reportPrivateUsage]
    compiled = Counter(c.kind for c in read_text(runner.compiled.as_text(), explained.placement))
    counts = Counter(placements=1, explained=len(explained.collectives), compiled=compiled.total())
    counts["equal"] = int(compiled == explained.counts)
    return counts


def run(count: int, start: int, told: Callable[[str], object] = print) -> tuple[Counter[str], int]:
    """Draw this many; the totals, and how many were wrong."""
    totals, wrong = Counter[str](), 0

    @seed(start)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=())
    @given(placed())
    def drawn(case: Placed) -> None:
        nonlocal wrong
        try:
            totals.update(check(case))
        except Exception as error:  # whatever goes wrong is what is looked for
            wrong += 1
            told(f"wrong: {type(error).__name__}: {error}\n{case.mesh} {case.place}\n{case.graph}")

    drawn()
    return totals, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="make placements", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    totals, wrong = run(said.count, said.seed)
    print(
        f"{totals['placements'] + wrong} placements: {wrong} wrong; {totals['explained']} collectives explained, "
        f"{totals['compiled']} compiled, the same kinds and counts in {totals['equal']}"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    sys.exit(main())
