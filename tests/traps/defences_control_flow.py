"""What traps 30 to 35 are defended by, taken away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest import MonkeyPatch

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.rewrite import Step, rebuild
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.build import broadcast_to
from dovetail.passes.claims import Claims
from dovetail.passes.legalize import Lowering
from dovetail.passes.lowerings import LOWERINGS
from tests.traps import test_control_flow as control
from tests.traps.removal import Defence, both, constantly, replaced, wrapped

Values = Sequence[Value]


def rebuild_outside(graph: Graph, step: Step) -> Graph:
    """The graph rebuilt, with its bodies as they were."""
    return rebuild(graph, step, into_subgraphs=False)


def values_outside(graph: Graph) -> list[Value]:
    """The values of a graph without those of its bodies."""
    return graph.values


def no_freeze(predicate: Value, yes: Values, no: Values) -> tuple[Value, ...]:
    """What the last trip made, whether it was wanted or not."""
    return tuple(yes)


def freeze_by_product(predicate: Value, yes: Values, no: Values) -> tuple[Value, ...]:
    """Both sides weighed with 0 and 1."""

    def weighed(a: Value, b: Value) -> Value:
        if a.dtype is bool_:
            return ops.where(predicate, a, b)
        weight = ops.cast(predicate, dtype=a.dtype)
        return weight * a + (1 - weight) * b

    return tuple(weighed(a, b) for a, b in zip(yes, no, strict=True))


def freeze_like_the_first(predicate: Value, yes: Values, no: Values) -> tuple[Value, ...]:
    """A select by a mask of the first carry's shape."""
    mask = broadcast_to(predicate, no[0].shape)
    return tuple(ops.where(mask, a, b) for a, b in zip(yes, no, strict=True))


def first_result(lower: Lowering) -> Lowering:
    """A loop gives its first carry."""

    def lowered(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
        results = lower(value, operands, claims)
        return None if results is None else leaf.pack(results.operands[:1])

    return lowered


def lowering(name: str, around: Callable[[Lowering], Lowering]) -> Callable[[MonkeyPatch], None]:
    """A lowering is what `around` makes of it."""
    return lambda patch: patch.setitem(LOWERINGS, name, around(LOWERINGS[name]))


def first_arguments(signature: Callable[..., Any]) -> Callable[..., Any]:
    """A body takes the first operands, as many as it has arguments."""

    def checked(facts: Any, what: str, body: Subgraph, given: Sequence[TensorType]) -> Any:
        return signature(facts, what, body, given[: len(body.arguments)])

    return checked


DEFENCES = (
    Defence(
        control.test_trap_30_branches_in_loops_in_branches,
        "one level is spelled out",
        replaced("dovetail.passes.legalize._MOST_ROUNDS", 1),
    ),
    Defence(
        control.test_trap_30_fused_ops_in_the_body_of_a_loop,
        "bodies are not entered",
        both(
            replaced("dovetail.passes.legalize.rebuild", rebuild_outside),
            replaced("dovetail.passes.legalize._everything", values_outside),
        ),
    ),
    Defence(
        control.test_trap_31_a_scalar_predicate_is_stretched,
        "operands of a select stay as they are",
        lowering("broadcast", lambda spell: constantly(None)),
    ),
    Defence(
        control.test_trap_32_every_carry_is_frozen_in_its_own_shape_and_dtype,
        "carries are not frozen",
        replaced("dovetail.passes.lowerings.control._select", no_freeze),
    ),
    Defence(
        control.test_trap_32_every_carry_is_frozen_in_its_own_shape_and_dtype,
        "carries are frozen by a product",
        replaced("dovetail.passes.lowerings.control._select", freeze_by_product),
    ),
    Defence(
        control.test_trap_32_every_carry_is_frozen_in_its_own_shape_and_dtype,
        "the mask is like the first carry",
        replaced("dovetail.passes.lowerings.control._select", freeze_like_the_first),
    ),
    Defence(
        control.test_trap_33_all_carries_come_back,
        "a while gives its first carry",
        lowering("while", first_result),
    ),
    Defence(
        control.test_trap_33_all_carries_come_back,
        "a scan gives its first carry",
        lowering("scan", first_result),
    ),
    Defence(
        control.test_trap_34_a_body_takes_exactly_what_it_is_given,
        "operands that are too many are ignored",
        wrapped("dovetail.ops.control._signature", first_arguments),
    ),
    Defence(
        control.test_trap_35_a_condition_is_one_bool,
        "a condition is of any shape",
        replaced("dovetail.ops.control._needs_flag", constantly(None)),
    ),
)
