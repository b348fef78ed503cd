"""Names, modules and source lines of nodes reach the values that they become."""

from __future__ import annotations

from onnx import NodeProto, helper

from dovetail.frontends.onnx.importing.origins import origins_of


def spelled(node: NodeProto) -> list[tuple[str, str]]:
    return [(o.kind, o.name) for o in origins_of(node)]


def noted(**properties: str) -> NodeProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="node_linear_1")
    for key, value in properties.items():
        entry = node.metadata_props.add()
        entry.key, entry.value = f"pkg.torch.onnx.{key}", value
    return node


def test_a_node_is_known_by_its_name_and_operator() -> None:
    assert spelled(helper.make_node("Add", ["x", "x"], ["y"], name="sum")) == [("onnx", "sum (Add)")]


def test_a_node_without_a_name_goes_by_its_first_output() -> None:
    assert spelled(helper.make_node("Split", ["x"], ["", "b"])) == [("onnx", "b (Split)")]
    assert spelled(NodeProto(op_type="Add")) == [("onnx", "Add")]


def test_the_path_in_a_name_is_a_module() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="/model/encoder/layer.0/attention/self/MatMul")
    assert spelled(node)[1] == ("module", "model.encoder.layer.0.attention.self")


def test_scopes_and_frames_of_the_dynamo_exporter() -> None:
    trace = (
        'File "/code/model.py", line 12, in forward\n    y = f(x)\n  File "/x/site-packages/torch/nn.py", line 9, in g'
    )
    node = noted(name_scopes="['', 'encoder', 'encoder.query', 'linear_1']", stack_trace=trace)
    assert spelled(node)[1:] == [("module", "encoder.query"), ("source", "model.py:12")]


def test_frames_in_the_doc_string_of_the_torchscript_exporter() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="m")
    node.doc_string = (
        "/x/site-packages/torch/nn/functional.py(1848): linear\n/code/net.py(7): forward\n/code/net.py(3): g\n"
    )
    assert spelled(node)[1:] == [("source", "net.py:7")]


def test_notes_that_are_no_lists_and_no_frames_say_nothing() -> None:
    for scopes in ("[", "3", "['alone']", "(" * 5000, "__import__('os').getcwd()"):
        assert spelled(noted(name_scopes=scopes, stack_trace="nothing")) == [("onnx", "node_linear_1 (MatMul)")]


def test_long_names_stay_short() -> None:
    assert all(len(o.name) < 200 for o in origins_of(helper.make_node("Add", ["x"], ["y"], name="n" * 10**6)))
