"""Traps 52 to 55: what compiling itself costs. Work is counted, not timed, so that it is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from pytest import MonkeyPatch

from dovetail import Graph, Value, ops
from dovetail.derive.unfuse import unfuse
from dovetail.dtypes import f32
from dovetail.ir import serial
from dovetail.ir.leaf import input, param
from dovetail.ir.text import parse_graph, print_graph
from dovetail.ir.verify import verify
from dovetail.ops.primitive import Primitive
from dovetail.plan.text import parse_plan, print_plan
from dovetail.report.analysis import analyze
from dovetail.report.json_form import as_json
from dovetail.report.report import Report
from dovetail.runtime.compile import Request, compilation, compile, make_request
from dovetail.runtime.vocabulary import vocabulary
from dovetail.targets.reference.interpreter import evaluate
from tests.traps.test_egraph_rules import tower


class Looks:
    """How often values are looked at: every read of an op, of operands or of attributes counts one."""

    def __init__(self, most: float) -> None:
        self.count = 0
        self.most = most

    def at(self, name: str) -> property:
        held = vars(Value)[name]

        def look(value: Value) -> Any:
            self.count += 1
            assert self.count <= self.most, f"more than {self.most:.0f} looks at values"
            return held.__get__(value)

        return property(look, held.__set__)


def looks_of(request: Request, graph: Graph, most: float = float("inf")) -> tuple[int, Report]:
    """How many looks it takes to compile and report a graph; with more than `most` it is stopped."""
    looks = Looks(most)
    with MonkeyPatch.context() as patch:
        for name in ("op", "operands", "attrs"):
            patch.setattr(Value, name, looks.at(name))
        report = compilation(graph, request).report()
    return looks.count, report


@pytest.mark.heavy
def test_trap_52_work_grows_with_the_graph_and_no_faster() -> None:
    """A scan of all nodes for each node goes unnoticed on small models, and takes minutes on large ones.

    Ten more blocks take as many looks at values as the ten before them. Differences leave out what is looked at
    once, or in the first blocks alone.
    """
    request, graphs = make_request(), [tower(count) for count in (20, 30, 40)]
    # Patterns are traced once and for all; that is no work of a graph.
    compilation(graphs[0], request).report()
    (few, small), (more, _) = (looks_of(request, graph) for graph in graphs[:2])
    _, large = looks_of(request, graphs[2], most=more + 1.05 * (more - few))
    assert len(large.kernels) == 2 * len(small.kernels)


@contextmanager
def counted(op: Primitive) -> Generator[list[str]]:
    """Notes each time that the meaning of an op is asked."""
    calls: list[str] = []
    meaning = op.meaning

    def noted(*arrays: Any, **attrs: Any) -> Any:
        calls.append(op.name)
        return meaning(*arrays, **attrs)

    with MonkeyPatch.context() as patch:
        patch.setattr(op, "meaning", noted)
        yield calls


@pytest.mark.slow
def test_trap_53_weights_are_joined_once_for_each_binding() -> None:
    """One wide matmul is no gain where every run concatenates its weights again; kept for good, they go stale.

    Work on weights alone is done when they are bound, not when they are used, and again when others are bound.
    """
    x = input("x", f32[4, 8])
    widths = {"q": 6, "k": 3, "v": 3}
    graph = Graph.of({name: x @ param(name, f32[8, width]) for name, width in widths.items()})
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4, 8)).astype(np.float32)
    for target in ("reference", "cpu"):
        program = compile(graph, target=target, require=["shared_input_matmul"])
        for _ in range(2):
            arrays = {name: rng.normal(size=(8, width)).astype(np.float32) for name, width in widths.items()}
            with counted(ops.concat) as joined:
                program = program.bind(arrays)
                assert joined == ["concat"]
                for _ in range(3):
                    got = program.run({"x": a})
                    for name, array in arrays.items():
                        np.testing.assert_allclose(got[name], a @ array, rtol=1e-5, atol=1e-6)
                assert joined == ["concat"]


def made_by(work: Callable[[], object]) -> int:
    """How many values some work makes."""
    made = 0
    begin = Value.__init__

    def count(self: Value, *parts: Any) -> None:
        nonlocal made
        made += 1
        begin(self, *parts)

    with MonkeyPatch.context() as patch:
        patch.setattr(Value, "__init__", count)
        work()
    return made


@pytest.mark.slow
def test_trap_54_a_report_copies_no_graph() -> None:
    """A report that clones the graph before and after each pass takes more memory than the model it is about.

    Graphs share their values: a report makes none, and what a pass leaves alone is the same object before and after.
    """
    graph = tower(20)
    # Targets with kernels select them for a report, which spells out the bodies of steps.
    made = compilation(graph, make_request(target="reference"))
    assert made_by(made.report) == 0
    assert made_by(lambda: str(made.report())) == 0
    assert made_by(lambda: analyze(graph, made.lowered.graph)) == 0
    assert made.written is graph is made.lowered.records[0].before
    for record in made.lowered.records:
        changed = {v for v in record.before.values if record.after.moved.get(v, v) is not v}
        assert {v for v in record.before.values if v not in changed} <= set(record.after.values)
        assert changed or record.after.outputs == record.before.outputs


LAYERS = 200


def chain(layers: int) -> Graph:
    """A dense layer that is added to its input, so many times one behind the other: four nodes each."""
    x, w, b = input("x", f32["s", 4]), param("w", f32[4, 4]), param("b", f32[4])
    for _ in range(layers):
        x = ops.relu(x @ w + b) - x
    return Graph.of(x)


WEIGHTS = {"w": np.linspace(-0.5, 0.5, 16, dtype=np.float32).reshape(4, 4), "b": np.ones(4, np.float32)}


@contextmanager
def shallow(frames: int) -> Generator[None]:
    """No call may be more than so many frames below this one."""
    limit, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    except RecursionError:
        raise AssertionError(f"more than {frames} calls inside each other") from None
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.slow
def test_trap_55_depth_is_no_recursion() -> None:
    """A walk that calls itself for every operand dies on a model of 200 layers, deep inside and with no word of why.

    No stage needs more frames for eight hundred nodes in a row than for eight, and none to take fifty thousand down.
    """
    words = vocabulary()
    # Patterns are traced before.
    assert compile(chain(1)).report.count("linear") == 1
    with shallow(100):
        graph = chain(LAYERS)
        verify(graph)
        assert parse_graph(print_graph(graph), words).outputs["y"] is graph.outputs["y"]
        assert serial.from_buffer(serial.to_bytes(graph), words).outputs["y"] is graph.outputs["y"]
        program = compile(graph, params=WEIGHTS)
        assert program.report.count("linear") == LAYERS
        assert as_json(program.report) and str(program.report)
        assert unfuse(program.graph).outputs["y"] is graph.outputs["y"]
        assert parse_plan(print_plan(program.plan), words).fingerprint == program.plan.fingerprint
        x = np.full((3, 4), 0.5, np.float32)
        got, judged = program.run({"x": x})["y"], evaluate(graph, {"x": x}, params=WEIGHTS)["y"]
        for _ in range(LAYERS):
            x = np.maximum(x @ WEIGHTS["w"] + WEIGHTS["b"], 0) - x
        np.testing.assert_allclose(got, x, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(judged, x, rtol=1e-3, atol=1e-3)
        deep = input("x", f32[1])
        for _ in range(50_000):
            deep = ops.neg(deep)
        assert Graph.of(deep).count() == 50_001
        del deep
