"""Few queries read no keys before and after those that they see: sequences of a batch have caches of one length."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, library
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_, f32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from tests.kernels.attending import compiled, heads, normal

HEADS, GROUPS, D = 2, 2, 32
LENGTHS = (1, 5, 40, 64, 250)


def graph(queries: int) -> Graph:
    keys, b = symbol("keys"), symbol("b")
    q, k, v = (
        heads("q", b, GROUPS * HEADS, queries, D),
        heads("k", b, HEADS, keys, D),
        heads("v", b, HEADS, keys, D),
    )
    keep = input("keep", bool_[b, 1, queries, keys])
    return Graph.of(library.attention(q, k, v, keep=keep, scale=0.2, fill=-np.inf, groups=GROUPS))


def arrays(queries: int, count: int, window: int) -> dict[str, Array]:
    """Sequences of some lengths, each of whose queries sees one key more than the one before, or a window of them."""
    b, keys = len(LENGTHS), np.arange(count)
    last = np.minimum(np.array(LENGTHS)[:, None] + np.arange(queries), count)[..., None]
    return {
        "q": normal(b, GROUPS * HEADS, queries, D),
        "k": normal(b, HEADS, count, D, seed=1),
        "v": normal(b, HEADS, count, D, seed=2),
        "keep": ((keys < last) & (keys >= last - window))[:, None],
    }


def expected(given: dict[str, Array]) -> Array:
    q, k, v = (given[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(x, GROUPS, axis=1) for x in (k, v))
    scores = np.where(given["keep"], 0.2 * q @ k.swapaxes(-1, -2), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.slow
@pytest.mark.parametrize("window", [7, 1000])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("count", [64, 70, 96])
def test_against_numpy(queries: int, count: int, window: int) -> None:
    """Keys in whole vectors, and a few more."""
    given = arrays(queries, count, window)
    (found,) = compiled(graph(queries)).run(given).values()
    np.testing.assert_allclose(found, expected(given), rtol=2e-5, atol=2e-6)


def test_a_query_that_sees_nothing_has_no_number() -> None:
    """As a softmax of no scores has none."""
    given = arrays(1, 64, 1000)
    given["keep"][1] = False
    (found,) = compiled(graph(1)).run(given).values()
    assert np.isnan(found[1]).all()
    given["keep"][1, ..., 3] = True
    np.testing.assert_allclose(np.delete(found, 1, 0), np.delete(expected(given), 1, 0), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("window", [7, 1000])
def test_what_no_query_sees_is_not_read(window: int) -> None:
    given = arrays(1, 256, window)
    runner = compiled(graph(1))
    (wanted,) = runner.run(given).values()
    for i, length in enumerate(LENGTHS):
        # The last keys are read in groups of four, and a block has 64 keys at most.
        hidden = [slice(-(-length // 4) * 4, None), slice(0, max(0, length - window) // 64 * 64)]
        for some in hidden:
            given["k"][i, :, some] = given["v"][i, :, some] = np.nan
    (found,) = runner.run(given).values()
    assert found.tobytes() == wanted.tobytes() and np.isfinite(found).all()


def test_keys_that_are_not_read_change_no_bit() -> None:
    """A query among others, which see more keys, adds up in the order that it has alone."""
    given, several, one = arrays(3, 64, 1000), compiled(graph(3)), compiled(graph(1))
    for count in range(1, 48):
        keep = np.arange(64) < np.array([count, count + 6, 64])[:, None]
        given["keep"] = np.repeat(keep[None, None], len(LENGTHS), 0)
        (together,) = several.run(given).values()
        (alone,) = one.run({**given, "q": given["q"][:, :, :1], "keep": given["keep"][:, :, :1]}).values()
        assert alone.tobytes() == together[:, :, :1].tobytes(), count


@pytest.mark.slow
def test_a_mask_that_is_added_to_the_fill_is_read() -> None:
    """Its numbers decide then, also those of keys that are not kept: -inf and NaN are NaN."""
    given, keys, b = arrays(1, 64, 1000), symbol("keys"), symbol("b")
    q, k, v = (heads(name, b, n, size, D) for name, n, size in (("q", 4, 1), ("k", 2, keys), ("v", 2, keys)))
    keep, mask = input("keep", bool_[b, 1, 1, keys]), input("mask", f32[b, 1, 1, keys])
    y = library.attention(q, k, v, mask, keep, scale=0.2, fill=-np.inf, filled="first", groups=GROUPS)
    added = np.zeros((len(LENGTHS), 1, 1, 64), np.float32)
    added[0, ..., 63] = np.nan
    (found,) = compiled(Graph.of(y)).run({**given, "mask": added}).values()
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1:], expected(given)[1:], rtol=2e-5, atol=2e-6)
