"""What traps 15 to 21 are defended by, taken away."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from pytest import MonkeyPatch

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import ALL as ALL_DTYPES
from dovetail.ir.dtype import f32
from dovetail.ir.fact import Facts
from dovetail.ir.graph import Subgraph
from dovetail.ir.literal import Array, Literal
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.build import reshape, tile
from dovetail.ops.rules import broadcast, elementwise
from tests.traps import test_broadcast_and_dtypes as broadcasts
from tests.traps.removal import Defence, constantly, replaced, wrapped


def repeat_by_count(x: Value, shape: Sequence[Size]) -> Value:
    """The elements one behind the other until the shape is full, as an index modulo their count reads them."""
    count = product(x.shape)
    return reshape(tile(reshape(x, (count,)), (floordiv(product(tuple(shape)), count),)), shape)


def in_f32(outline: Callable[..., Subgraph]) -> Callable[..., Subgraph]:
    """A region computes in f32 and casts its result."""

    def step(value: Value, operands: tuple[Value, ...]) -> Value | None:
        return ops.cast(value, dtype=f32) if value.op in (leaf.ARGUMENT, leaf.CONST) else None

    def narrowed(results: Sequence[Value], operands: Sequence[Value]) -> Subgraph:
        body = outline(results, operands)
        new = rebuild_values(body.results, step)
        return Subgraph(body.arguments, tuple(ops.cast(new[v], dtype=v.dtype) for v in body.results))

    return narrowed


def compare_in_own_dtype(patch: MonkeyPatch) -> None:
    """A comparison has the dtype of what it compares."""
    patch.setattr(ops.less, "type_rule", elementwise(ALL_DTYPES))


def any_condition(facts: Facts, condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    """The type of a where whose condition is of any dtype."""
    return TensorType(x.dtype, broadcast(facts, [condition.shape, x.shape, y.shape]))


def as_f32(array: Array) -> Literal:
    """A constant is f32."""
    return Literal(array.astype(np.float32))


def through_f32(array: Array) -> Literal:
    """A constant has the bits that f32 has."""
    with np.errstate(all="ignore"):
        return Literal(array.astype(np.float32).astype(array.dtype))


def larger_size(facts: Facts, left: Size, right: Size) -> Size:
    """Of two sizes that meet the larger one."""
    return max(left, right)  # type: ignore[type-var]


def at_least_one(sizes: Sequence[int]) -> int:
    """A product of sizes in which an empty axis counts as one."""
    return max(1, math.prod(sizes))


DEFENCES = (
    Defence(
        broadcasts.test_trap_15_an_operand_that_stretches_along_an_inner_axis,
        "elements are read modulo their count",
        replaced("dovetail.ops.build.broadcast_to", repeat_by_count),
    ),
    Defence(
        broadcasts.test_trap_16_chains_of_every_dtype_are_computed_in_it,
        "regions compute in f32",
        wrapped("dovetail.passes.regions.outline", in_f32),
    ),
    Defence(
        broadcasts.test_trap_17_more_broadcast_inputs_than_a_kernel_takes,
        "regions have no limits",
        replaced("dovetail.passes.regions.RegionLimits.over", constantly(None)),
    ),
    Defence(
        broadcasts.test_trap_18_comparing_yields_bool_everywhere,
        "a comparison has the dtype of its operands",
        compare_in_own_dtype,
    ),
    Defence(
        broadcasts.test_trap_19_the_condition_of_a_where_keeps_its_dtype,
        "a condition is of any dtype",
        lambda patch: patch.setattr(ops.where, "type_rule", any_condition),
    ),
    Defence(
        broadcasts.test_trap_19_the_condition_of_a_where_keeps_its_dtype,
        "regions compute in f32",
        wrapped("dovetail.passes.regions.outline", in_f32),
    ),
    Defence(
        broadcasts.test_trap_20_constants_take_the_dtype_that_is_asked_for,
        "constants are f32",
        replaced("dovetail.ir.leaf.Literal", as_f32),
    ),
    Defence(
        broadcasts.test_trap_20_constants_take_the_dtype_that_is_asked_for,
        "constants pass through f32",
        replaced("dovetail.ir.leaf.Literal", through_f32),
    ),
    Defence(
        broadcasts.test_trap_21_sizes_of_zero,
        "the larger of two sizes wins",
        replaced("dovetail.ops.rules._stretch", larger_size),
    ),
    Defence(
        broadcasts.test_trap_21_sizes_of_zero,
        "an empty axis counts as one",
        replaced("dovetail.passes.lowerings.dot.product", at_least_one),
    ),
)
