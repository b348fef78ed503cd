"""Guards as conditions: the traced form must agree with the guard itself."""

from __future__ import annotations

from random import Random

import pytest

from dovetail import Value
from dovetail.declare import FusedOp
from dovetail.declare.guard import Guard
from dovetail.derive.arguments import arguments, in_f16, strayed
from dovetail.derive.condition import Condition, OpaqueGuardError, condition_of
from dovetail.derive.rules import rules
from dovetail.dtypes import DType, f16, f32
from dovetail.errors import DovetailError
from dovetail.ir.leaf import Hole, hole, input
from dovetail.library import ALL, softmax

_ALWAYS = Condition(((),))
SHAPES = [f32[4], f32[2, 4], f32[4, 2], f16[4], f32[1, 4], f32[2, 3, 4]]


def agree(guard: Guard, *names: str) -> None:
    condition = condition_of(guard, {n: hole(n) for n in names})
    outcomes: set[bool] = set()
    for left in SHAPES:
        for right in SHAPES:
            actual = dict(zip(names, (input("l", left), input("r", right)), strict=False))
            assert condition.holds(actual) is guard.check(actual)
            outcomes.add(guard.check(actual))
    assert outcomes == {True, False}


def test_and_or_not_and_if_are_followed() -> None:
    def one(a: Value, b: Value) -> bool:
        return a.rank == 1 and (b.rank == 2 or a.dtype != b.dtype)

    def two(a: Value, b: Value) -> bool:
        if a.rank < b.rank:
            return a.shape[-1] == b.shape[-1]
        return a.shape == b.shape

    def three(a: Value, b: Value) -> bool:
        return (a.rank + 1 == b.rank) or (b.shape[-1] % 2 == 0 and a.shape[:-1] == b.shape[:-1])

    for guard in (one, two, three):
        agree(Guard.of(guard, "", ""), "a", "b")


def test_it_reads_as_it_is_meant() -> None:
    def one_for_each(a: Value, b: Value) -> bool:
        return a.shape[1:] == (1,) * (b.rank - 2) and b.shape[0] == (a.shape[0] + 1) * 2

    condition = condition_of(Guard.of(one_for_each, "", ""), {"a": hole("a"), "b": hole("b")})
    assert str(condition) == "a.shape[1:] == (1,) * (b.rank - 2) and b.shape[0] == (a.shape[0] + 1) * 2"


def test_fixed_choices_are_decided_at_once() -> None:
    def optional(b: Value | None) -> bool:
        return b is None or b.rank == 1

    guard = Guard.of(optional, "", "")
    assert str(condition_of(guard, {"b": None})) == "always"
    assert str(condition_of(guard, {"b": hole("b")})) == "b.rank == 1"


def test_caught_numbers_are_asked() -> None:
    def positive(eps: float) -> bool:
        return 0 < eps <= 1

    condition = condition_of(Guard.of(positive, "", ""), {"eps": Hole("eps")})
    assert [condition.holds({"eps": e}) for e in (-1.0, 0.5, 1.0, 2.0)] == [False, True, True, False]


def test_a_loop_over_a_shape_is_opaque() -> None:
    def loops(a: Value) -> bool:
        return all(s == 1 for s in a.shape)

    with pytest.raises(OpaqueGuardError, match="loop over a shape"):
        condition_of(Guard.of(loops, "", ""), {"a": hole("a")})


def test_an_unknown_question_is_opaque() -> None:
    def asks(a: Value) -> bool:
        return len(a.operands) == 2

    with pytest.raises(OpaqueGuardError, match="operands"):
        condition_of(Guard.of(asks, "", ""), {"a": hole("a")})


@pytest.mark.slow
@pytest.mark.parametrize("op", ALL, ids=lambda op: op.name)
def test_conditions_say_what_guards_say(op: FusedOp[...]) -> None:
    random = Random(0)
    for rule in rules([op])[::7]:
        said = dict(rule.conditions)
        for _ in range(0 if rule.opaque else 20):
            drawn = arguments(op, rule.variant, random)
            chosen = strayed(op, random.choice((drawn, in_f16(drawn))), random, drawn)
            try:
                names = {**chosen, "result": op(**chosen)}
                expected = {g.name: g.check(names) for g in op.guards}
            except (DovetailError, IndexError):
                continue
            assert {name: said.get(name, _ALWAYS).holds(names) for name in expected} == expected


@pytest.mark.parametrize(("dtype", "changes"), [(f16, True), (f32, False)])
def test_a_condition_tells_dtypes_apart(dtype: DType, changes: bool) -> None:
    x = input("x", dtype[2, 3])
    rule = next(r for r in rules([softmax]) if r.variant.label.endswith("wide=True"))
    assert dict(rule.conditions)["casts_change_the_dtype"].holds({"x": x, "result": x}) is changes
