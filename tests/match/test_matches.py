"""Every way to match: one for each operand order that fits."""

from __future__ import annotations

from dovetail.dtypes import f32
from dovetail.ir.leaf import hole, input
from dovetail.match import Bound, match, matches

A, B, C = (input(name, f32[2]) for name in "abc")
X, Y, Z = (hole(name) for name in "xyz")


def caught(bound: Bound) -> str:
    return "".join(str(bound.names[name].attrs["name"]) for name in sorted(bound.names))


def test_both_orders_of_a_sum() -> None:
    assert sorted(map(caught, matches(X + Y, A + B))) == ["ab", "ba"]


def test_the_first_way_is_the_one_that_match_finds() -> None:
    found = match((X + Y) + Z, (A + B) + C)
    assert isinstance(found, Bound)
    assert caught(found) == caught(next(matches((X + Y) + Z, (A + B) + C)))


def test_orders_at_every_level_and_only_those_that_fit() -> None:
    assert sorted(map(caught, matches((X + Y) + Z, C + (A + B)))) == ["abc", "bac"]
    # Both operands are sums: each may be the one that the pattern opens.
    ways = [b.names for b in matches((X + Y) * Z, (A + B) * (B + C))]
    assert {(w["x"], w["y"]) for w in ways} == {(A, B), (B, A), (B, C), (C, B)}
    assert all(w["z"] is (B + C if A in (w["x"], w["y"]) else A + B) for w in ways)


def test_a_value_caught_twice_must_be_the_same() -> None:
    assert list(matches(X * (X + Y), A * (B + C))) == []
    assert [caught(b) for b in matches(X * (X + Y), A * (A + B))] == ["ab"]


def test_what_one_way_caught_does_not_leak_into_the_next() -> None:
    ways = list(matches(X + Y, A + B))
    assert len({id(w.names) for w in ways}) == 2
    assert all(len(w.names) == 2 for w in ways)


def test_nothing_matches_another_op() -> None:
    assert list(matches(X + Y, A * B)) == []
