"""What traps 22 to 29 are defended by, taken away."""

from __future__ import annotations

from typing import Any

from dovetail import ops
from dovetail.ir.dim import Size
from dovetail.ir.fact import Facts
from dovetail.ir.value import Value
from dovetail.library.attention import attention
from dovetail.library.gated_product import gated_product
from dovetail.library.lora_matmul import lora_matmul
from dovetail.ops.build import squeeze_dims
from tests.traps import test_expansion as expansion
from tests.traps.removal import Defence, replaced, spelled

Given = dict[str, Any]


def second_half(given: Given) -> Given:
    return {"gate": "second"}


def mask_of_two_axes(given: Given) -> Given:
    """Axes of size 1 are taken out of the mask."""
    return {} if given["mask"] is None else {"mask": squeeze_dims(given["mask"])}


def mask_of_three_axes(given: Given) -> Given:
    """The axis for heads is taken out of a mask that serves all of them."""
    mask: Value | None = given["mask"]
    serves_all = mask is not None and mask.rank == 4 and mask.shape[1] == 1
    return {"mask": ops.squeeze(mask, axes=(-3,))} if serves_all and mask is not None else {}


def no_scale(given: Given) -> Given:
    return {"scale": 1.0}


def no_softcap(given: Given) -> Given:
    return {"softcap": None}


def no_bias(given: Given) -> Given:
    return {"mask": None}


def heads_modulo(x: Value, groups: int | None) -> Value:
    """All heads one behind the other, as often as there are groups."""
    if groups is None:
        return x
    return ops.merge(ops.expand(ops.unsqueeze(x, axes=(-4,)), axis=-4, size=groups), axis=-3)


def kept_is_added(given: Given) -> Given:
    """The keep-mask is added as 0 and 1."""
    keep: Value | None = given["keep"]
    return {} if keep is None else {"keep": None, "fill": None, "mask": ops.cast(keep, dtype=given["q"].dtype)}


def added_is_kept(given: Given) -> Given:
    """The additive mask says which keys are hidden, and is not added."""
    mask: Value | None = given["mask"]
    return {} if mask is None else {"mask": None, "fill": float("-inf"), "keep": ops.greater(mask, -9.0)}


def rows_in_front(given: Given) -> Given:
    """All axes in front become rows, and stay so."""
    x: Value = given["x"]
    return {} if x.rank == 2 else {"x": ops.merge(x, axis=-2, count=x.rank - 1)}


def left_size(facts: Facts, left: Size, right: Size, why: str) -> Size:
    """Of two sizes that must be equal the left one."""
    return left


DEFENCES = (
    Defence(
        expansion.test_trap_22_the_order_of_the_halves,
        "the second half is the gate",
        spelled(gated_product, second_half),
    ),
    Defence(
        expansion.test_trap_23_a_mask_of_batch_and_keys,
        "the mask loses its axes of size 1",
        spelled(attention, mask_of_two_axes),
    ),
    Defence(
        expansion.test_trap_24_a_mask_of_batch_queries_and_keys,
        "the mask loses its axis for heads",
        spelled(attention, mask_of_three_axes),
    ),
    Defence(expansion.test_trap_25_scale_softcap_and_bias_survive, "the scale is lost", spelled(attention, no_scale)),
    Defence(
        expansion.test_trap_25_scale_softcap_and_bias_survive, "the softcap is lost", spelled(attention, no_softcap)
    ),
    Defence(expansion.test_trap_25_scale_softcap_and_bias_survive, "the bias is lost", spelled(attention, no_bias)),
    Defence(
        expansion.test_trap_26_fewer_heads_of_keys_than_of_queries,
        "heads are read modulo their count",
        replaced("dovetail.library.attention.repeated_heads", heads_modulo),
    ),
    Defence(
        expansion.test_trap_27_a_keep_mask_is_no_additive_mask,
        "a keep-mask is added",
        spelled(attention, kept_is_added),
    ),
    Defence(
        expansion.test_trap_27_a_keep_mask_is_no_additive_mask,
        "an additive mask hides",
        spelled(attention, added_is_kept),
    ),
    Defence(
        expansion.test_trap_28_a_low_rank_update_of_a_batch,
        "rows are flattened",
        spelled(lora_matmul, rows_in_front),
    ),
    Defence(
        expansion.test_trap_29_the_contracted_sizes_of_a_general_dot_are_compared,
        "sizes are not compared",
        replaced("dovetail.ir.fact.Facts.equal", left_size),
    ),
)
