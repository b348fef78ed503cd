"""Symbolic sizes against Python's own integers, under random bindings."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product as every

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import BindError, GraphError
from dovetail.ir.dim import (
    Dim,
    Size,
    at_least,
    check_size,
    divide,
    evaluate,
    floordiv,
    largest,
    product,
    smallest,
    substitute,
    symbol,
    symbols,
    total,
)

NAMES = ("a", "b", "c")
A, B, C = map(symbol, NAMES)
BINDINGS = st.fixed_dictionaries({name: st.integers(1, 60) for name in NAMES})

Arithmetic = Callable[[int, int], int]
BINARY: dict[str, tuple[Callable[[Size, Size], Size], Arithmetic]] = {
    "+": (lambda x, y: x + y, lambda x, y: x + y),
    "-": (lambda x, y: x - y, lambda x, y: x - y),
    "*": (lambda x, y: x * y, lambda x, y: x * y),
    "//": (lambda x, y: x // y, lambda x, y: x // y),
    "%": (lambda x, y: x % y, lambda x, y: x % y),
    "max": (largest, max),
    "min": (smallest, min),
}


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[Size, Callable[[dict[str, int]], int]]:
    """A size, and the same expression over plain integers."""
    if depth == 0 or draw(st.booleans()):
        if draw(st.booleans()):
            name = draw(st.sampled_from(NAMES))
            return symbol(name), lambda binding: binding[name]
        number = draw(st.integers(-5, 9))
        return number, lambda binding: number
    left, plain_left = draw(expressions(depth - 1))
    right, plain_right = draw(expressions(depth - 1))
    ours, plain = BINARY[draw(st.sampled_from(list(BINARY)))]
    try:
        found = ours(left, right)
    except (GraphError, ZeroDivisionError):
        return left, plain_left
    return found, lambda binding: plain(plain_left(binding), plain_right(binding))


@given(expressions(), BINDINGS)
def test_algebra_agrees_with_integers(
    drawn: tuple[Size, Callable[[dict[str, int]], int]], binding: dict[str, int]
) -> None:
    size, plain = drawn
    try:
        expected = plain(binding)
    except ZeroDivisionError:
        return
    assert evaluate(size, binding) == expected


@given(expressions(), BINDINGS, st.sampled_from(NAMES))
def test_binding_in_two_steps_is_binding_at_once(
    drawn: tuple[Size, Callable[[dict[str, int]], int]], binding: dict[str, int], first: str
) -> None:
    size, plain = drawn
    try:
        expected = plain(binding)
        partly = substitute(size, {first: binding[first]})
    except (ZeroDivisionError, GraphError):
        return
    assert first not in symbols(partly)
    assert evaluate(partly, binding) == expected


@given(expressions(), BINDINGS)
def test_a_lower_bound_holds(drawn: tuple[Size, Callable[[dict[str, int]], int]], binding: dict[str, int]) -> None:
    bound = at_least(drawn[0])
    if bound is not None:
        assert evaluate(drawn[0], binding) >= bound
        assert evaluate(drawn[0], dict.fromkeys(NAMES, 0)) >= bound


@given(expressions(), expressions(), BINDINGS)
def test_division_is_exact_or_refused(
    left: tuple[Size, object], right: tuple[Size, object], binding: dict[str, int]
) -> None:
    quotient = divide(left[0], right[0])
    if quotient is not None:
        try:
            assert evaluate(quotient, binding) * evaluate(right[0], binding) == evaluate(left[0], binding)
        except GraphError:
            return  # a division by zero somewhere inside


def test_equal_by_algebra_is_equal() -> None:
    assert A + B == B + A
    assert (A + B) * (A - B) == A * A - B * B
    assert (A + 1) * 2 - 2 * A == 2
    assert hash(A * B + C) == hash(C + B * A)
    assert A - A == 0
    assert isinstance(A - A, int)
    assert A != B
    assert largest(A, B) == largest(B, A)
    assert A != "a"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2 * A + 1, "2*a+1"),
        (-A, "-a"),
        (3 - A * B, "-a*b+3"),
        (A * A + A, "a*a+a"),
        (A // 2, "floordiv(a, 2)"),
        ((A + 1) // B * 3, "3*floordiv(a+1, b)"),
        (largest(A, 4), "max(4, a)"),
        (smallest(A, B), "min(a, b)"),
        (7 // A, "floordiv(7, a)"),
        (A % 4, "a-4*floordiv(a, 4)"),
        ((A - 1) // 2 + 1, "floordiv(a+1, 2)"),
        ((2 * A + 1) // 2, "a"),
        ((5 * A * B - 7) // 3, "a*b+floordiv(2*a*b+2, 3)-3"),
    ],
)
def test_how_sizes_are_spelled(size: Size, text: str) -> None:
    assert str(size) == text


def test_exact_divisions_leave_no_trace() -> None:
    assert (6 * A * B) // (2 * B) == 3 * A
    assert ((A + 1) * (B + 2)) // (B + 2) == A + 1
    assert divide(6 * A + 3, 2) is None
    assert divide(A, B) is None
    assert divide(0, A) == 0
    assert divide(A, A) == 1
    assert divide(A, 0) is None
    assert divide(0, 0) is None


def test_comparable_extremes_are_decided() -> None:
    assert largest(A + 1, A) == A + 1
    assert smallest(A + 1, A) == A
    assert largest(3, 5) == 5
    assert isinstance(largest(A, 5), Dim)


def test_totals_and_products() -> None:
    assert total([A, 2, B, A]) == 2 * A + B + 2
    assert total([]) == 0
    assert product((A, 2, 3)) == 6 * A
    assert product(()) == 1
    assert product((A, 0)) == 0


def test_symbols_of_a_size_reach_into_divisions() -> None:
    assert symbols(largest(A // B, C) + 1) == {"a", "b", "c"}
    assert symbols(4) == frozenset()


def test_a_missing_binding_is_named() -> None:
    with pytest.raises(BindError, match="needs a value for b, c") as caught:
        evaluate(A + B * C, {"a": 1})
    assert "b, c" in caught.value.hint


def test_a_division_by_zero_is_an_error() -> None:
    with pytest.raises(GraphError, match="divided by zero"):
        floordiv(A, 0)
    with pytest.raises(GraphError, match="divided by zero"):
        evaluate(A // B, {"a": 1, "b": 0})


@pytest.mark.parametrize("name", ["", "2s", "a b", "a-b", "ä", "a\n", "a.b"])
def test_names_of_sizes_are_plain(name: str) -> None:
    with pytest.raises(GraphError, match="is not a name for a size"):
        symbol(name)


def test_sizes_do_not_explode() -> None:
    wide: Size = 1
    with pytest.raises(GraphError, match="terms"):
        for i in range(40):
            wide = wide * (symbol(f"x{i}") + symbol(f"y{i}"))
    with pytest.raises(GraphError, match="terms"):
        total(symbol(f"x{i}") for i in range(1000))
    deep: Size = A
    with pytest.raises(GraphError, match="nested"):
        for i in range(1000):
            deep = (deep + 1) // (i + 2)


def test_what_is_too_large_to_write_is_refused() -> None:
    check_size(2**62)
    check_size(2 * A + floordiv(A, 3))
    for size in (2**64, 2**64 * A, product((A,) * 300)):
        with pytest.raises(GraphError):
            check_size(size)


@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(1, 1000))
def test_floor_division_is_not_merged_wrongly(n: int, first: int, second: int) -> None:
    twice = A // first // second
    assert evaluate(twice, {"a": n}) == math.floor(math.floor(n / first) / second)


def test_divisions_in_a_row_are_one() -> None:
    assert A // 2 // 3 == A // 6
    assert (A // 2 + 5) // 3 == (A + 10) // 6
    assert ((A - 1) // 2 + 1 - 1) // 2 == (A - 1) // 4
    assert (A // 2 + B) // 3 != (A + 2 * B) // 6, "what is added has to be a number"


@given(st.integers(0, 10**6), st.integers(1, 1000), st.integers(-1000, 1000), st.integers(1, 1000))
def test_merged_divisions_are_what_they_were(n: int, first: int, shift: int, second: int) -> None:
    assert evaluate((A // first + shift) // second, {"a": n}) == (n // first + shift) // second


@pytest.mark.slow
@pytest.mark.parametrize("divisor", [1, 2, 3, 7])
def test_whole_multiples_stand_outside_a_division(divisor: int) -> None:
    for x, y, c in every(range(-4, 5), range(-3, 4), range(-9, 10)):
        size = x * A + y * B + c
        for a, b in ((0, 0), (1, 3), (5, 2)):
            assert evaluate(floordiv(size, divisor), {"a": a, "b": b}) == (x * a + y * b + c) // divisor
