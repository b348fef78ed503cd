"""Assignments to slices whose bounds the run computes, against onnxruntime: `x[:, start:end] = v` in a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import dovetail
from dovetail.errors import BindError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import bool_, f32, i64
from dovetail.ir.graph import walk_into
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, body, model, node

SIZE = 5
CONSTANTS: dict[str, Array] = {
    "one": np.array([1], np.int64),
    "axis": np.array([1], np.int64),
    "scalar": np.array(1, np.int64),
    "column": np.array([1, -1, 1], np.int64),
    "head": np.array([0], np.int64),
    "two": np.array([2], np.int64),
    "three": np.array([3], np.int64),
}


def assignment(x: str, start: str, end: str, v: str, y: str, *, range_end: str | None = None) -> list[Any]:
    """`y` is x with v broadcast to `[:, start:end, :]`, in the nodes that paddle2onnx writes."""
    return [
        f"Slice {x} {start} {end} axis one -> {y}_old",
        f"Shape {y}_old -> {y}_shape",
        f"Expand {v} {y}_shape -> {y}_new",
        f"Squeeze {start} -> {y}_first",
        f"Squeeze {range_end or end} -> {y}_last",
        f"Range {y}_first {y}_last scalar -> {y}_range",
        f"Reshape {y}_range column -> {y}_column",
        f"Slice {y}_shape head one -> {y}_rows",
        f"Slice {y}_shape two three -> {y}_columns",
        node(f"Concat {y}_rows one {y}_columns -> {y}_repeats", axis=0),
        f"Tile {y}_column {y}_repeats -> {y}_indices",
        node(f"ScatterElements {x} {y}_indices {y}_new -> {y}", axis=1),
    ]


def whole_number(of: str, to: str) -> list[Any]:
    """Numbers that come as data: an integer input would be a choice of the caller."""
    return [node(f"Cast {of} -> {to}", to=7)]


def assigning(*, range_end: str | None = None, rows: int | str = 2) -> onnx.ModelProto:
    nodes = [
        *whole_number("s", "start"),
        *whole_number("e", "end"),
        *whole_number("r", "other"),
        *assignment("x", "start", "end", "v", "y", range_end=range_end),
    ]
    inputs = {"x": f32[rows, SIZE, 3], "v": f32[rows, 1, 3], "s": f32[1], "e": f32[1], "r": f32[1]}
    return model(nodes, inputs, ["y"], opset=13, initializers=CONSTANTS)


def feeds(start: int, end: int, other: int = 0) -> dict[str, Array]:
    draw = np.random.default_rng(abs(start) * 7 + end)
    arrays = {"x": draw.normal(size=(2, SIZE, 3)), "v": draw.normal(size=(2, 1, 3))}
    numbers = {"s": np.array([start]), "e": np.array([end]), "r": np.array([other])}
    return {name: a.astype(np.float32) for name, a in {**arrays, **numbers}.items()}


def finds_sizes(made: onnx.ModelProto) -> bool:
    return any(v.op.name == "counting" for v in walk_into(import_model(made).outputs.values()))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, "b"])
def test_any_slice(rows: int | str) -> None:
    made = assigning(rows=rows)
    assert not finds_sizes(made)
    inside = [(s, e) for s in range(SIZE + 1) for e in range(s, SIZE + 1)]
    from_the_end = [(-s, -e) for s in range(1, SIZE + 1) for e in range(1, s + 1)]
    assert_like_onnxruntime(made, *(feeds(s, e) for s, e in (*inside, *from_the_end, (4, 2))))


@pytest.mark.slow
@pytest.mark.parametrize("start, end, other", [(0, 2, 3), (0, 3, 2), (4, 5, 7), (-6, -4, -4), (5, 5, 6)])
def test_a_range_that_does_not_fit_the_slice_is_an_error(start: int, end: int, other: int) -> None:
    made = assigning(range_end="other")
    program = dovetail.compile(import_model(made), target="cpu")
    with pytest.raises(BindError):
        program.run(feeds(start, end, other))
    right = feeds(1, 3, 3)
    np.testing.assert_array_equal(program.run(right)["y"][:, 1:3], np.repeat(right["v"], 2, axis=1))


def loop(*, clipped: bool = True) -> onnx.ModelProto:
    """Trip i writes v · (i + 1) to row i of a carry, until its largest element reaches a bound."""
    nodes: Sequence[Any] = [
        "Unsqueeze i head -> at",
        "Add at one -> after",
        "Min after size -> end" if clipped else "Identity after -> end",
        node("Cast after -> factor", to=1),
        "Mul v factor -> scaled",
        *assignment("carry", "at", "end", "scaled", "written"),
        node("ReduceMax scaled -> largest", keepdims=0),
        "Less largest bound -> again",
    ]
    inside = body(nodes, {"i": i64[()], "c": bool_[()], "carry": f32[2, SIZE, 3]}, {"again": bool_, "written": f32})
    return model(
        [node("Loop most go x -> y", body=inside)],
        {"x": f32[2, SIZE, 3], "v": f32[2, 1, 3], "bound": f32[()], "go": bool_[()]},
        ["y"],
        opset=13,
        initializers={**CONSTANTS, "most": np.array(100, np.int64), "size": np.array([SIZE], np.int64)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_that_assigns_a_row_in_every_trip_runs_as_compiled_code(threads: int) -> None:
    made = loop()
    program = dovetail.compile(import_model(made), target="cpu", threads=threads)
    assert not [k.op for k in program.report.kernels if k.on_host]
    x, v = np.full((2, SIZE, 3), 9, np.float32), np.ones((2, 1, 3), np.float32)
    for go, bound in ((False, 0.0), (True, 0.0), (True, 3.0), (True, SIZE)):
        feed = {"x": x, "v": v, "bound": np.array(bound, np.float32), "go": np.array(go)}
        got = program.run(feed)["y"]
        trips = max(1, int(bound)) if go else 0
        expected = [[i + 1 if i < trips else 9] * 3 for i in range(SIZE)]
        assert got.tolist() == [expected, expected]
    assert_like_onnxruntime(made, {"x": x, "v": v, "bound": np.array(2.5, np.float32), "go": np.array(True)})


@pytest.mark.slow
def test_a_row_beyond_the_end_of_a_carry() -> None:
    """Slice clips its bounds and Range does not: where the model clips neither, there is an index and no row."""
    feed = {"x": np.ones((2, SIZE, 3), np.float32), "v": np.ones((2, 1, 3), np.float32), "go": np.array(True)}
    trips = {**feed, "bound": np.array(SIZE + 2, np.float32)}
    assert_like_onnxruntime(loop(), trips)
    program = dovetail.compile(import_model(loop(clipped=False)), target="cpu")
    with pytest.raises(BindError):
        program.run(trips)
    program.run({**feed, "bound": np.array(SIZE, np.float32)})
