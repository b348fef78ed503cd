"""Text and back: the identical graph, or an error with its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dovetail import ops
from dovetail.errors import ParseError
from dovetail.ir import dtype as dtypes
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32
from dovetail.ir.graph import Builder, Graph, Subgraph
from dovetail.ir.origin import Origin, scope
from dovetail.ir.text import local_names, parse_graph, print_graph
from dovetail.ir.value import make
from dovetail.ops.region import region
from tests import strategies
from tests.ir.graphs import VOCABULARY, anything, assert_identical, kitchen_sink, nested


def there_and_back(graph: Graph) -> str:
    text = print_graph(graph)
    assert_identical(parse_graph(text, VOCABULARY), graph)
    return text


@pytest.mark.slow
@given(strategies.graphs(symbolic=True, empty=True))
def test_random_graphs_come_back(drawn: tuple[Graph, Any]) -> None:
    there_and_back(drawn[0])


def test_sub_graphs_origins_and_assumptions_come_back() -> None:
    graph = nested()
    text = there_and_back(graph)
    assert '@module "layers.0" @onnx "node \\"a\\"\\n"' in text
    assert "unused: i64[3, s]" in text
    assert 'assume multiple_of(s, h) "heads: a whole number"' in text


def test_every_kind_of_attribute_comes_back() -> None:
    graph = Graph.of(kitchen_sink())
    there_and_back(graph)
    found = parse_graph(print_graph(graph), VOCABULARY).outputs["y"].attrs
    assert [type(found[k]) for k in ("yes", "one", "one_float")] == [bool, int, float]
    assert str(found["minus_zero"]) == "-0.0"


def test_it_reads_well() -> None:
    builder = Builder("ffn", lines=False)
    with builder.recording():
        x, w = builder.input("x", f32["b", 4]), builder.param("layers.0.weight", f32[4, 8])
        with scope("layers.0"):
            builder.output("y", ops.part(x @ w, axis=1, index=0, parts=2) * 0.1)
    assert print_graph(builder.graph()) == (
        "graph ffn(x: f32[b, 4]) {\n"
        "  param layers.0.weight: f32[4, 8]\n"
        '  %0 = matmul(x, layers.0.weight) : f32[b, 8]  @module "layers.0"\n'
        '  %1 = part(%0) {axis=-1, index=0, parts=2} : f32[b, 4]  @module "layers.0"\n'
        '  %2 = const f32[] 0.1  @module "layers.0"\n'
        '  %3 = mul(%1, %2) : f32[b, 4]  @module "layers.0"\n'
        "  return y = %3\n"
        "}\n"
    )


def test_the_documented_example_is_what_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "text-form.md").read_text(encoding="utf-8")
    example = re.findall(r"```\n(graph .*?)```", page, re.DOTALL)[0]
    graph = parse_graph(example, VOCABULARY)
    x, w = leaf.input("x", f32["b", "s", 384]), leaf.param("w", f32[384, 1536])
    y = x @ w
    half = f32["b", "s", 768]
    body = Subgraph((half, half), (leaf.argument(0, half) * 0.5 * leaf.argument(1, half),))
    gated = region(body, [ops.part(y, axis=-1, index=i, parts=2) for i in (0, 1)])
    assert graph.outputs["y"] is gated
    assert graph.outputs["by window"] is ops.split(gated, axis=-2, size=2 * symbol("t"))
    assert graph.outputs["keep"] is leaf.input("keep", bool_["b", "s"])
    assert graph.origins == {y: (Origin("module", "layers.0.ffn"),)}
    assert [str(c) for c in graph.assumed] == ["s equals 4*t"]
    there_and_back(graph)


def test_several_results_and_items_come_back() -> None:
    x = leaf.input("x", f32[3, 5])
    values, places = ops.top_k(x, axis=-1, k=2, largest=True)[0], ops.top_k(x, axis=-1, k=2, largest=True)[1]
    graph = Graph.of({"values": values, "places": places, "both": leaf.pack((values, places))})
    assert ": (f32[3, 2], i64[3, 2])" in there_and_back(graph)


@given(st.text(st.characters(), min_size=1), st.text(st.characters(), min_size=1))
def test_any_name_comes_back(first: str, second: str) -> None:
    x, w = leaf.input(first, f32[2]), leaf.param(second + "'", f32[2])
    graph = Graph(second, (x,), {first: x + w, second + "!": x}, {x: (Origin("module", second),)})
    text = there_and_back(graph)
    assert text.encode("utf-8").decode("utf-8") == text
    assert text.count("\n") == len(text.splitlines())


@pytest.mark.parametrize(
    "name", ["inf", "nan", "true", "none", "f32", "graph", "param", "return", "const", "size", "%0"]
)
def test_names_that_are_words_elsewhere_come_back(name: str) -> None:
    x, s = leaf.input(name, f32["s"]), leaf.param(name + "2", f32["s"])
    text = there_and_back(Graph(name, (x,), {name: x + s}))
    if name != "%0":
        assert '"' not in text
        size = make(anything, (leaf.input("x", f32[name]),), {name: symbol(name)})
        there_and_back(Graph.of(size))


def test_an_input_and_a_parameter_of_one_name_are_still_told_apart() -> None:
    x, w = leaf.input("x", f32[2]), leaf.param("x", f32[2])
    stray = leaf.input("x", f32[3])
    text = there_and_back(Graph("twice", (x,), {"y": x + w, "stray": stray}))
    assert '%0 = param() {name="x", type=f32[2]} : f32[2]' in text


def test_long_headers_are_broken_and_come_back() -> None:
    inputs = tuple(leaf.input(f"a_rather_long_name_{i}", f32[i + 1]) for i in range(9))
    text = there_and_back(Graph("wide", inputs, {"y": inputs[4]}))
    assert max(map(len, text.splitlines())) < 60
    there_and_back(Graph("n" * 200, (), {"y": leaf.constant(1.0, f32)}))


SPECIAL: dict[str, list[Any]] = {
    "bool": [True, False],
    "c64": [0j, complex(-0.0, -0.0), complex(np.nan, np.inf), complex(1e-45, -np.inf), 1 + 0.1j],
}


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_special_elements_keep_their_bits(dtype: DType) -> None:
    listed: list[Any] = SPECIAL.get(dtype.name, [])
    if dtype.is_integer:
        listed = [*dtypes.whole_range(dtype), 0]
    elif dtype.is_float:
        limits = cast("Any", ml_dtypes.finfo(dtype.numpy))
        listed = [0.0, -0.0, 0.1, 1 / 3, np.inf, -np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal]
        if dtype in dtypes.NARROW:
            listed = [n for n in listed if dtypes.holds(dtype, float(n))]
    array = np.array(listed, dtype.numpy)
    text = there_and_back(Graph.of(leaf.constant(array, dtype)))
    assert "base64" not in text
    for element in array:
        there_and_back(Graph.of(leaf.constant(np.array(element, dtype.numpy), dtype)))


@given(st.sampled_from(dtypes.ALL), st.binary(min_size=1, max_size=48), st.booleans())
def test_any_bits_come_back(dtype: DType, raw: bytes, large: bool) -> None:
    width = dtype.itemsize
    whole = (raw * (width if not large else 40 * width))[: len(raw) // width * width * (40 if large else 1) or width]
    used = bytes(b % 2**dtype.bits for b in whole) if dtype.bits < 8 else whole
    array = np.frombuffer(used[: len(used) // width * width], dtype.numpy)
    literal = leaf.constant(array, dtype).attrs["value"]
    graph = Graph.of({"const": leaf.constant(array, dtype), "attribute": make(anything, (), {"array": literal})})
    there_and_back(graph)
    found: NDArray[Any] = parse_graph(print_graph(graph), VOCABULARY).outputs["const"].attrs["value"].array
    if dtype is not bool_:
        assert found.tobytes() == array.tobytes()


def test_a_nan_with_a_payload_is_kept() -> None:
    plain = np.array(np.nan, np.float32)
    odd = (plain.view(np.uint32) | np.uint32(1)).view(np.float32)
    values = {"plain": leaf.constant(plain), "odd": leaf.constant(odd)}
    assert values["plain"] is not values["odd"]
    text = there_and_back(Graph.of(values))
    assert "const f32[] nan" in text
    assert 'const f32[] base64 "AQDAfw=="' in text


@pytest.mark.parametrize(
    ("dtype", "number", "spelled"),
    [(f32, 0.1, "0.1"), (bf16, 0.1, "0.1"), (f16, 1 / 3, "0.3333"), (dtypes.f64, 0.1, "0.1"), (f32, 1e-5, "1e-05"),
     (f32, 16777216.0, "16777216.0"), (bf16, 3e38, "3e+38"), (f32, 123456.79, "123456.79")],
)  # fmt: skip
def test_numbers_are_short(dtype: DType, number: float, spelled: str) -> None:
    assert f"const {dtype}[] {spelled}\n" in print_graph(Graph.of(leaf.constant(number, dtype)))


def test_empty_constants_come_back() -> None:
    there_and_back(Graph.of(leaf.constant(np.zeros((0, 3, 2**40), np.float32))))
    there_and_back(Graph.of(leaf.constant(np.zeros((2, 0), bool))))


def test_constants_are_written_as_the_caller_likes() -> None:
    literal = leaf.constant(np.arange(100, dtype=np.int64))
    graph = Graph.of(literal)
    text = print_graph(graph, constant=lambda _: "blob 1")
    assert "const i64[100] blob 1" in text
    found = parse_graph(text, VOCABULARY, blobs=[leaf.constant(1).attrs["value"], literal.attrs["value"]])
    assert_identical(found, graph)
    with pytest.raises(ParseError, match="blob 1 of 0"):
        parse_graph(text, VOCABULARY)
    with pytest.raises(ParseError, match="blob 1 is"):
        parse_graph(text, VOCABULARY, blobs=[literal.attrs["value"], leaf.constant(1).attrs["value"]])


def test_what_is_left_out_is_filled_in() -> None:
    text = """
    # a comment
    graph g(x: f32[2, s]) { %a.b = cum_sum(x) {axis=1}  # another
      %c = reduce_sum(%a.b) {axes=(0,)} return y=%c }"""
    graph = parse_graph(text, VOCABULARY)
    x = leaf.input("x", f32[2, "s"])
    assert graph.outputs["y"] is ops.reduce_sum(ops.cum_sum(x, axis=-1), axes=-2)


def test_values_without_an_origin_get_their_line_if_asked() -> None:
    text = 'graph g(x: f32[2]) {\n  %0 = relu(x)\n\n  %1 = neg(%0) @module "m"\n  return y = %1\n}'
    graph = parse_graph(text, VOCABULARY, file="model.txt")
    x = leaf.input("x", f32[2])
    relu = ops.relu(x)
    assert {v: [str(o) for o in found] for v, found in graph.origins.items()} == {
        x: ["model.txt:1"],
        relu: ["model.txt:2"],
        ops.neg(relu): ["m"],
    }
    lines = parse_graph(print_graph(nested()), VOCABULARY, file="n")
    for value, found in lines.origins.items():
        for origin in found:
            if origin.name.startswith("n:"):
                line = print_graph(nested()).splitlines()[int(origin.name[2:]) - 1]
                assert value.op.name in line or value.op in (leaf.INPUT, leaf.ARGUMENT)


def test_patterns_print_and_do_not_read() -> None:
    text = print_graph(Graph.of(ops.relu(leaf.hole("x") * leaf.scalar(leaf.Hole("k"), None))))
    assert "%1 = number() {value=?\"Hole(name='k'" in text
    with pytest.raises(ParseError):
        parse_graph(text, (*VOCABULARY, leaf.HOLE, leaf.NUMBER))


def test_numbers_of_values_are_those_of_the_text() -> None:
    graph = nested()
    names = local_names(graph, graph.values)
    for value, name in names.items():
        if name.startswith("%"):
            assert re.search(rf"^  {name} = (const|{value.op.name}\()", print_graph(graph), re.MULTILINE)
