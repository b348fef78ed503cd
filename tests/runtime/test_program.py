"""Programs: run, bind, specialise, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import Graph, ops
from dovetail.dtypes import f32, i32
from dovetail.errors import BindError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.passes.specialize import specialize
from dovetail.plan.plan import Plan, make_plan
from dovetail.runtime.program import MOST_SPECIALIZED, Program
from dovetail.targets.reference.claims import CLAIMS as REFERENCE
from dovetail.targets.reference.planned import BoundGraph, PlannedGraph

Array = NDArray[Any]
RANDOM = np.random.default_rng(3)
X = leaf.input("x", f32["s", 4])
W, V = leaf.param("w", f32[4, 2]), leaf.param("v", f32[4, 2])
JOINED = ops.concat(W, V, axis=-1)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def written(text: str) -> Any:
    """A report in small: programs pass it on and look at nothing in it."""
    return lambda: text


class Counting(PlannedGraph):
    """Counts how often parameters are bound."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.binds = 0

    def bind(self, params: Mapping[str, Array]) -> BoundGraph:
        self.binds += 1
        return super().bind(params)


class Compiler:
    """A pipeline in small: compiles a graph, anew for every size."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.asked: list[dict[str, int]] = []
        self.made: list[Counting] = []

    def program(self) -> Program:
        plan = make_plan(self.graph, target=REFERENCE)
        return Program(plan, None, report=written(f"report on {self.graph.symbols}"), specializer=self.specialize)

    def specialize(self, sizes: Mapping[str, int]) -> Program:
        self.asked.append(dict(sizes))
        graph = specialize(self.graph, sizes)
        made = Counting(make_plan(graph, target=REFERENCE))
        self.made.append(made)
        return Program(
            made.plan, made, report=written(f"report on {graph.outputs['y'].type}"), specializer=self.specialize
        )


def static(rows: int = 3) -> tuple[Program, Counting, Array, Array]:
    x = leaf.input("x", f32[rows, 4])
    made = Counting(make_plan(Graph.of(x @ JOINED), target=REFERENCE))
    return Program(made.plan, made, report=written("a report")), made, numbers(4, 2), numbers(4, 2)


def test_runs_by_name_and_by_keyword() -> None:
    program, _, w, v = static()
    bound = program.bind({"w": w, "v": v})
    x = numbers(3, 4)
    expected = np.concatenate([x @ w, x @ v], axis=1)
    for found in (bound.run({"x": x}), bound(x=x)):
        assert list(found) == ["y"]
        np.testing.assert_allclose(found["y"], expected, rtol=1e-5)
    assert bound.plan is program.plan and bound.graph is program.plan.graph and bound.report == "a report"


def test_bind_phase_runs_once_for_each_binding() -> None:
    program, made, w, v = static()
    bound = program.bind({"w": w, "v": v})
    for _ in range(3):
        bound(x=numbers(3, 4))
    assert made.binds == 1
    x = numbers(3, 4)
    np.testing.assert_allclose(bound(x=x)["y"], np.concatenate([x @ w, x @ v], axis=1), rtol=1e-5)
    assert bound.bind({"v": w}) is bound is program
    assert made.binds == 2
    np.testing.assert_allclose(bound(x=x)["y"], np.concatenate([x @ w, x @ w], axis=1), rtol=1e-5)
    np.testing.assert_array_equal(bound.params["v"], w)
    np.testing.assert_array_equal(bound.params["w"], w)


@pytest.mark.parametrize("read_only", [False, True])
def test_an_array_that_changes_after_it_is_bound_changes_nothing(read_only: bool) -> None:
    """A copy is taken unless no one can write to the array."""
    program, _, w, v = static()
    w, v = w.copy(), v.copy()
    if read_only:
        w.flags.writeable = v.flags.writeable = False
    program.bind({"w": w, "v": v})
    x = numbers(3, 4)
    before = program(x=x)["y"]
    assert (program.params["w"] is w) == read_only
    if not read_only:
        w[:], v[:] = 5, 7
    np.testing.assert_array_equal(program(x=x)["y"], before)


def test_parameters_bound_one_by_one() -> None:
    program, made, w, v = static()
    with pytest.raises(BindError, match=r"no array for the parameters w .*, v "):
        program(x=numbers(3, 4))
    program.bind({"w": w})
    assert made.binds == 0
    with pytest.raises(BindError, match=r"no array for the parameter v \(f32\[4, 2\]\)") as caught:
        program(x=numbers(3, 4))
    assert "program.bind" in caught.value.hint
    assert program.bind({"v": v})(x=numbers(3, 4))["y"].shape == (3, 4)


def test_a_refused_binding_leaves_the_program_as_it_was() -> None:
    program, _, w, v = static()
    program.bind({"w": w, "v": v})
    with pytest.raises(BindError):
        program.bind({"w": numbers(4, 3)})
    x = numbers(3, 4)
    np.testing.assert_allclose(program(x=x)["y"], np.concatenate([x @ w, x @ v], axis=1), rtol=1e-5)


def test_parameters_that_came_with_the_graph() -> None:
    x, w, v = numbers(3, 4), numbers(4, 2), numbers(4, 2)
    graph = replace(Graph.of(leaf.input("x", f32[3, 4]) @ JOINED), params={"w": w, "v": v, "unused": numbers(1)})
    made = Counting(make_plan(graph, target=REFERENCE))
    program = Program(made.plan, made)
    assert made.binds == 0
    np.testing.assert_allclose(program(x=x)["y"], np.concatenate([x @ w, x @ v], axis=1), rtol=1e-5)
    with pytest.raises(BindError, match="the parameter w"):
        Program(replace(made.plan, graph=replace(graph, params={"w": numbers(4, 3)})), made)


@pytest.mark.parametrize(
    ("inputs", "message", "hint"),
    [
        ({}, r"no array for the input x \(f32\[3, 4\]\)", "pass an array"),
        ({"x": numbers(3, 4), "z": numbers(1)}, "there is no input named 'z'", "the inputs are x"),
        ({"xx": numbers(3, 4)}, "there is no input named 'xx'", "did you mean x"),
        ({"x": numbers(3, 4), "w": numbers(4, 2)}, "there is no input named 'w'", "it is a parameter: give it to bind"),
        ({"x": numbers(3, 4).astype(np.float64)}, "the input x has the dtype float64, and its type is f32", "astype"),
        ({"x": numbers(3, 4).astype(object)}, "the input x has the dtype object", "astype"),
        ({"x": [1.0, 2.0]}, "the input x is a list, and an array is wanted", "NumPy"),
        ({"x": numbers(3, 5)}, r"the input x has the shape \[3, 5\], and its type is f32\[3, 4\]", "axis 1"),
        ({"x": numbers(12)}, r"the input x has 1 axes, \[12\]", "2 axes"),
        ({"x": numbers(4, 3)}, r"the input x has the shape \[4, 3\]", "axis 0"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, message: str, hint: str) -> None:
    program, _, w, v = static()
    with pytest.raises(BindError, match=message) as caught:
        program.bind({"w": w, "v": v}).run(inputs)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("params", "message", "hint"),
    [
        ({"u": numbers(4, 2)}, "there is no parameter named 'u'", "the parameters are w, v"),
        ({"x": numbers(3, 4)}, "there is no parameter named 'x'", "it is an input: give it to run"),
        ({"w": numbers(4, 2).astype(np.int32)}, "the parameter w has the dtype int32", "astype"),
        ({"w": numbers(2, 4)}, r"the parameter w has the shape \[2, 4\]", "axis 0"),
        ({"w": 1.0}, "the parameter w is a float", "NumPy"),
    ],
)
def test_parameters_that_do_not_fit(params: Any, message: str, hint: str) -> None:
    with pytest.raises(BindError, match=message) as caught:
        static()[0].bind(params)
    assert hint in caught.value.hint


def test_other_byte_order_and_layout_are_taken() -> None:
    program, _, w, v = static()
    x = numbers(3, 4)
    bound = program.bind({"w": np.asfortranarray(w), "v": v.astype(">f4")})
    expected = np.concatenate([x @ w, x @ v], axis=1)
    np.testing.assert_allclose(bound(x=np.asfortranarray(x).astype(">f4"))["y"], expected, rtol=1e-5)


def test_symbolic_program_specialises_by_shape() -> None:
    compiler = Compiler(Graph.of(ops.slice_(X @ JOINED, axis=0, start=0, stop=2)))
    w, v = numbers(4, 2), numbers(4, 2)
    program = compiler.program().bind({"w": w, "v": v})
    for rows in (3, 5, 3):
        x = numbers(rows, 4)
        np.testing.assert_allclose(program(x=x)["y"], np.concatenate([x @ w, x @ v], axis=1)[:2], rtol=1e-5)
    assert compiler.asked == [{"s": 3}, {"s": 5}]
    assert [made.binds for made in compiler.made] == [1, 1]


def test_report_of_a_specialised_program_is_its_own() -> None:
    """Trap: a specialised program kept the report of the symbolic one."""
    compiler = Compiler(Graph.of(X @ JOINED))
    program = compiler.program()
    special = program.specialize({"s": 7})
    assert (program.report, special.report) == ("report on ('s',)", "report on f32[7, 4]")
    assert special.plan.symbols == () and program.plan.symbols == ("s",)
    assert special.plan.fingerprint != program.plan.fingerprint
    assert program.specialize({"s": 7}) is special and len(compiler.asked) == 1


def test_specialised_program_has_the_parameters() -> None:
    compiler = Compiler(Graph.of(X @ JOINED))
    w, v, x = numbers(4, 2), numbers(4, 2), numbers(6, 4)
    program = compiler.program().bind({"w": w, "v": v})
    first = program.specialize({"s": 6})
    program.bind({"v": w})
    second = program.specialize({"s": 6})
    for special, other in ((first, v), (second, w), (first, v)):
        found = special(x=x)["y"]
        np.testing.assert_allclose(found, np.concatenate([x @ w, x @ other], axis=1), rtol=1e-5)
    assert compiler.asked == [{"s": 6}] and compiler.made[0].binds == 2
    with pytest.raises(BindError, match=r"the input x has the shape \[5, 4\]"):
        program.specialize({"s": 6})(x=numbers(5, 4))


def test_few_sizes_are_kept() -> None:
    compiler = Compiler(Graph.of(X * 2.0))
    program = compiler.program()
    for rows in [*range(1, MOST_SPECIALIZED + 2), MOST_SPECIALIZED + 1, 1]:
        assert program(x=np.ones((rows, 4), np.float32))["y"].shape == (rows, 4)
    assert [a["s"] for a in compiler.asked] == [*range(1, MOST_SPECIALIZED + 2), 1]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "graph has no number for s"),
        ({"t": 1}, "graph has no symbol 't'"),
        ({"s": 1}, "s at least 2 does not hold: found 1 and 2"),
        ({"s": -1}, "the symbol s is bound to -1"),
        ({"s": True}, "the symbol s is bound to True"),
    ],
)
def test_sizes_that_do_not_fit(sizes: dict[str, int], message: str) -> None:
    program = Compiler(Graph.of(ops.slice_(X, axis=0, start=0, stop=2))).program()
    with pytest.raises(BindError, match=message):
        program.specialize(sizes)
    assert program(x=numbers(2, 4))["y"].shape == (2, 4)


def test_shapes_that_contradict_each_other() -> None:
    graph = Graph.of({"y": X, "z": leaf.input("z", f32["s"]), "p": leaf.param("p", f32["s"])})
    program = Compiler(graph).program()
    with pytest.raises(BindError, match="it makes s 2, and s is 3 by"):
        program.bind({"p": numbers(3)}).run({"x": numbers(3, 4), "z": numbers(2)})
    with pytest.raises(BindError, match="it makes s 3, and s is 2 by"):
        program.bind({"p": numbers(2)}).run({"x": numbers(3, 4), "z": numbers(3)})


def test_parameter_whose_size_only_an_input_tells() -> None:
    """The shape of p says nothing of s alone; it is checked once x does."""
    graph = Graph.of({"y": X, "p": ops.neg(leaf.param("p", f32[symbol("s") // 2]))})
    plan = make_plan(graph, target=REFERENCE)
    for program in (Compiler(graph).program(), Program(plan, PlannedGraph(plan))):
        bound = program.bind({"p": numbers(3)})
        for rows in (6, 7):
            assert bound.run({"x": numbers(rows, 4)})["p"].shape == (3,)
        with pytest.raises(BindError, match=r"the parameter p has the shape \[3\].* floordiv\(s, 2\) is 2 with s = 4"):
            bound.run({"x": numbers(4, 4)})


def test_static_program_does_not_specialise() -> None:
    with pytest.raises(BindError, match="graph has no symbols"):
        static()[0].specialize({"s": 3})
    symbolic = Program(make_plan(Graph.of(X), target=REFERENCE), None)
    with pytest.raises(BindError, match="graph was made without a specializer"):
        symbolic.specialize({"s": 3})
    with pytest.raises(BindError, match="graph has sizes that are not known: s"):
        symbolic(x=numbers(3, 4))


def test_symbolic_executable_runs_without_a_specializer() -> None:
    plan = make_plan(Graph.of(X * 2.0), target=REFERENCE)
    x = numbers(5, 4)
    np.testing.assert_array_equal(Program(plan, PlannedGraph(plan))(x=x)["y"], x * 2)


def test_sizes_that_depend_on_data_need_no_specialisation() -> None:
    graph = Graph.of(ops.nonzero(leaf.input("x", i32["s"]), count=symbol("n")))
    compiler = Compiler(graph)
    program = compiler.program()
    for given in ([0, 1, 1], [0, 0, 0], [1, 1, 1]):
        found = program(x=np.array(given, np.int32))["y"]
        assert found.tolist() == [[i for i, number in enumerate(given) if number]]
    assert compiler.asked == [{"s": 3}]


@pytest.mark.slow
def test_several_threads_at_once() -> None:
    compiler = Compiler(Graph.of(ops.tanh(X @ JOINED) * 2.0))
    w, v = numbers(4, 2), numbers(4, 2)
    program = compiler.program().bind({"w": w, "v": v})

    def once(rows: int) -> None:
        x = np.random.default_rng(rows).normal(size=(rows % 4 + 1, 4)).astype(np.float32)
        np.testing.assert_allclose(program(x=x)["y"], np.tanh(x @ np.concatenate([w, v], 1)) * 2, rtol=1e-4, atol=1e-6)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(once, range(200)))
    assert sorted(a["s"] for a in compiler.asked) == [1, 2, 3, 4]
    assert [made.binds for made in compiler.made] == [1, 1, 1, 1]


def test_repr() -> None:
    assert repr(static()[0]) == "<program graph for reference: 2 steps>"
