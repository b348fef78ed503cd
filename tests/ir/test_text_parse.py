"""Text that is not a graph: one error with its place and a hint, whatever the text."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import GraphError, ParseError
from dovetail.ir.graph import Graph
from dovetail.ir.text import parse_graph, print_graph
from tests.ir.graphs import VOCABULARY, anything, assert_identical, kitchen_sink, nested


def test_two_ops_of_one_name_are_refused() -> None:
    class Other(type(anything)):
        pass

    with pytest.raises(GraphError, match="two ops are named 'anything'"):
        parse_graph("graph g() { return }", (anything, Other()))


def wrap(line: str) -> str:
    return f"graph g(x: f32[2, s], m: bool[2]) {{\n  {line}\n  return y = %0\n}}"


WRONG = [
    ("", 1, 1, "does not start with a graph"),
    ("graph", 1, 6, "a name was expected"),
    ("graph g(x: f32[2]) {\n", 2, 1, "where a statement starts"),
    ("graph g(x: f32[2] {", 1, 19, "',' was expected"),
    ("graph g(x: f32[2], x: f32[2]) { return }", 1, 20, "declared twice"),
    ("graph g(x: f31[2]) { return }", 1, 12, "'f31' is not a dtype"),
    ("graph g(x: f32[2) { return }", 1, 12, "a type was expected"),
    ("graph g(x: f32[-2]) { return }", 1, 12, "a size is -2"),
    ("graph g(x: f32[2 2]) { return }", 1, 12, "is not a size"),
    ("graph g(x: f32[99999999999999999999]) { return }", 1, 12, "63 bits"),
    ("graph g(x: f32[floordiv(s, 0)]) { return }", 1, 12, "divided by zero"),
    ("graph g(x: f32[" + "1," * 64 + "1]) { return }", 1, 12, "rank 65"),
    ("graph g() { return y = x }", 1, 24, "'x' is not known here"),
    ("graph g(x: f32[2]) { return y = x, y = x }", 1, 36, "two outputs are named 'y'"),
    ("graph g(x: f32[2]) { return y = x } graph", 1, 37, "end of the text"),
    (wrap("%0 = rleu(x)"), 2, 8, "no op named 'rleu'"),
    (wrap("%0 = relu(x, x)"), 2, 3, "relu of 2 operands"),
    (wrap("%0 = relu(%1)"), 2, 13, "'%1' is not known here"),
    (wrap("%0 = relu($0)"), 2, 13, "'$0' is not known here"),
    (wrap("%0 = add(x, m)"), 2, 3, "add of f32 and bool"),
    (wrap("%0 = relu(x) : f32[2, t]"), 2, 18, "stated as f32[2, t], and relu gives f32[2, s]"),
    (wrap("%0 = relu(x) {axis=1}"), 2, 3, "axis"),
    (wrap("%0 = flip(x) {axes=(7,)}"), 2, 3, "axis 7"),
    (wrap("%0 = flip(x) {axes=none}"), 2, 3, "flip with axes=None"),
    (wrap("%0 = flip(x) {axes=(0,), axes=(1,)}"), 2, 28, "given twice"),
    (wrap("%0 = flip(x) {axes=s}"), 2, 22, "'s' is not an attribute"),
    (wrap("%0 = flip(x) {axes=}"), 2, 22, "an attribute was expected"),
    (wrap("%0 = item(x) {index=0}"), 2, 3, "one tensor"),
    (wrap("%0 = item(x)"), 2, 3, "item with the attributes ()"),
    (wrap('%0 = param() {name=3, type=f32[1]}'), 2, 3, "param with name=3"),
    (wrap("%0 = input(x) {name=\"x\", type=f32[1]}"), 2, 3, "input of 1 operands"),
    (wrap("%0 = relu(x) @ nowhere \"a\""), 2, 18, "'nowhere' is not a kind of origin"),
    (wrap("%0 = relu(x)\n  %0 = neg(x)"), 3, 3, "%0 is given a value twice"),
    (wrap('%0 = anything() {a="'), 2, 22, "text in quotes was expected"),
    (wrap('%0 = anything() {a="\\q"}'), 2, 22, "is not an escape"),
    (wrap('%0 = anything() {a="\\u{ffffff}"}'), 2, 22, "is not an escape"),
    (wrap("%0 = anything() {a=" + "9" * 60 + "}"), 2, 22, "the number"),
    (wrap("%0 = anything() {a=" + "9" * 100 + "}"), 2, 22, "a number of 100 characters"),
    (wrap("%0 = anything() {a=size(s, s)}"), 2, 22, "a size of several"),
    (wrap("%0 = anything() {a=size(s}"), 2, 26, "do not close"),
    (wrap("%0 = anything() {a=" + "(" * 50), 2, 54, "levels inside each other"),
    (wrap("%0 = anything() {a=(" + "1," * 5000 + ")}"), 2, 22, "too long"),
    (wrap("%0 = anything() {a=graph($1: f32[]) { return }}"), 2, 28, "'$1' where an argument"),
    (wrap("%0 = anything() {a=graph() { return x }}"), 2, 39, "'x' is not known here"),
    (wrap("%0 = anything() {a=graph() { }}"), 2, 32, "return was expected"),
    (wrap("%0 = relu(x) : ?"), 2, 18, "a value without a type"),
    (wrap("%0 = const f32[2] [1.0]"), 2, 21, "1 elements for f32[2]"),
    (wrap("%0 = const f32[] [1.0]"), 2, 20, "a number is wanted"),
    (wrap("%0 = const f32[s] []"), 2, 21, "an array of type"),
    (wrap("%0 = const i8[] 300"), 2, 19, "300 does not fit i8"),
    (wrap("%0 = const i8[] 1.0"), 2, 19, "1.0 as an element of i8"),
    (wrap("%0 = const f16[] 1e9"), 2, 20, "does not fit f16"),
    (wrap("%0 = const c64[] 1"), 2, 20, "1 as an element of c64"),
    (wrap("%0 = const bool[] 1"), 2, 21, "1 as an element of bool"),
    (wrap('%0 = const f32[] base64 "AAA"'), 2, 20, "not base64"),
    (wrap('%0 = const f32[] base64 "AAAA"'), 2, 20, "3 bytes for f32[]"),
    (wrap('%0 = const bool[] base64 "Ag=="'), 2, 21, "a byte 2"),
    (wrap('%0 = const i4[] base64 "/w=="'), 2, 19, "a byte 255 in an array of i4"),
    (wrap("%0 = const u2[] 4"), 2, 19, "4 does not fit u2"),
    (wrap("%0 = const f8e4m3fn[] 1e9"), 2, 25, "does not fit f8e4m3fn"),
    (wrap("%0 = const f4e2m1[] nan"), 2, 23, "nan does not fit f4e2m1"),
    (wrap("%0 = const f32[9999999999, 9999999999] []"), 2, 42, "an array of type f32[9999999999, 9999999999]"),
    (wrap('assume differs(s, t) ""'), 2, 10, "'differs' is not a relation"),
    (wrap('assume equals(s) ""'), 2, 10, "1 sizes"),
    (wrap("assume equals(s, t)"), 3, 3, "text in quotes"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "message"), WRONG, ids=[row[3] for row in WRONG])
def test_what_is_wrong_has_its_place_and_a_hint(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text, VOCABULARY)
    assert message in caught.value.message
    assert (caught.value.line, caught.value.column) == (line, column)
    assert caught.value.hint


def test_close_names_are_offered() -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(wrap("%0 = matmull(x)"), VOCABULARY)
    assert "matmul" in caught.value.hint


def test_sizes_cannot_explode() -> None:
    sums = ", ".join(f"a{i}+b{i}" for i in range(40))
    text = f"graph g(x: f32[{sums}]) {{ %0 = merge(x) {{axis=-1, count=40}} return y = %0 }}"
    started = time.process_time()
    with pytest.raises(ParseError, match="terms"):
        parse_graph(text, VOCABULARY)
    grown = "\n".join(f"%{i + 1} = concat(%{i}, %{i}) {{axis=-1}}" for i in range(300))
    with pytest.raises(ParseError, match="63 bits"):
        parse_graph(f"graph g(x: f32[9]) {{ %0 = relu(x) {grown} return y = %0 }}", VOCABULARY)
    assert time.process_time() - started < 5


TEXTS = [print_graph(nested()), print_graph(Graph.of(kitchen_sink())), wrap("%0 = flip(x) {axes=(-1,)} : f32[2, s]")]
PIECES = [
    *'(){}[],:=@"-#\\*%\n\x00ü\ud800',
    "%0",
    "$0",
    "inf",
    "size(",
    "graph(",
    "return",
    "const",
    "none",
    "f32",
    "1e999",
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        middle = draw(
            st.sampled_from(["", "9" * 30, "floordiv(s, ", *PIECES])
            | st.text(max_size=3)
            | st.just(text[start:end] * 2)
        )
        text = text[:start] + middle + text[end:]
    return text


@pytest.mark.exhaustive
@given(mutated())
def test_no_text_gives_another_error(text: str) -> None:
    try:
        graph = parse_graph(text, VOCABULARY)
    except ParseError:
        return
    assert_identical(parse_graph(print_graph(graph), VOCABULARY), graph)


@given(st.text(alphabet='graph x(:f32[])%0=$,{}"\\\n@#size-.e', max_size=200))
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_graph("graph g(x: f32[2]) { @" + text, VOCABULARY)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "graph g(" * 100_000,
        "#" * 1_000_000,
        "# " * 500_000 + "\n" + '"' * 1_000_000,
        "graph g(x: f32[" + "(" * 500_000,
        "graph g(x: f32[" + "1," * 500_000 + "]) { return }",
        wrap("%0 = anything() {a=" + "(" * 500_000),
        wrap("%0 = anything() {a=size(" + "(" * 500_000),
        wrap('%0 = anything() {a="' + "\\u{41}" * 200_000),
        wrap("%0 = anything() {a=" + "graph() { %0 = anything() {a=" * 100_000),
        wrap("%0 = const f32[2] [" + "1," * 300_000),
        wrap("%0 = anything() {a=" + "1" * 1_000_000),
        "graph g(x: f32[s]) {" + 'assume equals(s, 2) "" ' * 50_000,
    ],
    ids=range(12),
)
def test_hostile_texts_are_refused_quickly(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ParseError):
        parse_graph(text, VOCABULARY)
    assert time.process_time() - started < 5


def test_an_unknown_result_type_of_a_user_op_is_refused() -> None:
    class Broken(type(anything)):
        name = "broken"

        def infer(self, facts: Any, operands: Any, attrs: Any) -> Any:
            return attrs["missing"]

    with pytest.raises(ParseError, match="broken cannot be built"):
        parse_graph("graph g() { %0 = broken() return y = %0 }", (Broken(),))
