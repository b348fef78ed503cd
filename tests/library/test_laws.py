"""The laws over every declared op and variant, present and future."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import library
from dovetail.declare import FusedOp, Guard, Variant
from dovetail.derive import laws
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.reference.interpreter import evaluate
from dovetail.testing import lifted, parts_of

CASES = [(op, variant) for op in library.ALL for variant in op.variants]
FOUND = [(op, variant) for op in library.ALL for variant in op.patterns]
SPELLED = [(op, variant) for op, variant in CASES if variant.spelling]
SOME = FOUND[:: max(1, len(FOUND) // 80)]
SPELT_OUT = [op for op in library.ALL if op is not library.dequantise_blocks]
TWO_OF_EACH = [(op, op.patterns[i]) for op in SPELT_OUT for i in sorted({len(op.patterns) // 2, len(op.patterns) - 1})]
GUARDS = [(op, guard) for op in library.ALL for guard in op.guards]
REMEDIED = [(op, guard) for op, guard in GUARDS if guard.remedy is not None]


def over(cases: list[tuple[FusedOp[...], Variant]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("op", "variant"), cases, ids=[f"{op.name}[{v.label}]" for op, v in cases])


@pytest.mark.slow
@over(CASES)
def test_meaning_recognition_round_trip_and_operand_order(op: FusedOp[...], variant: Variant) -> None:
    """Four laws of the same arguments: to draw them takes longer than a law."""
    chosen = laws.fitting(op, variant, seed=1)
    laws.check_meaning(op, variant, seed=1, evaluate=lifted, chosen=chosen)
    if variant in op.patterns:
        laws.check_recognition(op, variant, 1, canonicalize, parts_of(op), chosen)
        laws.check_round_trip(op, variant, 1, canonicalize, chosen)
        laws.check_operand_order(op, variant, 1, canonicalize, chosen)


def test_every_pattern_is_among_the_variants() -> None:
    assert all(variant in op.variants for op, variant in FOUND)


@over(SPELLED)
def test_range(op: FusedOp[...], variant: Variant) -> None:
    with np.errstate(all="ignore"):
        laws.check_range(op, variant, seed=6, evaluate=evaluate)


@pytest.mark.slow
@over(SOME)
def test_any_inner_value_may_be_an_output(op: FusedOp[...], variant: Variant) -> None:
    laws.check_inner_outputs(op, variant, seed=5, evaluate=lifted, canonical=canonicalize)


@pytest.mark.slow
@over(TWO_OF_EACH)
def test_what_an_op_in_between_loses_is_told(op: FusedOp[...], variant: Variant) -> None:
    """At each edge of a pattern: a cast and back, another order of the elements, a scale, another function."""
    lost = laws.count_reported_losses(op, variant, 1, canonicalize, parts_of(op))
    assert lost or variant.size == 1


@pytest.mark.slow
@pytest.mark.parametrize(("op", "guard"), GUARDS, ids=[f"{op.name}.{guard.name}" for op, guard in GUARDS])
def test_every_guard_can_refuse(op: FusedOp[...], guard: Guard) -> None:
    laws.check_guard(op, guard, canonicalize)


@pytest.mark.parametrize(("op", "guard"), REMEDIED, ids=[f"{op.name}.{guard.name}" for op, guard in REMEDIED])
def test_every_remedy_makes_its_guard_hold(op: FusedOp[...], guard: Guard) -> None:
    laws.check_remedy(op, guard)
