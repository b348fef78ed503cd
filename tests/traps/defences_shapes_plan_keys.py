"""What traps 41 to 47 are defended by, taken away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from dovetail.ir.dim import Size
from dovetail.ir.fact import Facts
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.runtime.program import Program
from tests.traps import test_shapes_plan_keys as shapes
from tests.traps.defences_guards import whole_quotient
from tests.traps.removal import Defence, constantly, replaced, wrapped


def forget(need: Callable[..., None]) -> Callable[..., None]:
    """What cannot be told yet is not asked for later."""

    def checked(facts: Facts, *relation: Any) -> None:
        need(facts, *relation)
        facts.recorded.clear()

    return checked


def empty_where_unknown(measure: Callable[..., tuple[Size, int]]) -> Callable[..., tuple[Size, int]]:
    """A size with symbols counts as nothing."""

    def measured(self: Any, type: TensorType) -> tuple[Size, int]:
        size, weight = measure(self, type)
        return (size, weight) if isinstance(size, int) else (0, 0)

    return measured


def clamped(facts: Facts, x: TensorType, *, axis: int, start: Size, stop: Size, step: int) -> TensorType:
    """A slice ends where its axis ends."""
    whole = x.shape[axis]
    if isinstance(whole, int) and isinstance(start, int) and isinstance(stop, int):
        length: Size = len(range(whole)[slice(start, stop, step)])
    else:
        length = stop - start
    at = axis + x.rank
    return TensorType(x.dtype, (*x.shape[:at], length, *x.shape[at + 1 :]))


def without_axes(spell: Callable[..., str]) -> Callable[..., str]:
    """Numbers below zero, which axes are, are left out of keys."""

    def spelled(encoder: Any, attr: Any) -> str:
        items = cast("tuple[Any, ...]", attr) if isinstance(attr, tuple) else (attr,)
        return "" if items and all(isinstance(i, int) and i < 0 for i in items) else spell(encoder, attr)

    return spelled


def as_if(**fixed: Any) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Keys are made as if these were always given."""

    def around(mark: Callable[..., str]) -> Callable[..., str]:
        def marked(graph: Graph, **given: Any) -> str:
            return mark(graph, **{**given, **fixed})

        return marked

    return around


def number_wins(facts: Facts, left: Size, right: Size) -> Size:
    """The size that is known, and not a word about the other."""
    known = [size for size in (left, right) if isinstance(size, int) and size != 1]
    return known[0] if known else right if left == 1 else left


def keep_the_report(specialize: Callable[..., Program]) -> Callable[..., Program]:
    """The report of a specialised program is the one from before."""

    def specialized(program: Program, sizes: Mapping[str, int]) -> Program:
        new = specialize(program, sizes)
        vars(new)["report"] = program.report
        return new

    return specialized


DEFENCES = (
    Defence(
        shapes.test_trap_41_a_reshape_keeps_the_number_of_elements,
        "unknown sizes are trusted",
        replaced("dovetail.ops.reshaping.quotient", constantly(None)),
    ),
    Defence(
        shapes.test_trap_41_a_reshape_keeps_the_number_of_elements,
        "the rest is rounded down",
        replaced("dovetail.ops.reshaping.quotient", whole_quotient),
    ),
    Defence(
        shapes.test_trap_41_a_reshape_keeps_the_number_of_elements,
        "what sizes must satisfy is forgotten",
        wrapped("dovetail.ir.fact.Facts._need", forget),
    ),
    Defence(
        shapes.test_trap_42_a_contracted_size_is_bound_to_one_number,
        "what sizes must satisfy is forgotten",
        wrapped("dovetail.ir.fact.Facts._need", forget),
    ),
    Defence(
        shapes.test_trap_43_sizes_that_are_not_known_take_memory,
        "an unknown size is empty",
        wrapped("dovetail.plan.liveness.Measure.__call__", empty_where_unknown),
    ),
    Defence(
        shapes.test_trap_44_slices_are_not_clamped,
        "slices are clamped",
        replaced("dovetail.ops.movement.slice_.type_rule", clamped),
    ),
    Defence(
        shapes.test_trap_45_a_key_covers_all_that_changes_the_result,
        "constants are left out",
        replaced("dovetail.plan.fingerprint.content", constantly(b"")),
    ),
    Defence(
        shapes.test_trap_45_a_key_covers_all_that_changes_the_result,
        "axes are left out",
        wrapped("dovetail.plan.fingerprint._Encoder.attribute", without_axes),
    ),
    Defence(
        shapes.test_trap_45_a_key_covers_all_that_changes_the_result,
        "bodies are left out",
        replaced("dovetail.plan.fingerprint._Encoder.body", constantly("g;")),
    ),
    Defence(
        shapes.test_trap_45_a_key_covers_all_that_changes_the_result,
        "the target is left out",
        wrapped("dovetail.plan.plan.fingerprint", as_if(target="any")),
    ),
    Defence(
        shapes.test_trap_45_a_key_covers_all_that_changes_the_result,
        "options are left out",
        wrapped("dovetail.plan.plan.fingerprint", as_if(options={})),
    ),
    Defence(
        shapes.test_trap_46_a_known_size_that_meets_an_unknown_one_binds_it,
        "the known size wins",
        replaced("dovetail.ops.rules._stretch", number_wins),
    ),
    Defence(
        shapes.test_trap_47_a_specialised_program_has_a_report_of_its_own,
        "the report stays",
        wrapped("dovetail.runtime.program.Program.specialize", keep_the_report),
    ),
)
