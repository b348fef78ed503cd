"""Choices between numbers: masks are made of them, in many steps that say little."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_
from dovetail.ir.literal import Array, is_table_of_truths
from dovetail.ir.value import Op, Value
from dovetail.ops import elementwise
from dovetail.passes.canonical.arithmetic import are_scores
from dovetail.passes.canonical.rule import dtype_if_known, listed, number_in, number_like, rule

_PLAIN = (ops.add, ops.sub, ops.mul, ops.neg, ops.cast)
"""What makes whole numbers of 0 and 1 and whole numbers: nothing is rounded."""
_BENT = tuple(op for op in elementwise.FAMILY if op.arity in (1, 2))


@rule(*_BENT, ops.cast)
def bent_choice(value: Value) -> Value | None:
    """An op of numbers and of a choice between numbers is a choice between what it makes of them."""
    if value.known_type is None:
        return None
    choices = [v for v in value.operands if v.op is ops.where or (value.op in _PLAIN and _is_truth(v))]
    if len(choices) != 1 or not all(v is choices[0] or _is_number(v) for v in value.operands):
        return None
    condition, *sides = choices[0].operands
    if not sides:
        sides = [number_like(1, choices[0]), number_like(0, choices[0])]
    if not all(map(_is_number, sides)):
        return None
    results = [value.with_operands(tuple([s if v is choices[0] else v for v in value.operands])) for s in sides]
    return ops.where(condition, *results)


def _is_truth(value: Value) -> bool:
    """Whether it is 1 where something holds, else 0."""
    return value.op is ops.cast and value.operands[0].dtype is bool_


@rule(ops.where, on_constant=True)
def number_chosen_last(value: Value) -> Value | None:
    """A number where a known condition holds, else x, is x where it does not, else the number."""
    condition, yes, no = value.operands
    if condition.op is not leaf.CONST or not condition.rank or not _is_number(yes) or no.op is leaf.CONST:
        return None
    known: Array = condition.attrs["value"].array
    return ops.where(leaf.constant(~known), no, yes) if known.size <= _LARGEST_TURNED else None


_LARGEST_TURNED = 1 << 20
"""Elements of a condition that is written down anew."""


@rule(ops.where)
def choice_within_choice(value: Value) -> Value | None:
    """Where c, a, else b or a by another choice, is one choice of a and b."""
    condition, yes, no = value.operands
    if yes.op is ops.where and _is_number(no):
        inner, a, b = yes.operands
        if a is no and _is_number(b):
            return ops.where(ops.bit_and(condition, ops.bit_not(inner)), b, a)
        if b is no and _is_number(a):
            return ops.where(ops.bit_and(condition, inner), a, b)
    if no.op is ops.where and _is_number(yes):
        inner, a, b = no.operands
        if a is yes and _is_number(b):
            return ops.where(ops.bit_or(condition, inner), a, b)
        if b is yes and _is_number(a):
            return ops.where(ops.bit_and(inner, ops.bit_not(condition)), a, b)
    return None


@rule(ops.where, on_constant=True)
def choice_is_logic(value: Value) -> Value | None:
    """True where c, else x, is c or x; x where c, else false, is c and x; and so on."""
    condition, yes, no = value.operands
    if dtype_if_known(value) is not bool_:
        return None
    match number_in(yes), number_in(no):
        case True, None:
            return ops.bit_or(condition, no)
        case False, None:
            return ops.bit_and(no, ops.bit_not(condition))
        case None, True:
            return ops.bit_or(ops.bit_not(condition), yes)
        case None, False:
            return ops.bit_and(condition, yes)
        case _:
            return None


@rule(ops.cast)
def truth_of_choice(value: Value) -> Value | None:
    """Whether a number or x is not 0, by a choice, is a choice of what is known and whether x is not 0."""
    choice = value.operands[0]
    if dtype_if_known(value) is not bool_ or choice.op is not ops.where:
        return None
    condition, *sides = choice.operands
    if not any(map(_is_number, sides)):
        return None
    return ops.where(condition, *(ops.cast(side, dtype=bool_) for side in sides))


@rule(ops.where, numerics="reassociated")
def untrue_is_zero(value: Value) -> Value | None:
    """Where x is not 0, a number, else x, is the number or 0; but for the sign of that 0."""
    condition, yes, no = value.operands
    if value.known_type is None or condition.op is not ops.cast or condition.operands[0] is not no:
        return None
    return ops.where(condition, yes, number_like(0, no)) if _is_number(yes) else None


@rule(ops.maximum, ops.minimum, on_constant=True)
def clipped_choices(value: Value) -> Value | None:
    """The sum of two choices between numbers, no further than a bound, is one choice where three of four are equal."""
    total, bound = value.operands
    if value.known_type is None or total.op is not ops.add or not _is_number(bound):
        return None
    left, right = total.operands
    if left.op is not ops.where or right.op is not ops.where:
        return None
    first, *ones = left.operands
    second, *others = right.operands
    if not all(map(_is_number, (*ones, *others))):
        return None
    results = [[_number_of(value.op, ops.add(a, b), bound) for b in others] for a in ones]
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rest = [results[k][m] for k in (0, 1) for m in (0, 1) if (k, m) != (i, j)]
        if all(r == rest[0] for r in rest):
            own = ops.bit_and(ops.bit_not(first) if i else first, ops.bit_not(second) if j else second)
            return ops.where(own, number_like(results[i][j], value), number_like(rest[0], value))
    return None


@rule(ops.add, on_constant=True, numerics="reassociated")
def filled_by_factor(value: Value) -> Value | None:
    """q @ kᵀ times 1 plus 0, or times 0 plus a number that hides, is a choice between the score and that number."""
    product, addend = value.operands
    if value.known_type is None or addend.op is not leaf.CONST or not addend.rank or product.op is not ops.mul:
        return None
    x, factor = product.operands
    if factor.op is not leaf.CONST or factor.shape != addend.shape or not are_scores(x):
        return None
    kept, added = (v.attrs["value"].array for v in (factor, addend))
    shown = kept == 1
    hidden = added[~shown]
    if not hidden.size or (kept[~shown] != 0).any() or (added[shown] != 0).any() or (hidden != hidden[0]).any():
        return None
    return ops.where(leaf.constant(shown), x, number_like(float(hidden[0]), value)) if hidden[0] <= _HIDES else None


@rule(ops.add, numerics="reassociated")
def filled_by_truth(value: Value) -> Value | None:
    """The same where the factor is a truth value, and the addend a choice by it."""
    for product, addend in (value.operands, value.operands[::-1]):
        if value.known_type is None or product.op is not ops.mul or addend.op is not ops.where:
            continue
        condition, kept, hidden = addend.operands
        fill = number_in(hidden)
        if number_in(kept) != 0 or fill is None or fill > _HIDES:
            continue
        for x, factor in (product.operands, product.operands[::-1]):
            if _is_truth(factor) and factor.operands[0] is condition and are_scores(x):
                return ops.where(condition, x, hidden)
    return None


_HIDES = -1e4
"""A score that is no larger weighs nothing beside others. A hidden score that is NaN shows no longer."""


@rule(ops.slice_, on_constant=True)
def slice_of_zeros_and_ones(value: Value) -> Value | None:
    """A slice of a table of 0 and 1 is one of truth values, as numbers."""
    (table,) = value.operands
    if value.known_type is None or not table.dtype.is_float or table.rank < 2:
        return None
    array: Array = table.attrs["value"].array
    if array.size > _LARGEST_TURNED or not is_table_of_truths(array):
        return None
    return ops.cast(value.with_operands((leaf.constant(array != 0),)), dtype=table.dtype)


@rule(ops.slice_)
def truths_are_cut_first(value: Value) -> Value | None:
    """A slice of truth values as numbers is a slice of them, as numbers."""
    (x,) = value.operands
    if value.known_type is None or not _is_truth(x):
        return None
    return ops.cast(value.with_operands(x.operands), dtype=x.dtype)


def _number_of(op: Op, total: Value, bound: Value) -> float:
    """The sum of two numbers, no further than a bound."""
    arrays = [v.attrs["value"].array for v in (*total.operands, bound)]
    with np.errstate(over="ignore"):
        added = arrays[0] + arrays[1]
    return float((np.maximum if op is ops.maximum else np.minimum)(added, arrays[2]))


def _is_number(value: Value) -> bool:
    return value.op is leaf.CONST and not value.rank


RULES = listed(globals())
