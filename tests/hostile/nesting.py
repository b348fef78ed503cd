"""Functions and bodies that nest without end, call what is not there, or loop for ever."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from dovetail.ir.dtype import bool_, f32, i64
from tests.frontends.onnx.build import model, node
from tests.hostile.case import collected, hostile

X = {"x": f32["n", 4]}


def function(name: str, nodes: list[onnx.NodeProto], **more: list[str]) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, imports, more.get("attributes", []))


def call(name: str, read: str, made: str) -> onnx.NodeProto:
    return node(f"{name} {read} -> {made}", domain="own")


@hostile("LoadError", says="at once")
def conflicting_opsets_of_a_function(folder: Path) -> onnx.ModelProto:
    """A function that imports two versions of one domain."""
    made = function("f", [node("Relu a -> b")])
    made.opset_import.append(helper.make_opsetid("", 7))
    return model([call("f", "x", "y")], X, ["y"], domains={"own": 1}, functions=[made])


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
    for level in range(32):
        made = [node(f"If c -> v{level}", then_branch=graph, else_branch=small)]
        graph = helper.make_graph(made, "body", [], [onnx.ValueInfoProto(name=f"v{level}")])
    return model([graph.node[0]], {**X, "c": bool_[()]}, ["v31"])


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


CASES = collected(globals())
