"""Rules for an e-graph: one for each variant, with what it asks."""

from __future__ import annotations

from collections import Counter

import pytest

from dovetail import Value, library, ops
from dovetail.declare import fused_op
from dovetail.derive.rules import rules, spell
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.leaf import Hole, hole
from dovetail.library.linear import linear
from dovetail.library.softmax import softmax
from dovetail.ops.deferred_shape import dtype_of, size_of


def test_a_rule_says_what_it_looks_for_and_when() -> None:
    found = {rule.name: str(rule) for rule in rules([linear])}
    assert found["linear[x, w, b, act=relu]"] == (
        "linear[x, w, b, act=relu]\n"
        "  relu(add(matmul(?x, ?w), ?b))\n"
        "  when weight_is_a_matrix: w.rank == 2\n"
        "  when bias_is_a_vector: b.shape == w.shape[-1:]"
    )
    assert "bias_is_a_vector" not in found["linear[x, w, act=relu]"]


@pytest.mark.heavy
def test_every_pattern_of_the_library_is_one_rule_with_a_name_of_its_own() -> None:
    found = rules(library.ALL)
    assert len(found) == sum(len(op.patterns) for op in library.ALL)
    assert max(Counter(rule.name for rule in found).values()) == 1


def test_sizes_dtypes_and_caught_numbers_are_part_of_the_pattern() -> None:
    x = hole("x")
    assert spell(ops.cast(x, dtype=dtype_of(x))) == "cast(?x, dtype=dtype(x))"
    assert spell(ops.expand(x, axis=-1, size=size_of(x, -2))) == "expand(?x, axis=-1, size=size(x, -2))"
    assert spell(x * leaf.scalar(Hole("scale") ** 0.5, None)) == "mul(?x, root(?scale))"
    assert spell(softmax(x)) == 'softmax(?x, axis=-1, empty="nan", wide=False)'
    assert spell(ops.cast(x, dtype=f32)) == "cast(?x, dtype=f32)"


def test_a_guard_that_no_condition_can_say_keeps_its_rule_out() -> None:
    @fused_op(shapes="x[*]")
    def picky(x: Value) -> Value:
        """exp(-x)."""
        return ops.exp(ops.neg(x))

    @picky.requires(reason="x is {x.type}", hint="use even sizes")
    def sizes_are_even(x: Value) -> bool:
        return all(size == 2 for size in x.shape)

    (rule,) = rules([picky])
    assert rule.opaque == "sizes_are_even: a loop over a shape of unknown rank" and not rule.conditions
    assert "asked of each match" in str(rule)
