"""What conditions of epilogues are asked, and how often."""

from __future__ import annotations

from dataclasses import replace

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.leaf import input, param
from dovetail.passes.claims import Anchor, Condition
from dovetail.passes.epilogues import EPILOGUE, fuse_epilogues
from dovetail.passes.regions import mark_regions
from dovetail.targets.cpu.claims import CLAIMS


def test_conditions_are_asked_once_for_equal_layers() -> None:
    """Of layers that look alike one is asked about; a weight is told from an activation of the same type."""
    asked: list[Value] = []

    def holds(value: Value) -> bool:
        asked.append(value)
        return value.operands[1].op is leaf.PARAM

    condition = Condition("multiplies_by_a_weight", holds, "the right operand is no parameter")
    claims = replace(CLAIMS, anchors={"matmul": Anchor(epilogue=(condition,))})

    def layers(count: int) -> Value:
        x = input("x", f32[8, 8])
        for i in range(count):
            x = ops.tanh(ops.tanh(x @ param(f"w{i}", f32[8, 8])) @ input(f"given{i}", f32[8, 8]))
        return x

    for count in (2, 6):
        asked.clear()
        marked = mark_regions(Graph.of(layers(count)), CLAIMS.regions).graph
        found = fuse_epilogues(marked, claims)
        assert len(asked) == 4, "the first layer reads an input, the others a result; each has two products"
        assert [a.rule for a in found.applied] == [EPILOGUE] * count
        assert len(found.missed) == count
