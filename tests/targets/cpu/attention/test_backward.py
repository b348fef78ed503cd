"""The kernel of attention's backward pass beside the derived gradient in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.declare.backward import BackwardOp, backward_name
from dovetail.dtypes import f32
from dovetail.graphs import value_and_grad
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_, f16
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.library.heads import merge_heads, split_heads
from dovetail.plan.plan import make_plan
from dovetail.runtime.compile import compile
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

B, S, T = symbol("b"), symbol("s"), symbol("t")
BACK = library.attention.back
LOWEST = float(np.finfo(np.float32).min)
INF = float("inf")


def operands(d: int, dv: int, groups: int = 1) -> tuple[Value, Value, Value]:
    shapes = ((4, S, d), (4 // groups, T, d), (4 // groups, T, dv))
    q, k, v = (input(name, f32[B, h, s, w]) for name, (h, s, w) in zip("qkv", shapes, strict=True))
    return q, k, v


def backward(value: Value, wanted: str = "qkv") -> Graph:
    """The gradients of an attention by some of its operands, as one op."""
    assert isinstance(BACK, BackwardOp)
    g = input("g", value.tensor)
    places = ["qkv".index(name) for name in wanted]
    made = BACK.of_value(value, {0: g}, places)
    found = [made] if len(wanted) == 1 else list(made)
    inputs = dict.fromkeys([v for operand in value.operands for v in leaves(operand)])
    return Graph.of({f"d{n}": x for n, x in zip(wanted, found, strict=True)}, inputs=(*inputs, g))


def leaves(value: Value) -> list[Value]:
    return [v for operand in value.operands for v in leaves(operand)] if value.operands else [value]


def compiled(graph: Graph) -> NativeRunner:
    native = NativeGraph(make_plan(graph, target=CPU))
    assert not native.on_host
    return native.bind({})


def drawn(graph: Graph, sizes: dict[str, int], seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in graph.inputs:
        shape = [sizes.get(str(s)) or int(str(s)) for s in value.shape]
        x = rng.normal(size=shape)
        feeds[str(value.attrs["name"])] = x > -0.5 if value.dtype is bool_ else x.astype(np.float32)
    return feeds


def check(graph: Graph, feeds: dict[str, Array], runner: NativeRunner) -> dict[str, Array]:
    found = runner.run(feeds)
    with np.errstate(all="ignore"):
        expected = evaluate(graph, feeds, lift=True)
    for name, x in found.items():
        assert_close(x, expected[name], f32)
    return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "dv"), [(8, 8), (5, 7)])
def test_heads_are_written_where_they_are_merged(d: int, dv: int) -> None:
    """Each of the three results is stored in the order of the tensor that its gradient is added to."""
    q, k, v = operands(d, dv)
    heads = backward(library.attention(q, k, v, scale=0.3))
    merged = {name: merge_heads(x) for name, x in heads.outputs.items()}
    graph = Graph.of({name: ops.neg(x) for name, x in merged.items()}, inputs=heads.inputs)
    plan = make_plan(graph, target=CPU)
    assert sorted(s.value.op.name for s in plan.steps) == [backward_name(library.attention), "neg", "neg", "neg"]
    runner = NativeGraph(plan).bind({})
    for b, s, t in [(1, 1, 1), (2, 9, 5), (1, 40, 33)]:
        check(graph, drawn(graph, {"b": b, "s": s, "t": t}), runner)


SIZES = [(1, 1, 1), (2, 9, 5), (1, 5, 37), (1, 40, 33)]
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True, "fill": -INF},
    "window": {"causal": True, "window": 6, "fill": -INF},
    "finite": {"causal": True, "fill": LOWEST},
    "added": {"causal": True, "fill": -1e4, "filled": "added"},
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize(("d", "dv", "groups"), [(16, 16, 1), (7, 20, 2)])
def test_sizes_and_positions(d: int, dv: int, groups: int, call: dict[str, Any]) -> None:
    graph = backward(library.attention(*operands(d, dv, groups), scale=0.3, groups=groups, **call))
    runner = compiled(graph)
    for b, s, t in SIZES:
        # A window past the last key shows nothing, which is NaN in the weights.
        check(graph, drawn(graph, {"b": b, "s": min(s, t) if "window" in call else s, "t": t}), runner)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 2, 9])
def test_rows_after_the_last_query_add_nothing(window: int) -> None:
    """Vectors have more rows than there are queries, and a short window shows them no key."""
    graph = backward(library.attention(*operands(8, 8), scale=0.3, causal=True, window=window, fill=-INF))
    runner = compiled(graph)
    for s in (1, 3, 18):
        check(graph, drawn(graph, {"b": 1, "s": s, "t": s}), runner)


@pytest.mark.slow
@pytest.mark.parametrize("filled", ["last", "first"])
@pytest.mark.parametrize("heads", [1, 4])
def test_masks(heads: int, filled: Any) -> None:
    q, k, v = operands(8, 8)
    mask, keep = input("mask", f32[B, heads, S, T]), input("keep", bool_[B, 1, 1, T])
    graph = backward(library.attention(q, k, v, mask, keep, scale=0.3, fill=-1e4, filled=filled))
    runner = compiled(graph)
    for b, s, t in SIZES[1:]:
        check(graph, drawn(graph, {"b": b, "s": s, "t": t}), runner)


@pytest.mark.slow
def test_queries_that_see_nothing() -> None:
    """Their hidden scores have no gradient, whatever the fill; a query that gives 0 gives nothing."""
    q, k, v = operands(8, 8)
    keep = input("keep", bool_[1, 1, S, T])
    forms: list[dict[str, Any]] = [{"fill": -1e4}, {"fill": -INF, "empty": "zero"}, {"fill": -INF, "zero_unseen": True}]
    for options in forms:
        graph = backward(library.attention(q, k, v, None, keep, scale=0.3, **options))
        feeds = drawn(graph, {"b": 2, "s": 6, "t": 5})
        feeds["keep"][..., 2, :] = False
        found = check(graph, feeds, compiled(graph))
        assert np.isfinite(found["dk"]).all() and not found["dq"][..., 2, :].any()


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["q", "k", "v", "qv"])
def test_some_gradients(wanted: str) -> None:
    graph = backward(library.attention(*operands(8, 4), scale=0.3), wanted)
    check(graph, drawn(graph, {"b": 1, "s": 9, "t": 10}), compiled(graph))


def test_heads_within_rows() -> None:
    """Queries, keys and values are parts of one matrix, and one head of keys serves all queries."""
    x, kv = input("x", f32[B, S, 32]), input("kv", f32[B, T, 16])
    q = split_heads(x, 4)
    k, v = (split_heads(ops.slice_(kv, axis=-1, start=i, stop=i + 8, step=1), 1) for i in (0, 8))
    graph = backward(library.attention(q, k, v, scale=0.3))
    check(graph, drawn(graph, {"b": 2, "s": 11, "t": 9}), compiled(graph))


def test_without_heads() -> None:
    q, k, v = (input(n, f32[s, 8]) for n, s in (("q", S), ("k", T), ("v", T)))
    graph = backward(library.attention(q, k, v, scale=0.3))
    check(graph, drawn(graph, {"s": 11, "t": 9}), compiled(graph))


def loss_of(y: Value) -> Graph:
    return Graph.of({"loss": ops.reduce_sum(y * y, axes=tuple(range(-y.rank, 0)))})


def in_a_step(y: Value) -> bool:
    """Whether the compiled gradient of a loss has the kernel."""
    program = compile(value_and_grad(loss_of(y), ["q", "k", "v"]), target="cpu")
    return "attention_back" in [step.value.op.name for step in program.plan.steps]


def weights(dtype: Any = f32, batch: int = 2) -> tuple[Value, Value, Value]:
    q, k, v = (param(n, dtype[b, 2, 5, 8]) for n, b in (("q", 2), ("k", batch), ("v", batch)))
    return q, k, v


def test_found_where_it_is_spelled_out() -> None:
    assert in_a_step(library.attention.body(*weights(), scale=0.3))
    assert in_a_step(library.attention(*weights(), scale=0.3, causal=True, fill=-INF))


def test_forms_without_a_kernel_are_spelled_out() -> None:
    assert not in_a_step(library.attention(*weights(), scale=0.3, softcap=5.0))
    assert not in_a_step(library.attention(*weights(f16), scale=0.3))
    assert not in_a_step(library.attention(*weights(batch=1), scale=0.3))


@pytest.mark.slow
def test_a_masked_row_with_nan_gives_nothing() -> None:
    """A row of the result that a mask drops takes no part, also where it is NaN because its query sees no key."""
    q, k, v = (param(n, f32[1, 1, 4, 8]) for n in "qkv")
    seen = input("seen", bool_[1, 1, 4, 1])
    y = ops.where(
        seen, library.attention(q, k, v, None, ops.bit_and(seen, input("keep", bool_[4])), scale=1.0, fill=-INF), 0.0
    )
    graph = value_and_grad(loss_of(y), ["q", "k", "v"])
    rng = np.random.default_rng(0)
    params = {n: rng.normal(size=(1, 1, 4, 8)).astype(np.float32) for n in "qkv"}
    feeds = {"seen": np.array([True, False, True, True]).reshape(1, 1, 4, 1), "keep": np.ones(4, bool)}
    found = compile(graph, params=params, target="cpu").run(feeds)
    assert all(np.isfinite(x).all() for x in found.values())
    assert found["d.v"].any()


@pytest.mark.slow
def test_scores_as_low_as_the_fill() -> None:
    """Keys that positions hide count as well where a query scores no higher: they get its gradient."""
    graph = backward(library.attention(*operands(8, 8), scale=1.0, causal=True, fill=-4e3))
    feeds = drawn(graph, {"b": 1, "s": 9, "t": 12})
    for name, sign in (("q", -1), ("k", 1)):
        feeds[name] = (sign * 22.36 + 0.01 * feeds[name]).astype(np.float32)
    found, expected = compiled(graph).run(feeds), evaluate(graph, feeds, lift=True)
    assert np.abs(expected["dv"][:, :, 9:]).max() > 0.01
    for name, x in found.items():
        assert np.abs(x - expected[name]).max() < 0.02 * np.abs(expected[name]).max()
