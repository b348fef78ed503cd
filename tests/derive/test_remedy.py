"""Remedies: what each brings about in a graph, and what a declaration of one must be."""

from __future__ import annotations

import pytest

from dovetail import Graph, Value, fused_op
from dovetail.declare import Change, FusedOp, Guard, typed
from dovetail.derive import laws
from dovetail.derive.fuse import fuse
from dovetail.derive.remedy import NoRemedyError, remedied, viewed
from dovetail.dtypes import f32
from dovetail.errors import DovetailError, TraceError
from dovetail.ir import leaf
from dovetail.ir.dtype import f16
from dovetail.passes.canonicalize import canonicalize
from dovetail.testing import parts_of
from tests.library.test_laws import REMEDIED

_TRIES = 8


@pytest.mark.parametrize(("op", "guard"), REMEDIED, ids=[f"{op.name}.{guard.name}" for op, guard in REMEDIED])
def test_what_a_remedy_was_applied_to_fuses(op: FusedOp[...], guard: Guard) -> None:
    """A refused call, spelled out as a graph, fuses once it is remedied; for some calls no remedy fits."""
    ops = [*parts_of(op), op]
    smaller = 0
    for seed in range(_TRIES):
        chosen = laws.counterexample(op, guard, seed)
        found = fuse(canonicalize(laws.graph_of(op.body(**chosen), chosen)), ops, always=True)
        alike = [m for m in found.missed if (m.rule, m.reason) == (op.name, guard.name)]
        if not alike and any(m.rule == op.name for m in found.missed):
            # Without a bias, what is added can be read as one: then another guard refused.
            continue
        if not alike:
            # Less of it fuses: what the guard refuses is left outside, and nothing was missed.
            assert any(a.rule == op.name for a in found.applied)
            smaller += 1
            continue
        try:
            changed = remedied(found, op, alike)
        except NoRemedyError:
            continue
        again = fuse(canonicalize(changed.graph), ops, always=True)
        if any(a.rule == op.name for a in again.applied):
            assert all(m.reason != guard.name for m in again.missed)
            return
    assert smaller, f"{op.name}.{guard.name}: no refused call fuses once it is remedied"


def test_views_keep_the_numbers() -> None:
    row = leaf.param("row", f32[1, 8])
    assert viewed(row, f32[1, 8]) is row
    vector, column, narrow = (viewed(row, type) for type in (f32[8], f32[8, 1], f16[8]))
    assert vector is not None and vector.type == f32[8]
    assert column is not None and column.type == f32[8, 1]
    assert narrow is not None and narrow.type == f16[8]
    assert viewed(row, f32[2, 8]) is None


def test_a_remedy_belongs_to_a_guard_of_its_op() -> None:
    @fused_op(shapes="x[n]")
    def twice(x: Value) -> Value:
        """x + x."""
        return x + x

    def stranger(x: Value) -> bool:
        return x.rank == 1

    with pytest.raises(TraceError, match="stranger is no guard of twice"):
        twice.remedy(stranger)


def test_a_remedy_that_does_not_help_here_is_none() -> None:
    @fused_op(shapes="x[*, n] b[n]")
    def shifted(x: Value, b: Value) -> Value:
        """-(x + b)."""
        return -(x + b)

    @shifted.requires(reason="b is {b.type}", hint="make it a vector")
    def shift_is_a_vector(b: Value) -> bool:
        return b.rank == 1

    @shifted.remedy(shift_is_a_vector)
    def shift_as_a_vector(b: Value) -> Change | None:
        """The shift is a vector."""
        return None if b.rank > 2 else {"b": typed(b, shape=b.shape[-1:])}

    (guard,) = shifted.guards
    assert guard.remedy is not None and guard.remedy.words == "the shift is a vector"
    for shape, fits in (((3, 4), True), ((2, 3, 4), False)):
        x, b = leaf.input("x", f32[2, 3, 4]), leaf.input("b", f32[shape])
        found = fuse(Graph.of(shifted.body(x, b)), [shifted])
        try:
            changed = remedied(found, shifted, found.missed)
        except DovetailError as error:
            assert not fits and isinstance(error, NoRemedyError)
        else:
            assert fits and [v.type for v in changed.fresh] == [f32[4]]
