"""What every report says is so: properties over random graphs, and the graphs that once broke them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from numpy.typing import NDArray

import dovetail
from dovetail.declare.cost import is_free
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.text import local_names
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.runtime.compile import compilation
from dovetail.runtime.request import make_request
from tests.strategies import graphs

Drawn = tuple[Graph, dict[str, NDArray[Any]]]

LEAKY = """graph g(x: f32[5, 5]) {
  %0 = const f32[] -1.0
  %1 = add(x, x) : f32[5, 5]
  %2 = unsqueeze(%1) {axes=(-3,)} : f32[1, 5, 5]
  %3 = add(%1, x) : f32[5, 5]
  %4 = greater(%2, %3) : bool[1, 5, 5]
  %5 = const f32[] 0.5
  %6 = mul(%3, %5) : f32[5, 5]
  %7 = where(%4, %2, %6) : f32[1, 5, 5]
  %8 = sub(%0, %7) : f32[1, 5, 5]
  return c = %8, d = %3
}
"""


def _computes(written: Graph, final: Graph) -> list[Value]:
    """The nodes of outputs that a kernel computes; a double negation of an input needs none."""
    wanted = [written.outputs[name] for name, value in final.outputs.items() if not _is_given(value)]
    return [v for v in walk(wanted) if v.op not in leaf.LEAVES]


def _is_given(value: Value) -> bool:
    while is_free(value) and len(value.operands) == 1:
        (value,) = value.operands
    return value.op in leaf.LEAVES


def _check_nodes(graph: Graph, target: str) -> None:
    made = compilation(graph, make_request(target=target))
    report, written = made.report(), made.lowered.written
    names = local_names(written, written.values)
    homes = [n.name for k in report.kernels for n in (*k.nodes, *k.absorbed)]
    assert all(entry.nodes for entry in report.fused)
    assert len(homes) == len(set(homes))
    assert not [names[v] for v in _computes(written, made.plan.graph) if names[v] not in homes]


@given(graphs())
def test_every_node_has_a_kernel_and_every_fused_kernel_has_nodes(drawn: Drawn) -> None:
    _check_nodes(drawn[0], "cpu")


@pytest.mark.parametrize("target", ["cpu", "cuda", "reference"])
def test_a_view_that_rewriting_puts_on_top_hides_no_node(target: str) -> None:
    _check_nodes(dovetail.parse(LEAKY), target)
    report = dovetail.scan(dovetail.parse(LEAKY))
    (entry,) = report.fused
    assert [n.op for n in entry.nodes] == ["greater", "mul", "where", "sub"]
