"""Attention by the attend kernel, against its body in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.dtypes import DType, f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bf16, bool_, f16
from dovetail.ir.leaf import input
from dovetail.library.heads import merge_heads, split_heads
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.reference.interpreter import evaluate
from tests.kernels.attending import check, compiled, heads, normal
from tests.tolerances import assert_close

SIZES = [
    (1, 1),
    (1, 7),
    (2, 3),
    (7, 15),
    (15, 16),
    (16, 16),
    (17, 31),
    (31, 33),
    (33, 64),
    (64, 65),
    (100, 129),
    (3, 200),
]


@pytest.mark.slow
def test_every_length_from_one_code() -> None:
    sq, sk = symbol("sq"), symbol("sk")
    graph = Graph.of(library.attention(heads("q", 2, 3, sq, 32), heads("k", 2, 3, sk, 32), heads("v", 2, 3, sk, 32)))
    runner = compiled(graph)
    for m, n in SIZES:
        check(graph, {"q": normal(2, 3, m, 32), "k": normal(2, 3, n, 32, seed=1), "v": normal(2, 3, n, 32)}, runner)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "dv"), [(1, 1), (7, 5), (16, 17), (20, 36), (80, 80), (33, 100)])
def test_heads_of_any_width(d: int, dv: int) -> None:
    graph = Graph.of(
        library.attention(heads("q", 1, 2, 21, d), heads("k", 1, 2, 70, d), heads("v", 1, 2, 70, dv), scale=d**-0.5)
    )
    check(graph, {"q": normal(1, 2, 21, d), "k": normal(1, 2, 70, d), "v": normal(1, 2, 70, dv)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(3, 1, 1, 70), (3, 1, 40, 70), (1, 4, 40, 70), (3, 4, 40, 1), (40, 70), (70,), (1, 1)]
)
def test_masks_of_any_shape(shape: tuple[int, ...]) -> None:
    kind = ("mask", "keep", "both")[sum(shape) % 3]
    q, k, v = heads("q", 3, 4, 40, 16), heads("k", 3, 4, 70, 16), heads("v", 3, 4, 70, 16)
    feeds = {"q": normal(3, 4, 40, 16), "k": normal(3, 4, 70, 16), "v": normal(3, 4, 70, 16)}
    mask = keep = None
    if kind != "keep":
        mask, feeds["mask"] = input("mask", f32[shape]), normal(*shape, seed=5)
    if kind != "mask":
        keep, feeds["keep"] = input("keep", bool_[shape]), normal(*shape, seed=6) > -0.5
    fill = None if keep is None else -np.inf
    graph = Graph.of(library.attention(q, k, v, mask, keep, scale=0.25, fill=fill, empty="zero"))
    check(graph, feeds)


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "keys"), [(3, 1), (1, 3)])
@pytest.mark.parametrize("rows", [1, 6, 40])
def test_one_batch_for_all(queries: int, keys: int, rows: int) -> None:
    q, k, v = heads("q", queries, 4, rows, 16), heads("k", keys, 4, 70, 16), heads("v", keys, 4, 70, 16)
    feeds = {"q": normal(queries, 4, rows, 16), "k": normal(keys, 4, 70, 16), "v": normal(keys, 4, 70, 16)}
    mask, feeds["mask"] = input("mask", f32[3, 1, 1, 70]), normal(3, 1, 1, 70, seed=5)
    check(Graph.of(library.attention(q, k, v, mask, scale=0.25)), feeds)


LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fill", "window", "kept"),
    [
        (-np.inf, None, False),
        (-np.inf, 5, True),
        (LOWEST, None, True),
        (LOWEST, 5, False),
        (LOWEST, 100, True),
        (-1e9, 3, True),
    ],
)
def test_positions(fill: float, window: int | None, kept: bool) -> None:
    """Longer queries than keys, longer keys than queries, rows that see nothing."""
    sq, sk = symbol("sq"), symbol("sk")
    q, k, v = heads("q", 2, 2, sq, 8), heads("k", 2, 2, sk, 8), heads("v", 2, 2, sk, 8)
    keep = input("keep", bool_[2, 1, 1, sk]) if kept else None
    graph = Graph.of(library.attention(q, k, v, None, keep, scale=0.3, causal=True, window=window, fill=fill))
    runner = compiled(graph)
    for m, n in [(1, 1), (40, 40), (100, 100), (130, 20), (20, 130), (200, 90)]:
        feeds = {"q": normal(2, 2, m, 8), "k": normal(2, 2, n, 8), "v": normal(2, 2, n, 8)}
        if kept:
            feeds["keep"] = np.arange(n) >= np.array([0, n // 2])[:, None, None, None]
        check(graph, feeds, runner)


@pytest.mark.parametrize("queries", [4, 20])
@pytest.mark.parametrize("empty", ["nan", "zero"])
def test_rows_without_a_key(empty: Any, queries: int) -> None:
    shape = (1, 1, queries, 80)
    q, k, v = heads("q", 1, 2, queries, 8), heads("k", 1, 2, 80, 8), heads("v", 1, 2, 80, 8)
    mask = np.zeros(shape, np.float32)
    mask[..., 3, :] = -np.inf
    mask[..., 2, :70] = -np.inf
    mask[..., 1, 1:] = -np.inf
    graph = Graph.of(library.attention(q, k, v, input("mask", f32[shape]), empty=empty))
    feeds = {"q": normal(1, 2, queries, 8), "k": normal(1, 2, 80, 8), "v": normal(1, 2, 80, 8), "mask": mask}
    got = check(graph, feeds)
    assert np.isnan(got[:, :, 3]).all() if empty == "nan" else (got[:, :, 3] == 0).all()
    assert np.isfinite(np.delete(got, 3, axis=2)).all()


@pytest.mark.parametrize("empty", ["nan", "zero"])
def test_numbers_that_are_none(empty: Any) -> None:
    """NaN and inf in queries, keys and values come out where the body has them."""
    q, k, v = normal(1, 1, 20, 8), normal(1, 1, 70, 8), normal(1, 1, 70, 8)
    q[0, 0, 2, 1] = np.nan
    q[0, 0, 3, 1] = np.inf
    q[0, 0, 4, :] = 1e30
    v[0, 0, 9, 2] = np.inf
    v[0, 0, 69, 3] = np.nan
    graph = Graph.of(
        library.attention(heads("q", 1, 1, 20, 8), heads("k", 1, 1, 70, 8), heads("v", 1, 1, 70, 8), empty=empty)
    )
    (got,) = compiled(graph).run({"q": q, "k": k, "v": v}).values()
    with np.errstate(all="ignore"):
        scores = (q @ k.swapaxes(-1, -2)).astype(np.float64)
        raised = np.exp(scores - scores.max(-1, keepdims=True))
        weights = raised / raised.sum(-1, keepdims=True)
        expected = (np.nan_to_num(weights, nan=0.0) if empty == "zero" else weights) @ v
    if empty == "zero":
        # Rows without weights give 0 here, whatever the values are.
        got, expected = (np.delete(x, [2, 3, 4], axis=2) for x in (got, expected))
    assert_close(got, expected, f32)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e3, 1e6])
def test_large_scores(size: float) -> None:
    graph = Graph.of(library.attention(heads("q", 1, 1, 20, 8), heads("k", 1, 1, 150, 8), heads("v", 1, 1, 150, 8)))
    # Whole numbers, so that scores are exact and only the weights are rounded.
    q, k = np.round(normal(1, 1, 20, 8) * 4) * np.float32(size), np.round(normal(1, 1, 150, 8) * 4)
    check(graph, {"q": q, "k": k, "v": normal(1, 1, 150, 8)})


@pytest.mark.parametrize(("scaled", "softcap"), [("product", 2.0), ("queries", None), ("both", None)])
def test_scale_and_softcap(scaled: Any, softcap: float | None) -> None:
    q, k, v = heads("q", 2, 4, 20, 16), heads("k", 2, 2, 40, 16), heads("v", 2, 2, 40, 16)
    graph = Graph.of(library.attention(q, k, v, scale=0.4, scaled=scaled, softcap=softcap, groups=2))
    check(graph, {"q": normal(2, 4, 20, 16), "k": normal(2, 2, 40, 16), "v": normal(2, 2, 40, 16)})


FEW_MASKS = [(3, 1, 1, 90), (3, 1, 2, 90), (1, 6, 2, 90), (2, 90), (3, 6, 2, 1), (1, 1, 2, 1), (90,)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", FEW_MASKS)
def test_few_queries_with_masks(shape: tuple[int, ...]) -> None:
    """Queries of three heads share the keys of one."""
    kind = ("mask", "keep", "both")[sum(shape) % 3]
    q, k, v = heads("q", 3, 6, 2, 20), heads("k", 3, 2, 90, 20), heads("v", 3, 2, 90, 12)
    feeds = {"q": normal(3, 6, 2, 20), "k": normal(3, 2, 90, 20), "v": normal(3, 2, 90, 12)}
    mask = keep = None
    if kind != "keep":
        mask, feeds["mask"] = input("mask", f32[shape]), normal(*shape, seed=5)
    if kind != "mask":
        keep, feeds["keep"] = input("keep", bool_[shape]), normal(*shape, seed=6) > -0.5
    fill = None if keep is None else -np.inf
    graph = Graph.of(library.attention(q, k, v, mask, keep, scale=0.25, groups=3, softcap=3.0, fill=fill, empty="zero"))
    check(graph, feeds)


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 16, 33, 80, 200])
def test_one_query_for_any_number_of_keys(d: int) -> None:
    b, s = symbol("b"), symbol("s")
    q, k, v = heads("q", b, 4, 1, d), heads("k", b, 2, s, d), heads("v", b, 2, s, d)
    graph = Graph.of(library.attention(q, k, v, scale=d**-0.5, groups=2))
    runner = compiled(graph)
    for m, n in [(1, 1), (2, 15), (1, 16), (3, 63), (1, 64), (1, 65), (2, 300)]:
        check(graph, {"q": normal(m, 4, 1, d), "k": normal(m, 2, n, d), "v": normal(m, 2, n, d, seed=1)}, runner)


@pytest.mark.slow
@pytest.mark.parametrize("fill", [-np.inf, -1e9])
@pytest.mark.parametrize("window", [None, 2])
def test_few_queries_by_position(fill: float, window: int | None) -> None:
    q, k, v = heads("q", 2, 4, 8), heads("k", 2, 70, 8), heads("v", 2, 70, 8)
    graph = Graph.of(library.attention(q, k, v, causal=True, window=window, fill=fill))
    check(graph, {"q": normal(2, 4, 8), "k": normal(2, 70, 8), "v": normal(2, 70, 8)})


@pytest.mark.slow
def test_few_queries_of_views() -> None:
    q, k, v = heads("q", 2, 16, 3, 2), heads("k", 2, 3, 16, 70), heads("v", 2, 3, 20, 70)
    mask, keep = input("mask", f32[2, 1, 70, 2]), input("keep", bool_[2, 1, 70, 4])
    turned = [ops.permute(x, order=(-1, -2)) for x in (k, v, mask, keep)]
    hidden = ops.slice_(turned[3], axis=-2, start=1, stop=3)
    graph = Graph.of(
        library.attention(ops.permute(q, order=(-2, -1, -3)), turned[0], turned[1], turned[2], hidden, fill=-np.inf)
    )
    feeds = {"q": normal(2, 16, 3, 2), "k": normal(2, 3, 16, 70), "v": normal(2, 3, 20, 70)}
    check(graph, {**feeds, "mask": normal(2, 1, 70, 2), "keep": normal(2, 1, 70, 4) > -1})


@pytest.mark.slow
def test_one_head_of_keys_for_all_and_more_or_fewer_axes() -> None:
    q, k, v = heads("q", 4, 20, 16), heads("k", 1, 40, 16), heads("v", 1, 40, 16)
    check(
        Graph.of(library.attention(q, k, v)), {"q": normal(4, 20, 16), "k": normal(1, 40, 16), "v": normal(1, 40, 16)}
    )
    q, k, v = heads("q", 2, 3, 4, 20, 8), heads("k", 2, 3, 2, 40, 8), heads("v", 2, 3, 2, 40, 8)
    feeds = {"q": normal(2, 3, 4, 20, 8), "k": normal(2, 3, 2, 40, 8), "v": normal(2, 3, 2, 40, 8)}
    mask = input("mask", f32[3, 1, 20, 40])
    check(Graph.of(library.attention(q, k, v, mask, groups=2)), {**feeds, "mask": normal(3, 1, 20, 40)})


@pytest.mark.slow
def test_heads_of_one_projection() -> None:
    """Queries, keys and values side by side in the rows of one matrix."""
    b, s = symbol("b"), symbol("s")
    x = input("x", f32[b, s, 3 * 4 * 16])
    q, k, v = (split_heads(ops.part(x, axis=-1, index=i, parts=3), 4) for i in range(3))
    keep = input("keep", bool_[b, 1, 1, s])
    graph = Graph.of(merge_heads(library.attention(q, k, v, None, keep, scale=0.25, fill=-np.inf)))
    runner = compiled(graph)
    for m, n in [(1, 16), (2, 128), (3, 33), (1, 1)]:
        check(graph, {"x": normal(m, n, 192), "keep": np.arange(n) < np.full((m, 1, 1, 1), max(1, n - 3))}, runner)


@pytest.mark.slow
def test_features_that_are_not_side_by_side() -> None:
    q, k, v = heads("q", 2, 16, 3, 40), heads("k", 2, 3, 16, 70), heads("v", 2, 3, 20, 70)
    turned = ops.permute(q, order=(-2, -1, -3))
    graph = Graph.of(library.attention(turned, ops.permute(k, order=(-1, -2)), ops.permute(v, order=(-1, -2))))
    check(graph, {"q": normal(2, 16, 3, 40), "k": normal(2, 3, 16, 70), "v": normal(2, 3, 20, 70)})


@pytest.mark.parametrize("keys", [5, 8, 11, 70])
def test_what_lies_behind_the_mask_of_keys_that_are_copied_is_not_read(keys: int) -> None:
    q, k, v = (input(name, f32[2, 3, 16, n]) for name, n in (("q", 20), ("k", keys), ("v", keys)))
    rows = (ops.permute(x, order=(-1, -2)) for x in (q, k, v))
    graph = Graph.of(library.attention(*rows, mask=input("mask", f32[2, 1, 1, keys])))
    mask = np.full(2 * keys + 64, np.nan, np.float32)[: 2 * keys].reshape(2, 1, 1, keys)
    mask[...] = normal(2, 1, 1, keys)
    check(graph, {"q": normal(2, 3, 16, 20), "k": normal(2, 3, 16, keys), "v": normal(2, 3, 16, keys), "mask": mask})


def test_masks_that_are_views() -> None:
    q, k, v = heads("q", 2, 3, 20, 8), heads("k", 2, 3, 40, 8), heads("v", 2, 3, 40, 8)
    mask = ops.permute(input("mask", f32[2, 1, 40, 20]), order=(-1, -2))
    keep = ops.slice_(input("keep", bool_[2, 3, 50, 90]), axis=-1, start=2, stop=42)
    keep = ops.slice_(keep, axis=-2, start=30, stop=50)
    graph = Graph.of(library.attention(q, k, v, mask, keep, fill=-np.inf))
    feeds = {"q": normal(2, 3, 20, 8), "k": normal(2, 3, 40, 8), "v": normal(2, 3, 40, 8)}
    feeds |= {"mask": normal(2, 1, 40, 20), "keep": normal(2, 3, 50, 90) > -1}
    check(graph, feeds)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_attend(m: int, n: int) -> None:
    sq, sk = symbol("sq"), symbol("sk")
    runner = compiled(Graph.of(library.attention(heads("q", 2, sq, 8), heads("k", 2, sk, 8), heads("v", 2, sk, 8))))
    (got,) = runner.run({"q": normal(2, m, 8), "k": normal(2, n, 8), "v": normal(2, n, 8)}).values()
    assert got.shape == (2, m, 8)
    assert (got == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize(("queries", "d"), [(40, 16), (2, 20), (33, 20)])
def test_narrow_floats(dtype: DType, queries: int, d: int) -> None:
    """Computed in f32, rounded once."""
    shapes = {"q": (2, 4, queries, d), "k": (2, 2, 70, d), "v": (2, 2, 70, d), "mask": (2, 1, queries, 70)}
    feeds = {name: normal(*shape).astype(dtype.numpy) for name, shape in shapes.items()}
    q, k, v, mask = (input(name, dtype[shape]) for name, shape in shapes.items())
    one, feeds["one"] = input("one", dtype[2, 1, 1, 70]), feeds["mask"][:, :, :1]
    keep, feeds["keep"] = input("keep", bool_[70]), np.arange(70) % 7 > 1
    for seen in (mask, one):
        value = library.attention(q, k, v, seen, keep, scale=0.25, groups=2, fill=-np.inf)
        graph = Graph.of(value)
        given = {name: feeds[name] for name in ("q", "k", "v", "keep", "one" if seen is one else "mask")}
        (got,) = compiled(graph).run(given).values()
        (expected,) = evaluate(graph, given, lift=True).values()
        assert_close(got, expected, dtype)
        if dtype is f16:
            np.testing.assert_allclose(got.astype(np.float64), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize(("form", "d", "rotated"), [("half", 40, 36), ("interleaved", 40, 36), ("half", 16, None)])
def test_narrow_floats_rotated(dtype: DType, form: Any, d: int, rotated: int | None) -> None:
    wide = rotated or d
    shapes = {"q": (2, 4, 40, d), "k": (2, 2, 40, d), "v": (2, 2, 40, d), "cos": (40, wide), "sin": (40, wide)}
    feeds = {name: normal(*shape).astype(dtype.numpy) for name, shape in shapes.items()}
    q, k, v, cos, sin = (input(name, dtype[shape]) for name, shape in shapes.items())
    value = library.rope_attention(
        q, k, v, cos, sin, rotated=rotated, form=form, groups=2, scale=0.1, causal=True, fill=-np.inf
    )
    graph = Graph.of(value)
    (got,) = compiled(graph).run(feeds).values()
    (expected,) = evaluate(graph, feeds, lift=True).values()
    assert_close(got, expected, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["half", "interleaved"])
@pytest.mark.parametrize(("d", "rotated"), [(64, None), (40, 36), (6, 2)])
def test_rotated(form: Any, d: int, rotated: int | None) -> None:
    s, wide = symbol("s"), rotated or d
    q, k, v = heads("q", 2, 4, s, d), heads("k", 2, 2, s, d), heads("v", 2, 2, s, 16)
    cos, sin = input("cos", f32[1, s, wide]), input("sin", f32[2, 1, s, wide])
    call = library.rope_attention(
        q, k, v, cos, sin, rotated=rotated, form=form, groups=2, scale=0.2, causal=True, fill=-np.inf
    )
    graph = Graph.of(call)
    runner = compiled(graph)
    for n in (1, 7, 33, 130):
        feeds = {"q": normal(2, 4, n, d), "k": normal(2, 2, n, d), "v": normal(2, 2, n, 16)}
        check(graph, {**feeds, "cos": normal(1, n, wide), "sin": normal(2, 1, n, wide)}, runner)


@pytest.mark.slow
@pytest.mark.parametrize(("fill", "window"), [(-np.inf, None), (-np.inf, 9), (-1e9, 9), (-1e9, None)])
def test_rotated_by_position(fill: float, window: int | None) -> None:
    """More queries than keys are rotated for at once; some see no key at all."""
    s = symbol("s")
    q, k, v = heads("q", 1, 2, s, 8), heads("k", 1, 2, s, 8), heads("v", 1, 2, s, 8)
    cos, sin, keep = input("cos", f32[s, 8]), input("sin", f32[s, 8]), input("keep", bool_[s])
    graph = Graph.of(library.rope_attention(q, k, v, cos, sin, None, keep, causal=True, window=window, fill=fill))
    runner = compiled(graph)
    for n in (3, 128, 300):
        feeds = {"q": normal(1, 2, n, 8), "k": normal(1, 2, n, 8), "v": normal(1, 2, n, 8)}
        check(graph, {**feeds, "cos": normal(n, 8), "sin": normal(n, 8), "keep": np.arange(n) >= n // 3}, runner)


@pytest.mark.slow
def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    s = symbol("s")
    graph = Graph.of(library.attention(heads("q", 4, s, 64), heads("k", 4, s, 64), heads("v", 4, s, 64)))
    feeds = {"q": normal(4, 300, 64), "k": normal(4, 300, 64), "v": normal(4, 300, 64)}
    plan = make_plan(graph, target=CPU)
    found = [next(iter(NativeGraph(plan, threads=n).bind({}).run(feeds).values())) for n in (1, 2, 5)]
    assert all((x.view(np.int32) == found[0].view(np.int32)).all() for x in found)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("how", ["keep", "mask", "both"])
def test_queries_that_see_no_key_and_one_batch_of_keys_for_all(batch: int, how: str) -> None:
    q, k, v = heads("q", 3, 4, 7, 8), heads("k", batch, 2, 7, 8), heads("v", batch, 2, 7, 8)
    keep = None if how == "mask" else input("keep", bool_[3, 1, 7, 7])
    mask = None if how == "keep" else input("mask", f32[3, 1, 1, 7])
    options: dict[str, Any] = {"fill": None if keep is None else float("-inf"), "groups": 2, "zero_unseen": True}
    graph = Graph.of(library.attention(q, k, v, mask, keep, scale=0.25, **options))
    feeds = {"q": normal(3, 4, 7, 8), "k": normal(batch, 2, 7, 8), "v": normal(batch, 2, 7, 8, seed=1)}
    if keep is not None:
        feeds["keep"] = np.random.default_rng(0).random((3, 1, 7, 7)) < 0.3
        feeds["keep"][1] = False
    if mask is not None:
        feeds["mask"] = np.where(np.arange(7) < 3, np.float32(0.5), np.float32("-inf")) * np.ones(
            (3, 1, 1, 1), np.float32
        )
        feeds["mask"][1] = -np.inf
    feeds["q"][:2, 0, 3] = np.nan  # it stays where a key is seen, and is 0 where none is
    got = check(graph, feeds)
    assert (got[1] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 3, 19])
def test_a_mask_of_keys_gives_zero_where_it_hides_all_of_them(hidden: int) -> None:
    s = symbol("s")
    graph = Graph.of(
        library.attention(
            heads("q", 2, 3, s, 8), heads("k", 2, 3, s, 8), heads("v", 2, 3, s, 8), input("mask", f32[2, 1, 1, s]),
            scale=0.25, zero_unseen=True,
        )
    )  # fmt: skip
    feeds = {name: normal(2, 3, 19, 8, seed=seed) for seed, name in enumerate("qkv")}
    feeds["mask"] = normal(2, 1, 1, 19)
    feeds["mask"][1, ..., :hidden] = -np.inf
    feeds["q"][:, 0, 3] = np.nan  # it stays where a key is seen, and is 0 where none is
    got = check(graph, feeds)
    assert (got[1] == 0).all() == (hidden == 19)


def test_a_hidden_key_that_is_no_number_is_added_to_its_mask() -> None:
    graph = Graph.of(
        library.attention(
            heads("q", 3, 19, 8), heads("k", 3, 19, 8), heads("v", 3, 19, 8), input("mask", f32[1, 1, 19]),
            scale=0.25, zero_unseen=True,
        )
    )  # fmt: skip
    feeds = {name: normal(3, 19, 8, seed=seed) for seed, name in enumerate("qkv")}
    feeds["mask"] = np.zeros((1, 1, 19), np.float32)
    feeds["mask"][..., 4] = -np.inf
    feeds["k"][1, 4] = np.nan
    got = check(graph, feeds)
    assert np.isnan(got[1]).all() and not np.isnan(got[[0, 2]]).any()
