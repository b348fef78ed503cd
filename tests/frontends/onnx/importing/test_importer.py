"""Models become graphs: names, defaults, functions, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dovetail
from dovetail.errors import BindError, LoadError, NeedsValueError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.frontends.onnx.file.skim import HASHED
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.load import load_model
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, i64
from dovetail.ir.value import Value
from tests.frontends.onnx.build import assert_like_onnxruntime, by_dovetail, model, node

X = {"x": f32["b", 4]}


def ones(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


def test_inputs_outputs_and_symbols_keep_their_names() -> None:
    graph = import_model(model(["Add x x -> sum"], X, ["sum"]))
    assert [v.attrs["name"] for v in graph.inputs] == ["x"]
    assert list(graph.outputs) == ["sum"]
    assert graph.outputs["sum"].type == f32["b", 4]
    assert graph.symbols == ("b",)


def test_an_input_that_nobody_reads_is_still_an_input() -> None:
    graph = import_model(model(["Add x x -> y"], {**X, "unused": f32[2]}, ["y"]))
    assert [v.attrs["name"] for v in graph.inputs] == ["x", "unused"]


def test_sizes_without_a_name_get_one_each() -> None:
    made = model(["Add x x -> y"], {"x": f32["b", 4]}, ["y"])
    for dim in made.graph.input[0].type.tensor_type.shape.dim:
        dim.Clear()
    shape = import_model(made).outputs["y"].shape
    assert len(set(shape)) == 2
    assert by_dovetail(made, {"x": ones(3, 5)})[0]["y"].shape == (3, 5)


def test_expressions_as_sizes_are_read() -> None:
    made = model(["Add x x -> y"], {"x": f32["b", 4], "z": f32["b", 2]}, ["y"])
    made.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "b + 1"
    assert [str(v.type) for v in import_model(made).inputs] == ["f32[b, 4]", "f32[b+1, 2]"]


def test_sizes_with_odd_names_become_symbols() -> None:
    made = model(["Add x x -> y"], {"x": f32["b", 4]}, ["y"])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "größe: <b>"
    assert import_model(made).symbols[0].isascii()


def test_large_arrays_are_parameters_and_small_numbers_are_constants() -> None:
    initial = {"w": ones(4, 4), "half": np.float32(0.5) * ones(1)}
    graph = import_model(model(["Add x w -> y", "Add y half -> z"], {"x": f32[4, 4]}, ["z"], initializers=initial))
    assert [v.attrs["name"] for v in graph.parameters] == ["w"]
    assert graph.params["w"] is not None
    assert graph.count(leaf.CONST) == 1


def test_a_table_of_zeros_and_ones_is_a_constant() -> None:
    initial = {"mask": np.tri(4, dtype=np.float32), "w": np.tri(4, dtype=np.float32) * 2}
    graph = import_model(model(["Mul x mask -> y", "Add y w -> z"], {"x": f32[4, 4]}, ["z"], initializers=initial))
    assert [v.attrs["name"] for v in graph.parameters] == ["w"]


def test_numbers_of_large_arrays_decide_nothing(tmp_path: Path) -> None:
    """They are read while a graph is made: a table that is not there yet must not be taken for what it is not."""
    side = math.isqrt(HASHED // 4) + 1
    initial = {"mask": np.tri(side, dtype=np.float32), "w": ones(1500, 1500)}
    made = model(
        ["Mul x mask -> y", "Add z w -> v"],
        {"x": f32[side, side], "z": f32[1500, 1500]},
        ["y", "v"],
        initializers=initial,
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    for graph in (import_model(made), load_model(path)):
        assert {v.attrs["name"] for v in graph.parameters} == {"mask", "w"}


def test_an_initializer_that_is_an_input_too_is_a_default() -> None:
    made = model(["Add x w -> y"], {"x": f32[4, 4], "w": f32[4, 4]}, ["y"], initializers={"w": ones(4, 4)})
    program = dovetail.compile(import_model(made))
    np.testing.assert_array_equal(program(x=ones(4, 4))["y"], 2 * ones(4, 4))
    program.bind({"w": 2 * ones(4, 4)})
    np.testing.assert_array_equal(program(x=ones(4, 4))["y"], 3 * ones(4, 4))


def test_a_sparse_initializer_is_written_out() -> None:
    made = model(["Add x s -> y"], {"x": f32[3, 4]}, ["y"])
    values = numpy_helper.from_array(np.array([5, 7], np.float32), "s")
    indices = numpy_helper.from_array(np.array([1, 11], np.int64), "s_indices")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    expected = ones(3, 4)
    expected[0, 1] += 5
    expected[2, 3] += 7
    np.testing.assert_array_equal(by_dovetail(made, {"x": ones(3, 4)})[0]["y"], expected)


def test_an_input_that_decides_the_structure_can_be_fixed() -> None:
    made = model(["Reshape x s -> y"], {**X, "s": i64[2]}, ["y"])
    with pytest.raises(NeedsValueError, match="depends on s") as raised:
        import_model(made)
    assert raised.value.inputs == ("s",)
    graph = import_model(made, fixed={"s": np.array([2, -1])})
    assert [v.attrs["name"] for v in graph.inputs] == ["x"]
    assert_like_onnxruntime(made, {"x": ones(3, 4)}, {"x": ones(6, 4)}, fixed={"s": np.array([2, -1])})


def test_a_fixed_input_of_another_type_is_refused() -> None:
    made = model(["Reshape x s -> y"], {**X, "s": i64[2]}, ["y"])
    with pytest.raises(BindError, match="float64"):
        import_model(made, fixed={"s": np.array([2.0, -1.0])})


def test_all_unknown_operators_are_listed_at_once() -> None:
    nodes = [
        node("Frobnicate x -> a", name="first"),
        node("Frobnicate a -> b", name="second"),
        node("Grind b -> c", domain="mill", name="third"),
    ]
    with pytest.raises(UnsupportedError) as raised:
        import_model(model(nodes, X, ["c"], domains={"mill": 1}))
    for word in ("2 operators", "Frobnicate", "'first'", "'second'", "mill.Grind", "'third'"):
        assert word in str(raised.value)


def test_a_file_that_was_made_for_one_processor_says_what_to_do() -> None:
    made = model([node("Conv x -> y", domain="com.microsoft.nchwc")], X, ["y"], domains={"com.microsoft.nchwc": 1})
    with pytest.raises(UnsupportedError, match=r"(?s)com.microsoft.nchwc.Conv.*ORT_ENABLE_EXTENDED"):
        import_model(made)


def test_unknown_operators_inside_bodies_and_functions_are_listed_too() -> None:
    inner = helper.make_graph([node("Mystery x -> m")], "then", [], [helper.make_value_info("m", onnx.TypeProto())])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        node("Call x -> z", domain="own"),
    ]
    function = helper.make_function("own", "Call", ["p"], ["q"], [node("Riddle p -> q")], [helper.make_opsetid("", 21)])
    made = model(nodes, {**X, "c": dovetail.dtypes.bool_[()]}, ["y"], domains={"own": 1}, functions=[function])
    with pytest.raises(UnsupportedError, match=r"(?s)Mystery.*Riddle"):
        import_model(made)


def test_an_attribute_that_no_rule_takes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'speed'"):
        import_model(model([node("Add x x -> y", speed=3)], X, ["y"]))


def test_functions_of_the_model_are_written_out() -> None:
    body = [node("Add p q -> s"), node("Relu s -> r")]
    function = helper.make_function("own", "AddRelu", ["p", "q"], ["r"], body, [helper.make_opsetid("", 21)])
    made = model(
        [node("AddRelu x x -> y", domain="own"), node("AddRelu y x -> z", domain="own")],
        X,
        ["z"],
        domains={"own": 1},
        functions=[function],
    )
    assert_like_onnxruntime(made, {"x": ones(2, 4)}, {"x": -ones(3, 4)})


def test_attributes_of_a_function_reach_its_nodes() -> None:
    cast = helper.make_node("Cast", ["p"], ["q"])
    reference = cast.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "to", "kind", onnx.AttributeProto.INT
    function = helper.make_function(
        "own", "Turn", ["p"], ["q"], [cast], [helper.make_opsetid("", 21)], attributes=["kind"]
    )
    call = node("Turn x -> y", domain="own", kind=int(TensorProto.INT64))
    made = model([call], X, ["y"], domains={"own": 1}, functions=[function])
    assert import_model(made).outputs["y"].dtype is i64


def test_values_of_a_function_keep_the_name_of_the_call() -> None:
    function = helper.make_function("own", "Twice", ["p"], ["q"], [node("Add p p -> q", name="inner")], [
        helper.make_opsetid("", 21)
    ])  # fmt: skip
    made = model([node("Twice x -> y", domain="own", name="call")], X, ["y"], domains={"own": 1}, functions=[function])
    graph = import_model(made)
    assert "call (Twice)" in graph.where(graph.outputs["y"])


def test_a_rule_of_the_users_own_reads_an_operator_of_their_own() -> None:
    @rule("Triple", domain="mine")
    def triple(n: Node, x: Value, *, times: int = 3) -> Value:
        """x, times over."""
        return x * times

    made = model([node("Triple x -> y", domain="mine", times=5)], X, ["y"], domains={"mine": 1})
    program = dovetail.compile(import_model(made, rules=triple))
    np.testing.assert_array_equal(program(x=ones(2, 4))["y"], 5 * ones(2, 4))


def test_a_node_that_reads_what_is_not_there_is_refused() -> None:
    made = model(["Add x nothing -> y", "Add x x -> later"], X, ["y"])
    with pytest.raises(LoadError, match="nothing"):
        import_model(made)


def test_the_same_name_twice_is_refused() -> None:
    with pytest.raises(LoadError, match="'y'"):
        import_model(model(["Add x x -> y", "Relu x -> y"], X, ["y"]))


def test_two_versions_of_one_domain_are_refused() -> None:
    made = model(["Add x x -> y"], X, ["y"])
    made.opset_import.append(helper.make_opsetid("ai.onnx", 7))
    with pytest.raises(LoadError, match="at once"):
        import_model(made)


def test_an_opset_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="99"):
        import_model(model(["Add x x -> y"], X, ["y"], opset=99))
