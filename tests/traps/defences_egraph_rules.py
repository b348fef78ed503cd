"""What traps 36 to 40 are defended by, taken away."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, cast

from dovetail.declare.cost import Effort, flops_of
from dovetail.derive.condition import Condition
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.value import Attrs
from dovetail.passes.pipeline import State
from tests.traps import test_egraph_rules as rules
from tests.traps.defences_guards import skip_attributes
from tests.traps.removal import Defence, constantly, replaced, wrapped


def without_axes(key: Callable[[Attrs], Hashable]) -> Callable[[Attrs], Hashable]:
    """Axes are no part of what a value is."""
    return lambda attrs: key({name: attr for name, attr in attrs.items() if name not in ("axis", "axes")})


def keep_the_old_graph(after: Callable[[State, Any], State]) -> Callable[[State, Any], State]:
    """What was fused is counted, and the graph is the one before."""

    def ignored(state: State, fused: Any) -> State:
        return replace(after(state, fused), graph=state.graph)

    return ignored


def effort_of_the_tree(body: Subgraph, _: frozenset[int] = frozenset()) -> Effort:
    """Every operand is paid for by each of its readers."""
    cost: dict[Any, Size] = {}
    for value in body.values:
        cost[value] = flops_of(value) + sum(cost[v] for v in value.operands)
    return Effort(sum(cost[v] for v in body.results), 0, "map")


def pasted(text: str) -> str:
    """A name as it is."""
    return text


def unmeasured(encoder: Any, attr: Any) -> str:
    """Attributes one behind the other, without their kinds and lengths."""
    if not isinstance(attr, tuple):
        return str(attr)
    return ", ".join(unmeasured(encoder, item) for item in cast("tuple[Any, ...]", attr))


def give_up_when_large(run: Callable[[Any], Graph]) -> Callable[[Any], Graph]:
    """Above five thousand nodes nothing is looked at."""
    return lambda step: step.graph if step.graph.count() > 5_000 else run(step)


def count_the_matches(run: Callable[[Any], Graph]) -> Callable[[Any], Graph]:
    """Each fusion is counted twice over."""

    def counted(step: Any) -> Graph:
        graph = run(step)
        step.applied *= 2
        return graph

    return counted


DEFENCES = (
    Defence(
        rules.test_trap_36_what_differs_in_one_attribute_never_merges,
        "axes are no part of a value",
        wrapped("dovetail.ir.value.attrs_key", without_axes),
    ),
    Defence(
        rules.test_trap_36_what_differs_in_one_attribute_never_merges,
        "a pattern does not compare attributes",
        wrapped("dovetail.match.matcher._Attempt._attribute", skip_attributes),
    ),
    Defence(
        rules.test_trap_36_what_differs_in_one_attribute_never_merges,
        "a pattern takes any number for its own",
        replaced("dovetail.match.matcher._Attempt._number", constantly(None)),
    ),
    Defence(
        rules.test_trap_36_what_differs_in_one_attribute_never_merges,
        "a rule does not say which attributes",
        replaced("dovetail.derive.rules._number", constantly("?")),
    ),
    Defence(
        rules.test_trap_36_a_rule_asks_for_shapes_and_dtypes,
        "guards are no conditions",
        replaced("dovetail.derive.rules.condition_of", constantly(Condition(((),)))),
    ),
    Defence(
        rules.test_trap_37_what_is_chosen_is_what_is_returned_and_run,
        "the old graph goes on",
        wrapped("dovetail.passes.pipeline.State.after", keep_the_old_graph),
    ),
    Defence(
        rules.test_trap_38_shared_work_is_counted_once,
        "bodies are costed as trees",
        replaced("dovetail.declare.cost._body_effort", effort_of_the_tree),
    ),
    Defence(
        rules.test_trap_38_a_product_with_two_readers_is_not_computed_twice,
        "what others read costs nothing",
        replaced("dovetail.derive.fuse._with_inner_operands", constantly([])),
    ),
    Defence(
        rules.test_trap_39_names_are_no_part_of_any_language,
        "names are pasted into text",
        replaced("dovetail.ir.text_print.name", pasted),
    ),
    Defence(
        rules.test_trap_39_names_are_no_part_of_any_language,
        "names run together in keys",
        replaced("dovetail.plan.fingerprint._Encoder.attribute", unmeasured),
    ),
    Defence(
        rules.test_trap_39_words_of_a_declaration_are_quoted_in_rules_and_pages,
        "words are pasted into rules",
        replaced("dovetail.derive.rules.quote", pasted),
    ),
    Defence(
        rules.test_trap_39_words_of_a_declaration_are_quoted_in_rules_and_pages,
        "options are pasted into the names of rules",
        replaced("dovetail.declare.fused.word", pasted),
    ),
    Defence(
        rules.test_trap_40_no_size_turns_fusion_off,
        "large graphs are left alone",
        wrapped("dovetail.derive.fuse._Round.run", give_up_when_large),
    ),
    Defence(
        rules.test_trap_40_no_size_turns_fusion_off,
        "more is counted than is done",
        wrapped("dovetail.derive.fuse._Round.run", count_the_matches),
    ),
)
