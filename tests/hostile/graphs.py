"""Models whose graphs do not hold together: names, order, versions, functions, bodies."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import AttributeProto, TensorProto, helper

from dovetail.ir.dtype import bool_, f32, i64
from tests.frontends.onnx.build import model, node
from tests.hostile.case import collected, hostile, variants

X = {"x": f32["n", 4]}


def function(name: str, nodes: list[onnx.NodeProto], **more: list[str]) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, imports, more.get("attributes", []))


def call(name: str, read: str, made: str) -> onnx.NodeProto:
    return node(f"{name} {read} -> {made}", domain="own")


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


@hostile("LoadError", says="behind the node")
def nodes_out_of_order(folder: Path) -> onnx.ModelProto:
    """A node stands before what it reads."""
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


@hostile("LoadError", says="at once")
def conflicting_opsets_of_a_function(folder: Path) -> onnx.ModelProto:
    """A function that imports two versions of one domain."""
    made = function("f", [node("Relu a -> b")])
    made.opset_import.append(helper.make_opsetid("", 7))
    return model([call("f", "x", "y")], X, ["y"], domains={"own": 1}, functions=[made])


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


@hostile("LoadError", says="calls itself")
def function_that_calls_itself(folder: Path) -> onnx.ModelProto:
    """A function that has no end."""
    return model([call("f", "x", "y")], X, ["y"], domains={"own": 1}, functions=[function("f", [call("f", "a", "b")])])


@hostile("LoadError", says="calls itself")
def functions_that_call_each_other(folder: Path) -> onnx.ModelProto:
    """Three functions in a ring."""
    ring = [function(f"f{i}", [call(f"f{(i + 1) % 3}", "a", "b")]) for i in range(3)]
    return model([call("f0", "x", "y")], X, ["y"], domains={"own": 1}, functions=ring)


@hostile("LoadError", says="calls itself")
def function_that_calls_itself_in_a_body(folder: Path) -> onnx.ModelProto:
    """A function that calls itself inside of a branch."""
    branch = helper.make_graph([call("f", "a", "c")], "branch", [], [onnx.ValueInfoProto(name="c")])
    always = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("", TensorProto.BOOL, [], [True]))
    made = function("f", [always, node("If yes -> b", then_branch=branch, else_branch=branch)])
    return model([call("f", "x", "y")], X, ["y"], domains={"own": 1}, functions=[made])


@hostile("LoadError", says="written out")
def doubling_functions(folder: Path) -> onnx.ModelProto:
    """Thirty functions, each calling the one before twice: a thousand million nodes."""
    chain = [function("f0", [node("Relu a -> b")])]
    chain += [function(f"f{i}", [call(f"f{i - 1}", "a", "c"), call(f"f{i - 1}", "c", "b")]) for i in range(1, 31)]
    return model([call("f30", "x", "y")], X, ["y"], domains={"own": 1}, functions=chain)


@hostile("LoadError", says="functions")
def doubling_functions_of_forty_levels(folder: Path) -> onnx.ModelProto:
    """Forty functions, each calling the one before twice: a million million nodes."""
    chain = [function("f0", [node("Relu a -> b")])]
    chain += [function(f"f{i}", [call(f"f{i - 1}", "a", "c"), call(f"f{i - 1}", "c", "b")]) for i in range(1, 41)]
    return model([call("f40", "x", "y")], X, ["y"], domains={"own": 1}, functions=chain)


@hostile("LoadError", says="functions")
def functions_that_multiply_by_a_thousand(folder: Path) -> onnx.ModelProto:
    """Three functions that call the one before a thousand times."""
    chain = [function("f0", [node("Relu a -> b")])]
    for i in range(1, 4):
        nodes = [call(f"f{i - 1}", "a" if k == 0 else f"c{k}", f"c{k + 1}") for k in range(1000)]
        chain.append(function(f"f{i}", [*nodes, node("Identity c1000 -> b")]))
    return model([call("f3", "x", "y")], X, ["y"], domains={"own": 1}, functions=chain)


@hostile("LoadError", says="functions")
def constant_that_calls_multiply(folder: Path) -> onnx.ModelProto:
    """A constant of a megabyte in a function that is called a million times over."""
    big = helper.make_tensor("", TensorProto.FLOAT, [1 << 18], bytes(1 << 20), raw=True)
    first = function("f0", [helper.make_node("Constant", [], ["k"], value=big), node("Relu a -> b")])
    chain = [first]
    for i in range(1, 3):
        nodes = [call(f"f{i - 1}", "a" if k == 0 else f"c{k}", f"c{k + 1}") for k in range(100)]
        chain.append(function(f"f{i}", [*nodes, node("Identity c100 -> b")]))
    return model([call("f2", "x", "y")], X, ["y"], domains={"own": 1}, functions=chain)


@hostile("LoadError", says="deeper")
def functions_a_thousand_deep(folder: Path) -> onnx.ModelProto:
    """A thousand functions, each calling the next."""
    chain = [function(f"f{i}", [call(f"f{i + 1}", "a", "b")]) for i in range(1000)]
    chain.append(function("f1000", [node("Relu a -> b")]))
    return model([call("f0", "x", "y")], X, ["y"], domains={"own": 1}, functions=chain)


@hostile("LoadError", says="two functions")
def two_functions_of_one_name(folder: Path) -> onnx.ModelProto:
    """Two functions of one name that do different things."""
    twice = [function("f", [node("Relu a -> b")]), function("f", [node("Neg a -> b")])]
    return model([call("f", "x", "y")], X, ["y"], domains={"own": 1}, functions=twice)


@hostile("LoadError", says="nothing is named")
def function_that_reads_what_is_around(folder: Path) -> onnx.ModelProto:
    """A function that reads a value of its caller."""
    return model([call("f", "x", "y")], X, ["y"], domains={"own": 1}, functions=[function("f", [node("Add a x -> b")])])


@hostile("UnsupportedError", says="replaces")
def function_that_replaces_an_operator(folder: Path) -> onnx.ModelProto:
    """A function that takes the place of an operator of ONNX itself."""
    own = helper.make_function("", "Relu", ["a"], ["b"], [node("Neg a -> b")], [helper.make_opsetid("", 21)])
    return model(["Relu x -> y"], X, ["y"], functions=[own])


@hostile("LoadError", says="no attribute")
def function_with_an_attribute_that_it_lacks(folder: Path) -> onnx.ModelProto:
    """A call with an attribute that the function does not have."""
    called = node("f x -> y", domain="own", strength=3)
    return model([called], X, ["y"], domains={"own": 1}, functions=[function("f", [node("Relu a -> b")])])


@hostile("LoadError")
def function_of_too_many_inputs(folder: Path) -> onnx.ModelProto:
    """A call that reads more than the function takes."""
    called = node("f x x x -> y", domain="own")
    return model([called], X, ["y"], domains={"own": 1}, functions=[function("f", [node("Relu a -> b")])])


def nested(depth: int) -> onnx.ModelProto:
    graph = helper.make_graph([node("Relu x -> r")], "inner", [], [onnx.ValueInfoProto(name="r")])
    for level in range(depth):
        made = [node(f"If c -> v{level}", then_branch=graph, else_branch=graph)]
        graph = helper.make_graph(made, "body", [], [onnx.ValueInfoProto(name=f"v{level}")])
    last = graph.node[0]
    return model([last], {**X, "c": bool_[()]}, [last.output[0]])


@hostile()
def branches_four_deep(folder: Path) -> onnx.ModelProto:
    """Branches in branches, as deep as real models go."""
    return nested(4)


@hostile()
def branches_that_double(folder: Path) -> onnx.ModelProto:
    """Seven branches in each other, each written twice: a hundred bodies, as long as the file is."""
    return nested(7)


@hostile("LoadError", says="deep")
def branches_too_deep(folder: Path) -> onnx.ModelProto:
    """A chain of branches deeper than any model's."""
    graph = helper.make_graph([node("Relu x -> r")], "inner", [], [onnx.ValueInfoProto(name="r")])
    small = helper.make_graph([node("Neg x -> n")], "other", [], [onnx.ValueInfoProto(name="n")])
    for level in range(28):
        made = [node(f"If c -> v{level}", then_branch=graph, else_branch=small)]
        graph = helper.make_graph(made, "body", [], [onnx.ValueInfoProto(name=f"v{level}")])
    return model([graph.node[0]], {**X, "c": bool_[()]}, ["v27"])


@hostile("LoadError", says="nothing is named")
def body_that_reads_its_own_node(folder: Path) -> onnx.ModelProto:
    """A branch that reads the result of the branch."""
    graph = helper.make_graph([node("Relu y -> r")], "inner", [], [onnx.ValueInfoProto(name="r")])
    return model([node("If c -> y", then_branch=graph, else_branch=graph)], {**X, "c": bool_[()]}, ["y"])


@hostile("LoadError", says="nothing makes the output")
def body_without_its_output(folder: Path) -> onnx.ModelProto:
    """A branch whose output nothing makes."""
    graph = helper.make_graph([node("Relu x -> r")], "inner", [], [onnx.ValueInfoProto(name="other")])
    return model([node("If c -> y", then_branch=graph, else_branch=graph)], {**X, "c": bool_[()]}, ["y"])


def loop(trips: bool, condition: bool) -> onnx.ModelProto:
    """A loop whose body says to go on for ever."""
    inputs = [helper.make_tensor_value_info(n, t, []) for n, t in (("i", TensorProto.INT64), ("c", TensorProto.BOOL))]
    inputs.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, [4]))
    body = helper.make_graph(
        [node("Identity c -> go"), node("Relu v -> w")],
        "body",
        inputs,
        [onnx.ValueInfoProto(name="go"), onnx.ValueInfoProto(name="w")],
    )
    read = f"{'trips' if trips else '_'} {'go_on' if condition else '_'}"
    kept = {"trips": helper.make_tensor("trips", TensorProto.INT64, [], [2**62])} if trips else {}
    made = model([node(f"Loop {read} start -> y", body=body)], {"start": f32[4], "go_on": bool_[()]}, ["y"])
    made.graph.initializer.extend(kept.values())
    return made


@hostile("UnsupportedError", says="nothing ends")
def loop_without_an_end(folder: Path) -> onnx.ModelProto:
    """A loop without a trip count whose condition never fails."""
    return loop(trips=False, condition=False)


@hostile("UnsupportedError", says="nothing ends")
def loop_of_absurdly_many_trips(folder: Path) -> onnx.ModelProto:
    """A loop of four million million million trips that nothing else ends."""
    return loop(trips=True, condition=False)


@hostile()
def loop_that_a_condition_ends(folder: Path) -> onnx.ModelProto:
    """As many trips, but a condition of the caller's ends them: that is how exporters write it."""
    return loop(trips=True, condition=True)


@hostile("LoadError", "TypeRuleError")
def loop_with_a_body_of_too_few_inputs(folder: Path) -> onnx.ModelProto:
    """A loop whose body does not take what a body is given."""
    body = helper.make_graph([node("Relu x -> r")], "body", [], [onnx.ValueInfoProto(name="r")])
    return model([node("Loop n _ x -> y", body=body)], {**X, "n": i64[()]}, ["y"])


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
