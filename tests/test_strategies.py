"""Random graphs keep their promises: they type-check, stay tame, and their tolerance holds in every float type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dovetail import ops
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.dtype import FLOATS, f32
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value
from dovetail.targets.reference.interpreter import evaluate_values
from dovetail.targets.runtime.arrays.feeds import bind_leaves
from tests.draft import WIDEST, WIDEST_WHOLE
from tests.moves import CURVES
from tests.strategies import SYMBOLS, binding_of, graphs, sizes, tensor_types
from tests.tolerances import assert_close

Array = NDArray[Any]


def run(graph: Graph, feeds: dict[str, Array], *, lift: bool) -> dict[Value, Array]:
    """The arrays of every value, not of outputs alone."""
    leaves = bind_leaves(graph, feeds)
    return dict(zip(graph.values, evaluate_values(graph.values, leaves, lift=lift), strict=True))


def check(graph: Graph, feeds: dict[str, Array]) -> None:
    assert 5 <= graph.count() <= 44
    assert set(feeds) == {v.attrs["name"] for v in graph.inputs}
    assert set(graph.params) == {v.attrs["name"] for v in graph.parameters}
    binding = binding_of(graph, feeds)
    assert set(binding) == set(graph.symbols)
    assert all(c.holds(binding) for c in graph.constraints)
    exact, rounded = run(graph, feeds, lift=True), run(graph, feeds, lift=False)
    for value in graph.values:
        limit = WIDEST if value.dtype.is_float else WIDEST_WHOLE
        assert np.all(np.abs(exact[value].astype(np.float64)) <= limit), value
        assert_close(rounded[value], exact[value], value.dtype)


@pytest.mark.slow
@given(graphs())
def test_static_graphs(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check(*drawn)


@pytest.mark.slow
@given(graphs(symbolic=True))
def test_symbolic_graphs(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check(*drawn)


@pytest.mark.slow
@given(graphs(empty=True))
def test_graphs_with_nothing_in_them(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check(*drawn)


@pytest.mark.slow
@given(graphs(among=FLOATS))
def test_graphs_in_narrow_types(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check(*drawn)


@pytest.mark.exhaustive
def test_every_move_is_made() -> None:
    """A move that never fits, or whose result is always refused, would be a hole in every property test."""
    met: set[Op] = set()

    @settings(max_examples=300, derandomize=True, database=None, phases=(Phase.generate,))
    @given(graphs(among=(f32,)))
    def collect(drawn: tuple[Graph, dict[str, Array]]) -> None:
        met.update(v.op for v in drawn[0].values)

    collect()
    wanted = {c.op for c in CURVES} | {ops.add, ops.sub, ops.mul, ops.div, ops.maximum, ops.minimum, ops.pow_}
    wanted |= {ops.matmul, ops.dot, ops.where, ops.cast, ops.reduce_sum, ops.reduce_mean, ops.reduce_max}
    wanted |= {ops.reduce_min, ops.reduce_any, ops.reduce_all, ops.arg_max, ops.arg_min, ops.less, ops.equal}
    wanted |= {ops.split, ops.merge, ops.permute, ops.unsqueeze, ops.squeeze, ops.expand, ops.slice_, ops.part}
    wanted |= {ops.flip, ops.pad, ops.concat}
    assert not {op.name for op in wanted - met}


@pytest.mark.slow
@given(tensor_types())
def test_types_spell_themselves(type: TensorType) -> None:
    assert all(s >= 0 for s in type.shape if isinstance(s, int))
    spelled = [str(s) for s in type.shape]
    assert TensorType.of(type.dtype, *spelled) == type


@given(sizes(), st.tuples(*[st.integers(0, 9)] * len(SYMBOLS)))
def test_sizes_are_never_negative(size: Size, numbers: tuple[int, ...]) -> None:
    assert evaluate(size, dict(zip(SYMBOLS, numbers, strict=True))) >= 0
