"""The verifier refuses every way in which a plan can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import VerifyError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.plan.alias import Alias
from dovetail.plan.arena import Slot
from dovetail.plan.plan import Plan, make_plan
from dovetail.plan.verify import verify_plan
from dovetail.targets.reference.claims import CLAIMS as REFERENCE

X, W = leaf.input("x", f32[8, 4]), leaf.param("w", f32[4, 4])
NEGATED = ops.neg(W)
JOINED = ops.concat(W, NEGATED, axis=-1)
PRODUCT = X @ JOINED
HALF = ops.part(PRODUCT, axis=-1, index=1, parts=2)
GATE = ops.exp(HALF)
Y = GATE * HALF
SEVERAL = ops.top_k(Y, k=2, axis=-1)
PLAN = make_plan(Graph.of({"y": Y, "most": SEVERAL[0], "at": SEVERAL[1]}), target=REFERENCE)
NAMES = {s.value: s.name for s in PLAN.steps}


def moved(plan: Plan, value: object, slot: Slot) -> Plan:
    return replace(plan, slots={v: slot if v is value else s for v, s in plan.slots.items()})


def stepped(change: Callable[[list[int]], list[int]]) -> Plan:
    order = change(list(range(len(PLAN.steps))))
    return replace(PLAN, steps=tuple(PLAN.steps[i] for i in order))


def over(name: str, root: object) -> Plan:
    return replace(PLAN, steps=tuple(replace(s, overs=(root,)) if s.name == name else s for s in PLAN.steps))


def test_right_as_it_is() -> None:
    assert [s.value for s in PLAN.steps] == [NEGATED, JOINED, PRODUCT, GATE, Y, SEVERAL]
    assert PLAN.steps[4].over is GATE and PLAN.aliases[HALF].root is PRODUCT
    verify_plan(PLAN)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (stepped(lambda o: o[:-1]), "5 steps for 6 values"),
        (stepped(lambda o: [*o[:-1], 2]), "two steps have one name"),
        (stepped(lambda o: [0, 1, 3, 2, 4, 5]), "exp_3 reads .*matmul.*, which is not there"),
        (stepped(lambda o: [1, 0, 2, 3, 4, 5]), "concat_1 reads .*neg.*, which is not there"),
        (stepped(lambda o: [0, 2, 1, 3, 4, 5]), "a step of the bind phase stands behind one of the run"),
        (replace(PLAN, steps=tuple(replace(s, phase="bind") for s in PLAN.steps)), "depends on an input"),
        (replace(PLAN, steps=tuple(replace(s, phase="run") for s in PLAN.steps)), "not there in the run phase"),
        (moved(PLAN, NEGATED, Slot(0, 64, "arena")), "not there in the bind phase"),
        (moved(PLAN, JOINED, Slot(0, 128, "scratch")), "outside of the scratch"),
        (moved(replace(PLAN, scratch_size=512), JOINED, Slot(128, 128, "scratch")), "reads .*concat.* not there"),
        (moved(PLAN, PRODUCT, Slot(0, 128)), "has no slot of 256 bytes"),
        (replace(PLAN, slots={v: s for v, s in PLAN.slots.items() if v is not PRODUCT}), "has no slot of 256 bytes"),
        (moved(PLAN, PRODUCT, Slot(32, 256)), "unaligned or outside"),
        (replace(PLAN, arena_size=64), "unaligned or outside"),
        (moved(PLAN, GATE, Slot(0, 128)), "writes over .*matmul.*, which it needs"),
        (over("exp_3", PRODUCT), "may not write over"),
        (over("mul_4", None), "writes over .*exp.*, which it needs"),
        (moved(PLAN, Y, Slot(0, 128)), "mul_4 is not where .*exp.* lies"),
        (moved(PLAN, leaf.item(SEVERAL, 0), Slot(PLAN.slots[Y].offset, 64)), "writes over .*mul.*, which it needs"),
        (replace(PLAN, aliases={HALF: Alias(PRODUCT, 144, (32, 4))}), "reaches beyond"),
        (replace(PLAN, aliases={HALF: Alias(PRODUCT, 0, (-32, 4))}), "reaches beyond"),
        (replace(PLAN, aliases={HALF: Alias(PRODUCT, 16, (32,))}), "is no view of"),
    ],
)
def test_refused(plan: Plan, message: str) -> None:
    with pytest.raises(VerifyError, match=message) as caught:
        verify_plan(plan)
    assert caught.value.hint


def test_output_that_is_written_over() -> None:
    first = ops.exp(X)
    second = ops.tanh(first) @ W
    plan = make_plan(Graph.of({"first": first, "second": second}), target=REFERENCE)
    assert len({plan.slots[v].offset for v in (first, second)}) == 2
    verify_plan(plan)
    with pytest.raises(VerifyError, match=r"the output first reads .*exp.*, which is not there"):
        verify_plan(moved(plan, second, plan.slots[first]))


def test_symbolic_plans_are_tried_with_numbers() -> None:
    x = leaf.input("x", f32["s", 4])
    first, second = ops.exp(x), ops.tanh(x)
    plan = make_plan(Graph.of({"y": ops.concat(first, second, axis=0)}), target=REFERENCE)
    verify_plan(plan)
    with pytest.raises(VerifyError, match="which is not there"):
        verify_plan(moved(plan, second, plan.slots[first]))


def test_numbers_that_are_tried_fit_the_constraints() -> None:
    """A slice of 31 of 300 elements, an axis of 7, and a rest of none at all."""
    x, y = leaf.input("x", f32["s"]), leaf.input("y", f32["t"])
    s, t = symbol("s"), symbol("t")
    rest = ops.exp(ops.slice_(y, axis=0, start=7, stop=t))
    outputs = {
        "cut": ops.exp(ops.slice_(x, axis=0, start=0, stop=31)),
        "most": ops.exp(ops.slice_(x, axis=0, start=s - 300, stop=s)),
        "seven": y + leaf.constant(np.ones(7), f32),
        "rest": rest,
        "joined": ops.concat(rest, ops.tanh(ops.slice_(y, axis=0, start=7, stop=t)), axis=0),
        "divided": ops.exp(ops.slice_(leaf.input("z", f32[12 // (s - 840) + 99]), axis=0, start=0, stop=2)),
    }
    verify_plan(make_plan(Graph.of(outputs), target=REFERENCE))
