"""Models whose graphs do not hold together: names, order, versions, types of inputs."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import AttributeProto, TensorProto, helper

from dovetail.ir.dtype import f32
from tests.frontends.onnx.build import model, node
from tests.hostile.case import collected, hostile, variants

X = {"x": f32["n", 4]}


@hostile("LoadError", says="two values")
def two_nodes_make_one_value(folder: Path) -> onnx.ModelProto:
    """Two nodes make a value of one name."""
    return model(["Relu x -> y", "Neg x -> y"], X, ["y"])


@hostile("LoadError", says="two values")
def node_makes_an_input(folder: Path) -> onnx.ModelProto:
    """A node makes what is already an input."""
    return model(["Relu x -> x"], X, ["x"])


@hostile("LoadError", says="two values")
def node_makes_a_value_twice(folder: Path) -> onnx.ModelProto:
    """One node gives one name to two of its outputs."""
    return model([node("Split x -> y y", axis=1, num_outputs=2)], X, ["y"])


@hostile("LoadError", says="two times input")
def two_inputs_of_one_name(folder: Path) -> onnx.ModelProto:
    """Two inputs have one name."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.input.append(made.graph.input[0])
    return made


@hostile("LoadError", says="two times output")
def two_outputs_of_one_name(folder: Path) -> onnx.ModelProto:
    """Two outputs have one name."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.output.append(made.graph.output[0])
    return made


@hostile("LoadError", says="two times initializer")
def two_initializers_of_one_name(folder: Path) -> onnx.ModelProto:
    """Two initializers of one name and different numbers."""
    made = model(["Add x w -> y"], X, ["y"])
    made.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4], [1, 2, 3, 4]))
    made.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [4], [5, 6, 7, 8]))
    return made


@hostile("LoadError", says="without a name")
def initializer_without_a_name(folder: Path) -> onnx.ModelProto:
    """An initializer that nobody can read."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.initializer.append(helper.make_tensor("", TensorProto.FLOAT, [1], [1]))
    return made


@hostile("LoadError", says="without a name")
def input_without_a_name(folder: Path) -> onnx.ModelProto:
    """An input that nobody can give."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.input[0].name = ""
    return made


@hostile("LoadError", says="nothing is named")
def dangling_edge(folder: Path) -> onnx.ModelProto:
    """A node reads a value that nothing makes."""
    return model(["Add x nowhere -> y"], X, ["y"])


@hostile("LoadError", says="nothing makes the output")
def output_that_nothing_makes(folder: Path) -> onnx.ModelProto:
    """An output that nothing makes."""
    return model(["Relu x -> y"], X, ["z"])


@hostile("LoadError", says="cycle")
def cycle_of_two_nodes(folder: Path) -> onnx.ModelProto:
    """Two nodes read each other."""
    return model(["Add x b -> a", "Add x a -> b"], X, ["b"])


@hostile("LoadError", says="cycle")
def node_reads_itself(folder: Path) -> onnx.ModelProto:
    """A node reads what it makes."""
    return model(["Add x y -> y"], X, ["y"])


@hostile("LoadError", says="cycle")
def cycle_of_ten_thousand_nodes(folder: Path) -> onnx.ModelProto:
    """A ring of ten thousand nodes."""
    ring = 10_000
    return model([f"Add x v{(i - 1) % ring} -> v{i}" for i in range(ring)], X, ["v1"])


@hostile()
def nodes_out_of_order(folder: Path) -> onnx.ModelProto:
    """A node stands before what it reads: they are read in another order."""
    return model(["Relu a -> y", "Neg x -> a"], X, ["y"])


@hostile("LoadError", says="without an operator")
def node_without_an_operator(folder: Path) -> onnx.ModelProto:
    """A node that does not say what it does."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.node[0].op_type = ""
    return made


@hostile("LoadError", says="twice")
def attribute_twice(folder: Path) -> onnx.ModelProto:
    """One attribute with two values."""
    made = model([node("Softmax x -> y", axis=0)], X, ["y"])
    made.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    return made


@hostile("LoadError", says="without a name")
def attribute_without_a_name(folder: Path) -> onnx.ModelProto:
    """An attribute that has no name."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.node[0].attribute.append(AttributeProto(type=AttributeProto.INT, i=1))
    return made


@hostile("LoadError", says="refers to")
def reference_outside_of_a_function(folder: Path) -> onnx.ModelProto:
    """An attribute that refers to one of a function, in none."""
    made = model(["Softmax x -> y"], X, ["y"])
    made.graph.node[0].attribute.append(AttributeProto(name="axis", ref_attr_name="axis", type=AttributeProto.INT))
    return made


@hostile("LoadError", says="at once")
def conflicting_opsets(folder: Path) -> onnx.ModelProto:
    """Two versions of one domain."""
    made = model(["Relu x -> y"], X, ["y"])
    made.opset_import.append(helper.make_opsetid("", 13))
    return made


@hostile("LoadError", says="at once")
def conflicting_opsets_under_two_names(folder: Path) -> onnx.ModelProto:
    """Two versions of one domain that has two names."""
    made = model(["Relu x -> y"], X, ["y"])
    made.opset_import.append(helper.make_opsetid("ai.onnx", 13))
    return made


@hostile("LoadError", says="opset")
def no_opset(folder: Path) -> onnx.ModelProto:
    """A model that imports nothing."""
    made = model(["Relu x -> y"], X, ["y"])
    del made.opset_import[:]
    return made


@hostile("LoadError", says="imports no opset")
def domain_that_is_not_imported(folder: Path) -> onnx.ModelProto:
    """An operator of a domain of which no version is imported."""
    return model([node("FusedMatMul x x -> y", domain="com.microsoft")], X, ["y"])


def opset_version(folder: Path, version: int) -> onnx.ModelProto:
    """An opset version that does not exist:"""
    return model(["Relu x -> y"], X, ["y"], opset=version)


opset_versions = variants(
    opset_version,
    {"zero": (0,), "negative": (-1,), "twenty_nine": (29,), "largest": (2**63 - 1,), "least": (-(2**63),)},
    "LoadError",
    "UnsupportedError",
)


@hostile("LoadError", "UnsupportedError")
def version_of_another_domain(folder: Path) -> onnx.ModelProto:
    """A version of a stranger's domain that fits no machine word."""
    made = model([node("Op x -> y", domain="elsewhere")], X, ["y"], domains={"elsewhere": 2**40})
    return made


@hostile("LoadError", says="control characters")
def name_with_control_characters(folder: Path) -> onnx.ModelProto:
    """A name that would clear the screen it is shown on."""
    return model([helper.make_node("Relu", ["x"], ["\x1b[2J\x07y"])], X, ["\x1b[2J\x07y"])


@hostile("LoadError", says="control characters")
def name_with_lines(folder: Path) -> onnx.ModelProto:
    """A name that pretends to be a message of its own."""
    return model([helper.make_node("Relu", ["x"], ["y"], name="a\nerror: all is well")], X, ["y"])


@hostile("LoadError", says="control characters")
def name_that_turns_text_around(folder: Path) -> onnx.ModelProto:
    """A name that is shown from right to left."""
    return model([helper.make_node("Relu", ["x"], ["\u202ey"])], X, ["\u202ey"])


@hostile("LoadError", says="characters")
def name_of_megabytes(folder: Path) -> onnx.ModelProto:
    """A name of four megabytes."""
    return model([helper.make_node("Relu", ["x"], ["y" * (4 << 20)])], X, ["y" * (4 << 20)])


@hostile("LoadError", says="characters")
def operator_of_megabytes(folder: Path) -> onnx.ModelProto:
    """An operator of a megabyte."""
    return model([helper.make_node("Relu" * (1 << 18), ["x"], ["y"])], X, ["y"])


@hostile("UnsupportedError", says="<script>")
def name_with_markup(folder: Path) -> onnx.ModelProto:
    """A name that is a program where markup is shown."""
    return model([helper.make_node("Nothing", ["x"], ["y"], name="<script>alert(1)</script>")], X, ["y"])


@hostile("UnsupportedError", says="more operators")
def thousands_of_unknown_operators(folder: Path) -> onnx.ModelProto:
    """Ten thousand operators that nobody knows, each with a long name."""
    nodes = [helper.make_node(f"Op{i}", ["x"], [f"y{i}"], name=f"{i}" + "n" * 500) for i in range(10_000)]
    return model(nodes, X, ["y0"])


def dims(folder: Path, size: int) -> onnx.ModelProto:
    """An input with a size that is"""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size
    return made


sizes = variants(dims, {"negative": (-2,), "largest": (2**63 - 1,), "least": (-(2**63),)}, "LoadError")


@hostile("LoadError", "GraphError", "TypeRuleError", "VerifyError", "UnsupportedError")
def input_of_a_thousand_axes(folder: Path) -> onnx.ModelProto:
    """An input of rank one thousand."""
    return model(["Relu x -> y"], {"x": f32[(1,) * 1000]}, ["y"])


@hostile(stage="compile")
def input_of_the_largest_sizes(folder: Path) -> onnx.ModelProto:
    """An input that fits no machine: it can be compiled, and nobody can give it."""
    return model(["Relu x -> y"], {"x": f32[2**40, 2**40]}, ["y"])


@hostile("LoadError", "UnsupportedError")
def input_of_an_unknown_element_type(folder: Path) -> onnx.ModelProto:
    """An element type of a number that has no meaning."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.input[0].type.tensor_type.elem_type = 77
    return made


@hostile("UnsupportedError")
def input_of_strings(folder: Path) -> onnx.ModelProto:
    """An input of strings."""
    made = model(["Identity x -> y"], X, ["y"])
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    return made


@hostile("UnsupportedError")
def input_without_a_type(folder: Path) -> onnx.ModelProto:
    """An input of no type."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.input[0].ClearField("type")
    return made


@hostile()
def size_with_a_name_of_megabytes(folder: Path) -> onnx.ModelProto:
    """A symbolic size whose name is a megabyte of brackets."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "(" * (1 << 20)
    return made


@hostile()
def size_that_is_an_expression(folder: Path) -> onnx.ModelProto:
    """A symbolic size that is the product of many sums."""
    made = model(["Relu x -> y"], X, ["y"])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "*".join(["(a+b+c+d+e)"] * 10)
    return made


@hostile()
def thousands_of_unnamed_sizes(folder: Path) -> onnx.ModelProto:
    """Five thousand inputs with sizes that have no name, whose names begin alike."""
    made = model(["Relu x -> y"], X, ["y"])
    info = helper.make_tensor_value_info("", TensorProto.FLOAT, [None])
    for i in range(5_000):
        info.name = "input" * 20 + str(i)
        made.graph.input.append(info)
    return made


@hostile()
def hundred_thousand_metadata_entries(folder: Path) -> onnx.ModelProto:
    """A hundred thousand notes that nobody reads."""
    made = model(["Relu x -> y"], X, ["y"])
    helper.set_model_props(made, {f"key{i}": "value" for i in range(100_000)})
    return made


@hostile("UnsupportedError", says="training")
def model_that_trains(folder: Path) -> onnx.ModelProto:
    """A model with training steps."""
    made = model(["Relu x -> y"], X, ["y"])
    made.training_info.add().algorithm.CopyFrom(made.graph)
    return made


CASES = collected(globals())
