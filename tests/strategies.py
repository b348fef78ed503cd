"""Hypothesis strategies: dtypes, sizes, types, and graphs of primitives that type-check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from dovetail.ir import dtype as dtypes_of
from dovetail.ir import leaf, origin
from dovetail.ir.dim import Dim, Size, floordiv, largest, smallest, symbol
from dovetail.ir.dtype import DType, bool_, f32, f64, i32
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.type import TensorType
from tests.draft import Draft
from tests.moves import COMPUTING, Move
from tests.moving import MOVING

SYMBOLS = ("b", "s", "t")
MOVES: tuple[Move, ...] = (*COMPUTING, *MOVING)


def dtypes(among: Sequence[DType] = dtypes_of.ALL) -> SearchStrategy[DType]:
    return st.sampled_from(among)


def symbols() -> SearchStrategy[Dim]:
    return st.sampled_from(SYMBOLS).map(symbol)


def _joined(pair: tuple[Size, Size, str]) -> Size:
    left, right, how = pair
    match how:
        case "+":
            return left + right
        case "*":
            return left * right
        case "floordiv":
            return floordiv(left, right + 1)
        case "max":
            return largest(left, right)
        case _:
            return smallest(left, right)


def sizes(*, symbolic: bool = True, least: int = 0, most: int = 6) -> SearchStrategy[Size]:
    """Numbers and, where asked, symbols and what is computed from them. None is ever negative."""
    numbers = st.integers(least, most)
    if not symbolic:
        return numbers
    hows = st.sampled_from(("+", "*", "floordiv", "max", "min"))
    return st.recursive(numbers | symbols(), lambda inner: st.tuples(inner, inner, hows).map(_joined), max_leaves=4)


def shapes(*, symbolic: bool = True, max_rank: int = 4, least: int = 0) -> SearchStrategy[tuple[Size, ...]]:
    return st.lists(sizes(symbolic=symbolic, least=least), max_size=max_rank).map(tuple)


def tensor_types(
    *, among: Sequence[DType] = dtypes_of.ALL, symbolic: bool = True, max_rank: int = 4
) -> SearchStrategy[TensorType]:
    return st.builds(TensorType, dtypes(among), shapes(symbolic=symbolic, max_rank=max_rank))


@st.composite
def graphs(
    draw: DrawFn,
    *,
    among: Sequence[DType] = (f32, f64),
    symbolic: bool = False,
    empty: bool = False,
    nodes: tuple[int, int] = (5, 40),
    moves: Sequence[Move] = MOVES,
    extents: SearchStrategy[int] = st.integers(1, 5),  # noqa: B008
) -> tuple[Graph, dict[str, NDArray[Any]]]:
    """A graph of primitives with one float type of `among`, and arrays for its inputs; `graph.params` has the rest.

    Every output, computed in any order of sums, stays within `tolerances.TABLE` of its float64 value. Under `symbolic`
    some sizes are symbols, see `binding_of`; under `empty` some are 0. Other sizes come from `extents`.
    """
    binding: dict[str, int] = {}
    if symbolic:
        binding |= draw(st.dictionaries(st.sampled_from(SYMBOLS), extents, min_size=1))
    numbers = draw(st.lists(extents, min_size=2, max_size=3))
    pool: list[Size] = [*numbers, *map(symbol, binding), 1, *((0,) if empty else ())]
    draft = Draft(draw, draw(dtypes(among)), pool, binding, draw(st.integers(0, 2**32 - 1)))
    least, most = nodes
    goal = draw(st.integers(least, most))
    builder = Builder("random", lines=False)
    with builder.recording():
        _start(draft)
        for step in range(4 * goal):
            if len(draft.held) >= goal:
                break
            with origin.scope(f"step{step}"):
                draft.attempt(draft.one_of(moves))
    assume(len(draft.held) >= least)
    return _finish(draft, builder)


def _start(draft: Draft) -> None:
    ranks = st.integers(1, 4)
    draft.leaf(draft.shape(ranks), draft.dtype)
    if draft.chance():
        draft.leaf(draft.shape(ranks), draft.dtype, 0.5, 2.0)
    if draft.draw(st.integers(0, 3)) == 3:
        draft.leaf(draft.shape(ranks), draft.one_of((i32, bool_)), -4.0, 4.0)


def _finish(draft: Draft, builder: Builder) -> tuple[Graph, dict[str, NDArray[Any]]]:
    """Whatever nobody reads is an output, and sometimes a value inside is one too."""
    outputs = draft.unread
    if draft.chance():
        outputs.append(draft.one_of(list(draft.held)))
    for i, value in enumerate(outputs):
        builder.output(f"y{i}", value)
    feeds: dict[str, NDArray[Any]] = {}
    for value in draft.held:
        name = value.attrs.get("name", "")
        if value.op is leaf.INPUT:
            builder.input(name, value.tensor)
            feeds[name] = draft.arrays[value]
        elif value.op is leaf.PARAM:
            builder.param(name, value.tensor, draft.arrays[value])
    return builder.graph(), feeds


def binding_of(graph: Graph, feeds: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The numbers that the arrays of a random graph give to its symbols."""
    found: dict[str, int] = {}
    arrays = {**graph.params, **feeds}
    for value in (*graph.inputs, *graph.parameters):
        for size, number in zip(value.shape, arrays[value.attrs["name"]].shape, strict=True):
            if str(size) in SYMBOLS:
                found[str(size)] = number
    return found
