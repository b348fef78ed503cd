"""Members of a batch that have the same keys: tiles of few queries take several of them, which changes no bit."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_
from dovetail.ir.leaf import input
from dovetail.targets.cpu.attention.policy import ATTENTION
from tests.kernels.attending import check, compiled, heads, normal

KEYS, D, HEADS = 90, 24, 2
COUNTS = (1, 2, ATTENTION.members, ATTENTION.members + 3, 2 * ATTENTION.members + 1)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("queries", [1, 2])
def test_members_with_the_same_keys(groups: int, queries: int) -> None:
    members = symbol("members")
    q, k, v = (
        heads("q", members, groups * HEADS, queries, D),
        heads("k", 1, HEADS, KEYS, D),
        heads("v", 1, HEADS, KEYS, D),
    )
    keep = input("keep", bool_[members, 1, queries, KEYS])
    shared = groups if groups > 1 else None
    graph = Graph.of(library.attention(q, k, v, keep=keep, scale=0.2, fill=-np.inf, groups=shared))
    runner = compiled(graph)
    kv = {"k": normal(1, HEADS, KEYS, D, seed=1), "v": normal(1, HEADS, KEYS, D, seed=2)}
    for count in COUNTS:
        seen = np.arange(KEYS) <= np.arange(count)[:, None, None, None] + 40
        given = {
            "q": normal(count, groups * HEADS, queries, D),
            "keep": np.broadcast_to(seen, (count, 1, queries, KEYS)),
        }
        given = {name: np.ascontiguousarray(array) for name, array in given.items()}
        check(graph, {**given, **kv}, runner)
        (whole,) = runner.run({**given, **kv}).values()
        for i in range(count):
            (alone,) = runner.run({**{name: array[i : i + 1] for name, array in given.items()}, **kv}).values()
            assert alone[0].tobytes() == whole[i].tobytes()


@pytest.mark.slow
def test_an_axis_of_members_before_another() -> None:
    """Keys differ along the second axis of batches, not along the first."""
    q = input("q", f32[5, 3, HEADS, 1, D])
    k, v = input("k", f32[1, 3, HEADS, KEYS, D]), input("v", f32[1, 3, HEADS, KEYS, D])
    graph = Graph.of(library.attention(q, k, v, scale=0.2))
    check(graph, {"q": normal(5, 3, HEADS, 1, D), "k": normal(1, 3, HEADS, KEYS, D), "v": normal(1, 3, HEADS, KEYS, D)})
