"""What traps 6 to 14 are defended by, taken away."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dovetail.derive.missed import Missed
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Graph
from dovetail.ir.leaf import Hole
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.library.attention import attention
from dovetail.library.attention_block import attention_block
from dovetail.library.linear import linear
from dovetail.library.residual_layer_norm import residual_layer_norm
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.swiglu import swiglu
from dovetail.match import Mismatch
from tests.traps import test_guards as guards
from tests.traps.removal import Defence, both, constantly, replaced, without_guard, wrapped


def first_dtype(facts: Any, types: list[TensorType], allowed: Any) -> DType:
    """The dtype of the first operand, whatever the others are."""
    return types[0].dtype


def skip_attributes(compare: Callable[..., Mismatch | None]) -> Callable[..., Mismatch | None]:
    """A pattern catches attributes, and does not compare them."""

    def attribute(attempt: Any, key: str, wanted: Any, found: Any, value: Value) -> Mismatch | None:
        return compare(attempt, key, wanted, found, value) if isinstance(wanted, Hole) else None

    return attribute


def axis_as_written(axis: int, rank: int | None) -> int:
    return axis


def whole_quotient(left: Any, right: Any) -> Any:
    """How often one size goes into another, a remainder left out."""
    return left // right


def small_input_decides(unprofitable: Callable[..., Missed | None]) -> Callable[..., Missed | None]:
    """Blocks pay where any input of the graph has few elements."""

    def judged(step: Any, found: Any, fused: Value) -> Missed | None:
        graph: Graph = step.graph
        tiny = any(math.prod(int(str(s)) for s in v.shape) <= 64 for v in graph.inputs)
        return None if tiny and found.op.stage == "block" else unprofitable(step, found, fused)

    return judged


DEFENCES = (
    Defence(
        guards.test_trap_06_a_bias_of_one_number,
        "any bias is a vector",
        without_guard(linear, "bias_is_a_vector"),
    ),
    Defence(
        guards.test_trap_06_a_bias_that_is_wider_than_the_product,
        "a bias of any width is a vector",
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
        replaced("dovetail.ops.primitive.axis_from_end", axis_as_written),
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
    Defence(
        guards.test_trap_12_queries_and_keys_that_are_rotated_differently,
        "a name stands for two values",
        replaced("dovetail.match.matcher._Attempt._is_another", constantly(False)),
    ),
    *(
        Defence(
            guards.test_trap_13_blocks_of_other_ranks_masks_and_widths,
            f"nobody asks whether {guard.replace('_', ' ')}",
            without_guard(attention_block, guard),
        )
        for guard in ("x_is_a_batch_of_rows", "weights_are_matrices", "projection_is_three_times_as_wide")
    ),
    Defence(
        guards.test_trap_13_blocks_of_other_ranks_masks_and_widths,
        "nobody asks whether masks broadcast",
        both(without_guard(attention, "masks_broadcast"), without_guard(attention_block, "masks_broadcast")),
    ),
    Defence(
        guards.test_trap_14_a_tiny_input_beside_does_not_switch_block_fusion_on,
        "the smallest input decides",
        wrapped("dovetail.derive.fuse._Round._unprofitable", small_input_decides),
    ),
)
