"""Symbols from shapes, worked out by hand."""

from __future__ import annotations

import pytest

from dovetail.errors import BindError
from dovetail.ir.dim import Size, largest, symbol
from dovetail.ir.dtype import f32
from dovetail.ir.solve import Found, bare_symbol, solve_symbols
from dovetail.ir.type import TensorType

s, t, u = symbol("s"), symbol("t"), symbol("u")


def found(name: str, declared: tuple[Size, ...], *shape: int) -> Found:
    return Found(name, TensorType(f32, declared), shape)


def test_bare_symbols() -> None:
    assert solve_symbols([found("x", (s, 3, t), 2, 3, 5)]) == {"s": 2, "t": 5}


def test_lines_are_solved_in_whatever_order_they_come() -> None:
    tensors = [found("x", (u + t,), 9), found("y", (t * 2 - s,), 8), found("z", (4 - s,), 2)]
    # z: s = 2; y: 2 t = 10; x: u = 4.
    assert solve_symbols(tensors) == {"s": 2, "t": 5, "u": 4}


def test_the_rest_is_checked() -> None:
    tensors = [found("x", (s, s * t, s // 2, largest(s, t)), 5, 15, 2, 5), found("y", (t,), 3)]
    assert solve_symbols(tensors) == {"s": 5, "t": 3}
    with pytest.raises(BindError, match=r"floordiv\(s, 2\) is 2 with s = 5"):
        solve_symbols([found("x", (s, s // 2), 5, 3)])


def test_what_is_known_before_is_kept() -> None:
    assert solve_symbols([found("x", (s * t,), 6)], {"s": 2, "k": 1}) == {"s": 2, "t": 3, "k": 1}
    with pytest.raises(BindError, match="s is 2 by what was given"):
        solve_symbols([found("x", (s,), 6)], {"s": 2})


@pytest.mark.parametrize(
    ("declared", "shape", "said"),
    [
        ((s,), (1, 2), "2 axes"),
        ((4,), (5,), "axis 0 is 5, not 4"),
        ((s, s), (1, 2), "s is 1 by x"),
        ((s * 2,), (5,), "no s makes"),
        ((s + 3,), (2,), "no s makes"),
        ((s * s,), (4,), "does not tell what s is"),
        ((s + t,), (4,), "does not tell what s, t is"),
        ((s // 2,), (4,), "does not tell what s is"),
    ],
)
def test_what_does_not_fit(declared: tuple[Size, ...], shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(BindError, match=said) as caught:
        solve_symbols([found("x", declared, *shape)])
    assert caught.value.hint


def test_bare() -> None:
    assert bare_symbol(s) == "s"
    assert [bare_symbol(x) for x in (3, s * 2, s + 1, s * t, s // 2)] == [None] * 5
