"""Blocks of keys that a mask hides from all queries of a tile."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.ir.dtype import bool_
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from tests.kernels.attending import check, compiled, heads, normal

QUERIES, KEYS = 150, 300


def attention(fill: float) -> Graph:
    """One head with a mask of its own for each query."""
    q, k, v = heads("q", 1, 2, QUERIES, 16), heads("k", 1, 2, KEYS, 16), heads("v", 1, 2, KEYS, 16)
    keep = input("keep", bool_[1, 1, QUERIES, KEYS])
    return Graph.of({"y": library.attention(q, k, v, keep=keep, scale=0.25, fill=fill, empty="zero")})


def feeds(seen: Array) -> dict[str, Array]:
    keys: dict[str, Array] = {"k": normal(1, 2, KEYS, 16, seed=1), "v": normal(1, 2, KEYS, 16, seed=2)}
    return {"q": normal(1, 2, QUERIES, 16), **keys, "keep": seen[None, None]}


@pytest.mark.slow
@pytest.mark.parametrize("fill", [-np.inf, -1e9])
@pytest.mark.parametrize("start", [0, 70, 150])
def test_tiles_see_some_blocks_and_not_others(start: int, fill: float) -> None:
    """Queries see keys up to their own, every third tile of 16 none, and one query one key of the last block."""
    row, key = np.arange(QUERIES)[:, None], np.arange(KEYS)
    seen = (key <= row + start) & (row // 16 % 3 != 2)
    seen[37, KEYS - 1] = True
    check(attention(fill), feeds(seen))


def test_keys_that_no_query_sees_are_not_read() -> None:
    """Values that are no numbers are at the keys of whole blocks that are hidden."""
    row, key = np.arange(QUERIES)[:, None], np.arange(KEYS)
    given = feeds((key <= row) & (key < 64))
    graph = attention(-np.inf)
    wanted = compiled(graph).run(given)["y"]
    for name in ("k", "v"):
        given[name][:, :, 64:] = np.nan
    assert np.array_equal(compiled(graph).run(given)["y"], wanted)
