"""Random graphs keep their promises: they type-check, stay tame, and their tolerance holds in every float type."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from numpy.typing import NDArray

from dovetail.ir import leaf
from dovetail.ir.dim import Dim, evaluate
from dovetail.ir.dtype import FLOATS, f64
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.ops.primitive import Primitive
from tests.draft import WIDEST, WIDEST_WHOLE
from tests.strategies import binding_of, graphs
from tests.tolerances import assert_close

Array = NDArray[Any]


def run(graph: Graph, feeds: dict[str, Array], *, lifted: bool) -> dict[Value, Array]:
    """Every value by the NumPy meaning of its op; floats as float64 if lifted."""
    binding = binding_of(graph, feeds)
    arrays = {**graph.params, **feeds}
    found: dict[Value, Array] = {}
    for value in graph.values:
        if value.op in (leaf.INPUT, leaf.PARAM):
            result = arrays[value.attrs["name"]]
        elif value.op is leaf.CONST:
            result = value.attrs["value"].array
        else:
            assert isinstance(value.op, Primitive)
            attrs: dict[str, Any] = {k: evaluate(a, binding) if isinstance(a, Dim) else a for k, a in value.attrs.items()}
            if lifted and value.op.name == "cast" and attrs["dtype"].is_float:
                attrs["dtype"] = f64
            result = np.asarray(value.op.meaning(*(found[v] for v in value.operands), **attrs))
        found[value] = result.astype(np.float64) if lifted and value.dtype.is_float else result
    return found


def check(graph: Graph, feeds: dict[str, Array]) -> None:
    assert 5 <= graph.count() <= 44
    assert set(feeds) == {v.attrs["name"] for v in graph.inputs}
    assert set(graph.params) == {v.attrs["name"] for v in graph.parameters}
    binding = binding_of(graph, feeds)
    assert all(c.holds(binding) for c in graph.constraints)
    exact, rounded = run(graph, feeds, lifted=True), run(graph, feeds, lifted=False)
    for value in graph.values:
        assert rounded[value].shape == tuple(evaluate(s, binding) for s in value.shape), value
        limit = WIDEST if value.dtype.is_float else WIDEST_WHOLE
        assert np.all(np.abs(exact[value].astype(np.float64)) <= limit), value
        assert_close(rounded[value], exact[value], value.dtype)


@given(graphs())
def test_static_graphs(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check(*drawn)


@given(graphs(symbolic=True))
def test_symbolic_graphs(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check(*drawn)


@given(graphs(empty=True))
def test_graphs_with_nothing_in_them(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check(*drawn)


@given(graphs(among=FLOATS))
def test_graphs_in_narrow_types(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check(*drawn)
