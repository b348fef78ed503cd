"""Plans as text that reads back."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32, i32
from dovetail.errors import GraphError, ParseError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.library.linear import linear
from dovetail.plan.plan import Plan, make_plan
from dovetail.plan.text import parse_plan, print_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU

X, W = leaf.input("x", f32["s", 4]), leaf.param("layer.0/w", f32[4, 4])
VOCABULARY = (*ops.ALL, linear)


def plan() -> Plan:
    joined = ops.concat(W, ops.neg(W), axis=-1)
    several = ops.top_k(X @ joined, k=2, axis=-1)
    found = ops.nonzero(leaf.input("flags", i32[8]), count=symbol("n"))
    outputs = {
        "largest": ops.exp(several[0]) * 2.0,
        "turned": ops.permute(ops.flip(X, axes=(1,)), order=(-1, -2)),
        "copied": ops.merge(ops.permute(linear(X, W, act="gelu"), order=(-1, -2)), axis=-1),
        "found": found * 2,
        "c": leaf.constant(np.arange(100.0), f32),
    }
    options = {"fast": True, "tiles": (8, (12,), ()), "limit": -math.inf, "name": 'a "b"\n', "none": None, "f": 0.5}
    return make_plan(Graph.of(outputs, name="two words"), target=replace(CPU, target="cpu-v2"), options=options)


def test_reads_back() -> None:
    original = plan()
    text = print_plan(original)
    again = parse_plan(text, VOCABULARY)
    assert again == original and hash(again) == hash(original)
    assert again.graph.outputs == original.graph.outputs and again.graph.name == "two words"
    assert print_plan(again) == text
    assert replace(again, steps=again.steps[1:]) != original


def test_text_for_people() -> None:
    text = print_plan(plan())
    for line in (
        'plan "cpu-v2" {',
        "  bind concat_1: %1 in bound(0, 128)",
        "  option tiles = (8, (12,), ())",
        "  bound_size(128)",
    ):
        assert line in text
    assert " over %" in text and "heap(0, 8*n)" in text and "  view " in text


def swap(old: str, new: str) -> str:
    text = print_plan(plan())
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a text without a plan"),
        (print_plan(plan()).split("\nplan")[0] + "\n", "a text without a plan"),
        (swap("  alignment 64\n", ""), "a plan without alignment"),
        (swap("  peak(", "  peek("), "a line that is no part of a plan"),
        (swap("bound(0, 128)", "bound(0)"), "1 sizes, and 2 are wanted"),
        (swap("bound(0, 128)", "attic(0, 128)"), "'attic' is no memory"),
        (swap("concat_1: %1", "concat_1: %999"), "'%999' is no value of the graph"),
        (swap("alignment 64", "alignment 6.5"), "a whole number was expected"),
        (swap("= true", "= maybe"), "'maybe' is no option"),
        (swap("concat_1: %1 in", "concat_1: %1 on"), "'in' was expected"),
        (print_plan(plan()) + "more", "the end of the text was expected"),
        (swap("graph ", "grape "), "does not start with a graph"),
    ],
)
def test_what_is_no_plan(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        parse_plan(text, VOCABULARY)
    assert caught.value.hint and caught.value.line >= 1


def test_place_of_a_mistake() -> None:
    text = swap("  peak(", "  peek(")
    with pytest.raises(ParseError) as caught:
        parse_plan(text, VOCABULARY)
    assert text.splitlines()[caught.value.line - 1].startswith("  peek(") and caught.value.column == 3


def test_option_without_a_text_form() -> None:
    with pytest.raises(GraphError, match="has no text form"):
        print_plan(replace(plan(), options={"a": object()}))
