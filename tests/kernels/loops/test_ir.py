"""The loop language: folding of indices, axes that are gone through as one, sizes that code asks for."""

from __future__ import annotations

from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32, i64
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Set,
    Store,
    Tensor,
    When,
    add,
    collapsed,
    in_block,
    indices,
    mul,
    sizes_in,
)

N, M = symbol("n"), symbol("m")


def test_blocks_that_divide_a_size_are_full() -> None:
    start = Name("start")
    assert in_block(8, 24, start) == Extent(8)
    left = Call("sub", (Extent(25), start), i64)
    assert in_block(8, 25, start) == Call("minimum", (Extent(8), left), i64)
    assert isinstance(in_block(8, N * 8, start), Call)


def test_known_whole_numbers_are_folded() -> None:
    i = Name("i")
    assert add(Extent(2), Extent(3)) == Extent(5)
    assert add(i, ZERO) is i
    assert add(ZERO, i) is i
    assert mul(i, ZERO) == ZERO
    assert mul(ONE, i) is i
    assert mul(Extent(N), Extent(2)) == Extent(N * 2)
    assert mul(i, Extent(3)) == Call("mul", (i, Extent(3)), i64)


def test_axes_that_lie_densely_in_every_tensor_are_one() -> None:
    assert collapsed((2, 3, 4), [(48, 16, 4)]) == ((24,), [(4,)])
    assert collapsed((2, 3, 4), [(48, 16, 4), (0, 16, 4)]) == ((2, 12), [(48, 4), (0, 4)])
    assert collapsed((2, 3, 4), [(16, 32, 4)]) == ((2, 3, 4), [(16, 32, 4)])
    assert collapsed((2, 1, 4), [(16, 999, 4)]) == ((8,), [(4,)])
    assert collapsed((), [()]) == ((), [()])
    assert collapsed((M, N), [(N * 4, 4)]) == ((M * N,), [(4,)])
    assert collapsed((M, N), [(N * 4, 4), (0, 4)]) == ((M, N), [(N * 4, 4), (0, 4)])


def test_indices_count_the_last_axis_fastest() -> None:
    def number(expr: Expr, flat: int) -> int:
        match expr:
            case Extent(size):
                assert isinstance(size, int)
                return size
            case Name():
                return flat
            case Call(op, (x, y)):
                a, b = number(x, flat), number(y, flat)
                return a // b if op == "div" else a % b
            case _:
                raise AssertionError(expr)

    found = indices((2, 3, 1, 4), Name("t"))
    for flat in range(24):
        assert tuple(number(e, flat) for e in found) == (flat // 12, flat // 4 % 3, 0, flat % 4)
    assert indices((), Name("t")) == ()


def test_sizes_are_listed_once_in_the_order_in_which_they_are_met() -> None:
    x = Tensor("x", f32, (M * 4, 4), N)
    y = Tensor("y", f32, (4,))
    body = (
        Set("a", Extent(N)),
        Loop("i", Extent(M), (When(Name("c"), (Store(y, (Name("i"),), Load(x, (Name("a"), Name("i")))),)),)),
        Store(y, (Extent(M * N),), Load(x, (ZERO, ZERO))),
    )
    assert sizes_in(body) == (N, M, M * 4, M * N)


def test_shared_expressions_are_looked_at_once() -> None:
    expr: Expr = Load(Tensor("x", f32, (N,)), (ZERO,))
    for _ in range(100):
        expr = Call("add", (expr, expr), f32)
    assert sizes_in((Store(Tensor("y", f32, ()), (), expr),)) == (N,)
