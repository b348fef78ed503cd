"""Canonicalise: of the many ways to write a computation, graphs and patterns both use one."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from dovetail.derive.edit import Log
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value
from dovetail.passes.canonical import (
    arithmetic,
    biases,
    broadcasts,
    casts,
    choices,
    constants,
    conv_as_matmul,
    conv_axes,
    images,
    iota_indices,
    logic,
    loops,
    moments,
    query_scales,
    rotations,
    scores,
    slice_assignment,
    slices,
    split_of_concat,
    transposes,
    views,
    weights,
)
from dovetail.passes.canonical.engine import Canonicalizer
from dovetail.passes.canonical.rule import Rule

RULES: tuple[Rule, ...] = (
    *constants.RULES,
    *casts.RULES,
    *arithmetic.RULES,
    *moments.RULES,
    *rotations.RULES,
    *images.RULES,
    *conv_as_matmul.RULES,
    *conv_axes.RULES,
    *logic.RULES,
    *choices.RULES,
    *loops.RULES,
    *slices.RULES,
    *iota_indices.RULES,
    *slice_assignment.RULES,
    *views.RULES,
    *transposes.RULES,
    *split_of_concat.RULES,
    *scores.RULES,
    *query_scales.RULES,
    *biases.RULES,
    *weights.RULES,
    *broadcasts.RULES,
)
"""Every rule, in the order in which they are tried."""


def canonicalize(
    graph: Graph,
    *,
    rules: Sequence[Rule] = RULES,
    without: AbstractSet[str] = frozenset(),
    strict: bool = False,
    fold_bytes: int = constants.FOLD_BYTES,
    log: Log | None = None,
) -> Graph:
    """The same graph in canonical form; `strict` admits only rules that keep every bit."""
    if log is not None:
        log.begin("rewrite")
    return rebuild(graph, _engine(rules, without, strict, fold_bytes, log).step)


def canonical_value(values: Sequence[Value]) -> list[Value]:
    """Values in canonical form, those of patterns included; what needs a type is left where there is none."""
    engine = Canonicalizer(RULES)
    return [engine.settle(value) for value in values]


def _engine(
    rules: Sequence[Rule], without: AbstractSet[str], strict: bool, fold_bytes: int, log: Log | None
) -> Canonicalizer:
    limited = {rule.name: rule for rule in constants.folding(fold_bytes)} if fold_bytes != constants.FOLD_BYTES else {}
    chosen = [
        limited.get(rule.name, rule)
        for rule in rules
        if rule.name not in without and not (strict and rule.numerics != "exact")
    ]
    return Canonicalizer(chosen, log)


__all__ = ["RULES", "canonical_value", "canonicalize"]
