"""Traces of an op share parts: they give the patterns that they give apart, and hold nothing when they are done."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext

import pytest

from dovetail import Value, library
from dovetail.declare import FusedOp, Variant, fused, part_of_traces
from dovetail.declare.trace import shared_parts
from dovetail.dtypes import f32
from dovetail.ir.leaf import input


def traced(op: FusedOp[...]) -> list[Variant]:
    """The variants of an op, traced now."""
    kept = op.__dict__.pop("variants", None)
    try:
        return list(op.variants)
    finally:
        op.__dict__.pop("variants", None)
        if kept is not None:
            op.__dict__["variants"] = kept


@pytest.mark.parametrize("op", [library.attention, library.dequantise_blocks, library.sink_attention], ids=str)
def test_traces_with_shared_parts_are_those_without(op: FusedOp[...], monkeypatch: pytest.MonkeyPatch) -> None:
    together = traced(op)
    monkeypatch.setattr(fused, "shared_parts", nullcontext)
    apart = traced(op)
    # Equal values are one object.
    assert [(v.spelling, v.label, v.results) for v in together] == [(v.spelling, v.label, v.results) for v in apart]
    assert [(v.needs, v.numbers) for v in together] == [(v.needs, v.numbers) for v in apart]


def test_a_part_is_computed_once_for_each_choice_of_its_arguments() -> None:
    calls: list[tuple[Value, bool | None]] = []

    @part_of_traces
    def part(x: Value, flag: bool | None) -> Value:
        calls.append((x, flag))
        return x + x if flag else x

    x, y = input("x", f32[2]), input("y", f32[2])
    with shared_parts():
        for _ in range(2):
            assert part(x, True) is x + x
            assert part(x, False) is part(x, None) is x
            assert part(y, True) is y + y
    assert calls == [(x, True), (x, False), (x, None), (y, True)]
    part(x, True)
    part(x, True)
    assert len(calls) == 6, "outside traces every call computes it"


@pytest.mark.slow
def test_traces_hold_nothing_when_they_are_done() -> None:
    @part_of_traces
    def twice(x: Value) -> Value:
        return x + x

    with shared_parts():
        made = weakref.ref(twice(input("only_here", f32[3])))
        gc.collect()
        assert made() is not None
    gc.collect()
    assert made() is None
