"""Sizes that break what a program takes for granted: each case is compiled when a run needs it, and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dovetail
from dovetail import Builder, ops
from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, SizeError
from tests.frontends.onnx.build import model, node

Array = NDArray[Any]
TARGETS = ("cpu", "reference")


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def compiled(made: onnx.ModelProto, folder: Path, target: str = "cpu") -> dovetail.Program:
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return dovetail.compile(path, target=target, cache="off")


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Which of the two axes of three tensors have size 1, in several runs, with the common sizes."""
    runs: list[tuple[int, int]] = []
    ones: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(2, 4))):
        runs.append((draw(st.integers(0, 3)), draw(st.integers(1, 3))))
        ones.append((draw(st.integers(0, 7)), draw(st.integers(0, 7))))
    return runs, ones


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
@given(drawn=broadcasts())
def test_symbols_broadcast_as_in_numpy(
    drawn: tuple[list[tuple[int, int]], list[tuple[int, int]]], target: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each of three tensors has symbols of its own; in every run each size is 1 or n."""
    nodes = ["Mul a b -> ab", "Add ab c -> y", "Shape y -> s", "Expand one s -> ones", "ReduceSum ones -> count"]
    inputs = {name: f32[f"{name}0", f"{name}1"] for name in "abc"}
    made = model(nodes, inputs, ["y", "count"], initializers={"one": np.ones((), np.float32)})
    program = compiled(made, tmp_path_factory.mktemp("case"), target)
    for sizes, ones in zip(*drawn, strict=True):
        feeds = {
            name: numbers(*(1 if ones[axis] >> i & 1 else sizes[axis] for axis in (0, 1)))
            for i, name in enumerate("abc")
        }
        found = program.run(feeds)
        want = feeds["a"] * feeds["b"] + feeds["c"]
        np.testing.assert_allclose(found["y"], want, rtol=1e-6)
        assert found["y"].shape == want.shape
        assert found["count"] == want.size


@pytest.mark.slow
def test_a_case_is_compiled_once_and_serves_other_sizes(tmp_path: Path) -> None:
    program = compiled(model(["Mul a c -> y"], {"a": f32["b", 4], "c": f32["k", 4]}, ["y"]), tmp_path)
    assert program.cases == ()
    for rows in (3, 5, 3, 7):
        a, c = numbers(rows, 4), numbers(1, 4)
        np.testing.assert_array_equal(program(a=a, c=c)["y"], a * c)
    assert program.cases == ("k = 1",)
    assert program.specialize({"b": 3, "k": 1})(a=numbers(3, 4), c=numbers(1, 4))["y"].shape == (3, 4)


def test_sizes_that_fit_in_no_case_are_refused_with_the_constraint(tmp_path: Path) -> None:
    program = compiled(model(["Mul a c -> y"], {"a": f32["b", 4], "c": f32["k", 4]}, ["y"]), tmp_path)
    for _ in range(2):
        with pytest.raises(SizeError, match="b equals k does not hold: found 3 and 2") as caught:
            program(a=numbers(3, 4), c=numbers(2, 4))
        assert caught.value.symbols == ("b", "k")


def test_a_file_that_has_changed_is_not_read_for_a_case(tmp_path: Path) -> None:
    program = compiled(model(["Mul a c -> y"], {"a": f32["b", 4], "c": f32["k", 4]}, ["y"]), tmp_path)
    compiled(model(["Relu a -> y"], {"a": f32["b", 4]}, ["y"]), tmp_path)
    with pytest.raises(SizeError):
        program(a=numbers(3, 4), c=numbers(1, 4))


def test_a_graph_written_in_python_has_cases_too() -> None:
    b = Builder("g")
    b.output("y", b.input("a", f32["b", 4]) * b.input("c", f32["k", 4]))
    program = dovetail.compile(b.graph(), cache="off")
    a, c = numbers(3, 4), numbers(1, 4)
    np.testing.assert_array_equal(program(a=a, c=c)["y"], a * c)


def test_an_attribute_of_a_size_that_is_broadcast_is_ambiguous() -> None:
    """`y.shape` names one of two sizes: whoever wrote it may have meant the other."""
    b = Builder("g")
    y = b.input("a", f32["b", 4]) * b.input("c", f32["k", 4])
    b.output("y", ops.cast(ops.iota(size=y.shape[0]), dtype=f32))
    b.output("z", y)
    with pytest.raises(SizeError, match="b equals k"):
        dovetail.compile(b.graph(), cache="off")(a=numbers(3, 4), c=numbers(1, 4))


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_may_override_a_default(tmp_path: Path, target: str) -> None:
    default = numbers(16, 16)
    made = model(["MatMul x w -> y"], {"x": f32["b", 16], "w": f32[16, 16]}, ["y"], initializers={"w": default})
    program = compiled(made, tmp_path, target)
    x, other = numbers(2, 16), numbers(16, 16) + 1
    np.testing.assert_allclose(program(x=x)["y"], x @ default, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(program(x=x, w=other)["y"], x @ other, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(program(x=x)["y"], x @ default, rtol=1e-4, atol=1e-4)
    assert program.cases == ("w given",)
    with pytest.raises(BindError, match="there is no input named 'v'"):
        program(x=x, v=other)


def test_a_default_that_decides_the_structure_may_be_overridden(tmp_path: Path) -> None:
    made = model(["Reshape x s -> y"], {"x": f32["b", 16], "s": i64[2]}, ["y"], initializers={"s": np.array([-1, 4])})
    program = compiled(made, tmp_path)
    assert program(x=numbers(2, 16))["y"].shape == (8, 4)
    assert program(x=numbers(2, 16), s=np.array([16, -1]))["y"].shape == (16, 2)


@pytest.mark.parametrize("target", TARGETS)
def test_axes_of_size_1_are_squeezed_out_where_they_turn_out_to_be_1(tmp_path: Path, target: str) -> None:
    program = compiled(model(["Squeeze x -> y"], {"x": f32["b", 1, "c", 4]}, ["y"]), tmp_path, target)
    for b in (1, 3):
        for c in (1, 2):
            x = numbers(b, 1, c, 4)
            np.testing.assert_array_equal(program(x=x)["y"], np.squeeze(x))


@pytest.mark.parametrize("target", TARGETS)
def test_a_branch_of_another_rank_is_taken_where_its_size_says_so(tmp_path: Path, target: str) -> None:
    then = onnx.helper.make_graph([node("Squeeze x axis -> t")], "t", [], [onnx.ValueInfoProto(name="t")])
    other = onnx.helper.make_graph([node("Identity x -> e")], "e", [], [onnx.ValueInfoProto(name="e")])
    nodes: list[Any] = ["Shape x -> s", "Gather s zero -> n", "Equal n one -> is_one"]
    nodes.append(node("If is_one -> y", then_branch=then, else_branch=other))
    given_ = {"zero": np.array(0), "one": np.array(1), "axis": np.array([0])}
    program = compiled(model(nodes, {"x": f32["b", 4]}, ["y"], initializers=given_), tmp_path, target)
    for b in (1, 3, 2):
        x = numbers(b, 4)
        np.testing.assert_array_equal(program(x=x)["y"], x[0] if b == 1 else x)


@pytest.mark.slow
def test_a_size_is_known_from_a_parameter_that_is_rewritten_away() -> None:
    """Found by `make fuzz`: the branch of a constant condition goes, and with it the shape that told the size."""
    builder = Builder("gone")
    x = builder.input("x", f32[1])
    w = builder.param("w", f32["b"], np.ones(3, np.float32))
    builder.output("y", ops.where(dovetail.graphs.constant(np.array([True])), x, w))
    found = dovetail.compile(builder.graph()).run({"x": np.full(1, 2, np.float32)})
    np.testing.assert_array_equal(found["y"], [2, 2, 2])
