"""What traps 1 to 5 are defended by, taken away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dovetail.errors import GraphError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph, Uses
from dovetail.ir.rewrite import Replacement, replace_roots
from dovetail.ir.value import Attrs, Op, Value, make
from tests.traps import test_outputs_and_uses as outputs
from tests.traps.removal import Defence, both, constantly, replaced, wrapped


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


DEFENCES = (
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
