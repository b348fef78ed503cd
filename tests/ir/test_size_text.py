"""Sizes in text: what is printed is read, and nothing else is."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import GraphError
from dovetail.ir.dim import Size, evaluate, largest, symbol
from dovetail.ir.size_text import parse_size, split_sizes
from tests import strategies
from tests.ir.test_dim import expressions

A, S = symbol("a"), symbol("s")


@given(strategies.sizes())
def test_sizes_come_back(size: Size) -> None:
    assert parse_size(str(size)) == size


@given(expressions())
def test_expressions_come_back(drawn: tuple[Size, object]) -> None:
    assert parse_size(str(drawn[0])) == drawn[0]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        (" s ", S),
        ("2*s+1", 2 * S + 1),
        ("-s", -S),
        ("3 - (s + 1)*2", 1 - 2 * S),
        ("floordiv(s, 2)", S // 2),
        ("max(s,a)", largest(S, A)),
        ("max", symbol("max")),
        ("2*3*s*s", 6 * S * S),
        ("floordiv(floordiv(s, a), 2)", S // A // 2),
    ],
)
def test_sizes_as_people_write_them(text: str, size: Size) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", " ", "+", "s+", "s s", "2s", "s*", "*s", "floordiv(s)", "floordiv(s, 2", "max(a, b, c)", "(s", "s)", "1.5",
     "s/2", "²", "٣", "9" * 21, "s-", "--s", "floordiv(s, 0)", "s**2", "a.b", "é"],
)  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(GraphError) as caught:
        parse_size(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "-" * 100_000,
        "s+" * 100_000,
        "*".join(f"(a{i}+b{i})" for i in range(80)),
        "*".join(f"max(a{i}+b{i},a{i}+b{i})" for i in range(40)),
        "*".join(["9" * 19] * 200),
        "floordiv(" * 50 + "s" + ", 2)" * 50,
    ],
    ids=range(7),
)
def test_hostile_text_is_refused_quickly(text: str) -> None:
    started = time.process_time()
    with pytest.raises(GraphError):
        parse_size(text)
    assert time.process_time() - started < 2


def test_lists_are_split_outside_of_parentheses() -> None:
    assert split_sizes("") == []
    assert split_sizes("a, 2*b") == ["a", " 2*b"]
    assert split_sizes("max(a, floordiv(b, 2)), c") == ["max(a, floordiv(b, 2))", " c"]
    assert [parse_size(s) for s in split_sizes("max(a, s), 3")] == [largest(A, S), 3]


@given(st.text(alphabet="as29+-*(), floordivmaxn", max_size=30))
def test_random_text_gives_a_size_or_an_error(text: str) -> None:
    try:
        size = parse_size(text)
    except GraphError:
        return
    assert parse_size(str(size)) == size
    if isinstance(size, int):
        assert evaluate(size, {}) == size
