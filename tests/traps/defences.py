"""The defence behind each trap test, and the smallest change that takes it away."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from pytest import MonkeyPatch

from dovetail import ops
from dovetail.errors import GraphError
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import ALL as ALL_DTYPES
from dovetail.ir.dtype import DType, f32
from dovetail.ir.fact import Facts
from dovetail.ir.graph import Graph, Subgraph, Uses
from dovetail.ir.leaf import Hole
from dovetail.ir.literal import Array, Literal
from dovetail.ir.op import Op
from dovetail.ir.rewrite import Replacement, rebuild_values, replace_roots
from dovetail.ir.type import TensorType
from dovetail.ir.value import Attrs, Value, make
from dovetail.library.linear import linear
from dovetail.library.residual_layer_norm import residual_layer_norm
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.swiglu import swiglu
from dovetail.match import Mismatch
from dovetail.ops.build import reshape, tile
from dovetail.ops.rules import broadcast, elementwise
from tests.traps import test_broadcast_and_dtypes as broadcasts
from tests.traps import test_guards as guards
from tests.traps import test_outputs_and_uses as outputs
from tests.traps.removal import Defence, both, constantly, replaced, without_guard, wrapped

# Outputs and uses -------------------------------------------------------------------------------------------------


def replace_interiors(graph: Graph, roots: Mapping[Value, Replacement]) -> Graph:
    """What a fusion swallows is replaced by it, as its root is."""
    inner = {v: replacement for replacement in roots.values() for v in replacement.covers}
    return replace_roots(graph, {**inner, **roots})


def count_readers(uses: Uses, value: Value) -> int:
    """Who reads a value, and not how often."""
    return len(set(uses.readers[value])) + uses.as_output.get(value, 0)


def make_params_anew(op: Op, operands: tuple[Value, ...], attrs: Attrs = MappingProxyType({})) -> Value:
    """A parameter is another value each time that it is named."""
    return Value(op, operands, attrs, attrs["type"], ()) if op is leaf.PARAM else make(op, operands, attrs)


def forget_caught(interior: Callable[[Any, Any], list[Value]]) -> Callable[[Any, Any], list[Value]]:
    """Operands of the fused op do not count as readers of what it swallows."""

    def shared(step: Any, found: Any) -> list[Value]:
        return [v for v in interior(step, found) if v not in found.names.values()]

    return shared


OUTPUTS = (
    Defence(
        outputs.test_trap_01_an_inner_value_that_is_an_output_keeps_its_own_value,
        "interiors are replaced by the fused value",
        replaced("dovetail.derive.fuse.replace_roots", replace_interiors),
    ),
    Defence(
        outputs.test_trap_02_every_pass_counts_uses_in_the_same_way,
        "readers are counted instead of reads",
        replaced("dovetail.ir.graph.Uses.count", count_readers),
    ),
    Defence(
        outputs.test_trap_02_every_pass_counts_uses_in_the_same_way,
        "being an output is no use",
        replaced("dovetail.ir.graph.Uses.is_output", constantly(False)),
    ),
    Defence(
        outputs.test_trap_03_one_parameter_of_each_name_after_fusing,
        "parameters are not interned",
        replaced("dovetail.ir.leaf.make", make_params_anew),
    ),
    Defence(
        outputs.test_trap_04_an_operand_that_is_also_the_partner,
        "the partner does not count as a reader",
        wrapped("dovetail.derive.fuse._Round._shared_interior", forget_caught),
    ),
    Defence(
        outputs.test_trap_05_a_sum_that_also_feeds_the_gain_of_its_own_norm,
        "nobody asks whether a result feeds an operand",
        both(
            replaced("dovetail.derive.fuse._Round._cyclic", constantly(None)),
            replaced("dovetail.derive.fuse.CyclicReplacementError", type("Other", (GraphError,), {})),
        ),
    ),
)

# Guards -----------------------------------------------------------------------------------------------------------


def first_dtype(facts: Any, types: list[TensorType], allowed: Any) -> DType:
    """The dtype of the first operand, whatever the others are."""
    return types[0].dtype


def skip_attributes(compare: Callable[..., Mismatch | None]) -> Callable[..., Mismatch | None]:
    """A pattern catches attributes, and does not compare them."""

    def attribute(attempt: Any, key: str, wanted: Any, found: Any, value: Value) -> Mismatch | None:
        return compare(attempt, key, wanted, found, value) if isinstance(wanted, Hole) else None

    return attribute


def whole_quotient(left: Any, right: Any) -> Any:
    """How often one size goes into another, a remainder left out."""
    return left // right


GUARDS = (
    Defence(
        guards.test_trap_06_a_bias_of_one_number,
        "any bias is a vector",
        without_guard(linear, "bias_is_a_vector"),
    ),
    Defence(
        guards.test_trap_06_a_bias_that_is_wider_than_the_product,
        "any bias is a vector",
        without_guard(linear, "bias_is_a_vector"),
    ),
    Defence(
        guards.test_trap_06_weights_with_a_batch,
        "any weight is a matrix",
        without_guard(linear, "weight_is_a_matrix"),
    ),
    Defence(
        guards.test_trap_06_operands_of_mixed_dtypes,
        "the first operand has the dtype of all",
        both(
            replaced("dovetail.ops.rules.one_dtype", first_dtype),
            replaced("dovetail.ops.contraction.one_dtype", first_dtype),
        ),
    ),
    Defence(
        guards.test_trap_07_a_norm_of_a_value_plus_its_bias,
        "any addend is a residual of a layer norm",
        without_guard(residual_layer_norm, "operands_have_one_shape"),
    ),
    Defence(
        guards.test_trap_07_a_norm_of_a_value_plus_its_bias,
        "any addend is a residual of an rms norm",
        without_guard(residual_rms_norm, "operands_have_one_shape"),
    ),
    Defence(
        guards.test_trap_08_a_norm_over_an_axis_that_is_not_the_last,
        "attributes are not compared",
        wrapped("dovetail.match.matcher._Attempt._attribute", skip_attributes),
    ),
    Defence(
        guards.test_trap_08_an_axis_counted_from_the_front_after_the_rank_changed,
        "axes stay as they are written",
        replaced("dovetail.ops.primitive.axis_from_end", lambda axis, rank: axis),  # pyright: ignore[reportUnknownLambdaType]
    ),
    Defence(
        guards.test_trap_09_a_gate_of_one_column,
        "any two weights are equally wide",
        without_guard(swiglu, "weights_are_equally_wide"),
    ),
    Defence(
        guards.test_trap_10_pieces_that_are_not_the_two_halves_of_the_last_axis,
        "attributes are not compared",
        wrapped("dovetail.match.matcher._Attempt._attribute", skip_attributes),
    ),
    Defence(
        guards.test_trap_10_pieces_that_are_not_the_two_halves_of_the_last_axis,
        "pieces are counted without their remainder",
        replaced("dovetail.ops.build.quotient", whole_quotient),
    ),
    Defence(
        guards.test_trap_10_two_of_three_joined_weights,
        "neither attributes nor types are compared",
        both(
            wrapped("dovetail.match.matcher._Attempt._attribute", skip_attributes),
            replaced("dovetail.derive.fuse._Round._refusal", constantly(None)),
        ),
    ),
    Defence(
        guards.test_trap_11_gate_and_up_with_other_readers,
        "interiors are always private",
        replaced("dovetail.derive.fuse._Round._shared_interior", constantly([])),
    ),
)

# Broadcast and dtypes ---------------------------------------------------------------------------------------------


def repeat_by_count(x: Value, shape: Sequence[Any]) -> Value:
    """The elements one behind the other until the shape is full, as an index modulo their count reads them."""
    count, wanted = math.prod(map(int, x.shape)), math.prod(shape)
    return reshape(tile(reshape(x, (count,)), (wanted // max(count, 1),)), shape)


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


BROADCAST = (
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
        replaced("dovetail.passes.regions._over", constantly(None)),
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

DEFENCES: tuple[Defence, ...] = (*OUTPUTS, *GUARDS, *BROADCAST)
"""Every defence, one or more for each trap test."""
