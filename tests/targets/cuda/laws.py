"""The law of meaning on a target: a fused op and its spellings compute what the reference computes in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dovetail
from dovetail.declare import FusedOp
from dovetail.declare.fused import Result
from dovetail.derive import laws
from dovetail.derive.arguments import in_f16
from dovetail.errors import DovetailError
from dovetail.ir import leaf
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.targets import Target
from tests.targets.cuda.judged import expected_of
from tests.tolerances import assert_close

SCALE = 8.0
"""Of the tolerance: sums of products are rounded many times."""


def check_meaning(op: FusedOp[...], target: Target | str) -> None:
    """The op and the spelling of its first variant, in the dtypes that are drawn and in f16."""
    variant = op.variants[0]
    chosen = laws.fitting(op, variant, seed=1)
    for given in (chosen, in_f16(chosen)):
        for made in (op, laws.spelled(op, variant)):
            try:
                graph = laws.graph_of(_results(made(**given)), given)
            except DovetailError:
                assert given is not chosen, "the op takes what was drawn"
                continue  # it has a type of its own
            _check(graph, laws.feeds_of(graph, seed=1), target)


def _results(made: Result) -> Result:
    """The tensors of a value of several."""
    if not isinstance(made, Value) or isinstance(made.type, TensorType):
        return made
    return tuple([leaf.item(made, i) for i in range(len(made.type.items))])


def _check(graph: dovetail.Graph, feeds: Mapping[str, Any], target: Target | str) -> None:
    got = dovetail.compile(graph, target=target, cache="off").run(feeds)
    for name, expected in expected_of(graph, feeds).items():
        assert_close(got[name], expected, graph.outputs[name].dtype, scale=SCALE)


__all__ = ["check_meaning"]
