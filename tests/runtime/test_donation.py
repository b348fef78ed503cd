"""Donated inputs of programs: outputs are the arrays that were given, and nothing is copied that need not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Builder, Graph, library, ops
from dovetail.declare.cost import estimate
from dovetail.dtypes import f16, f32, i64
from dovetail.errors import BindError
from dovetail.frontends.onnx import import_model
from dovetail.runtime.program import Program
from tests.frontends.onnx.build import model

Array = NDArray[Any]
TARGETS = ["cpu", "reference"]
ROOM, HEADS, WIDE = 128, 4, 16


def decoder_step(*, donated: bool = True) -> Graph:
    """One token: its key and value are written into the caches at a position, and it attends to all before it."""
    b = Builder("step")
    x = b.input("x", f32[1, HEADS * WIDE])
    at = b.input("at", i64[1])
    keys, values = b.input("keys", f32[HEADS, ROOM, WIDE]), b.input("values", f32[HEADS, ROOM, WIDE])
    projected = [x @ b.param(n, f32[HEADS * WIDE, HEADS * WIDE]) for n in ("wq", "wk", "wv")]
    q, k, v = (ops.permute(ops.split(p, axis=-1, size=WIDE), order=(-2, -3, -1)) for p in projected)
    index = ops.expand(ops.expand(ops.unsqueeze(at, axes=(-1, -3)), axis=-1, size=WIDE), axis=-3, size=HEADS)
    new_keys = ops.scatter_elements(keys, index, k, axis=-2)
    new_values = ops.scatter_elements(values, index, v, axis=-2)
    seen = ops.less_equal(ops.iota(size=ROOM), at)
    scores = (q @ ops.permute(new_keys, order=(-1, -2))) * (WIDE**-0.5)
    scores = ops.where(seen, scores, -1e30)
    weights = library.softmax.body(scores, axis=-1)
    y = ops.merge(ops.permute(weights @ new_values, order=(-2, -3, -1)), axis=-1)
    b.output("y", y)
    b.output("new_keys", new_keys, into="keys" if donated else "")
    b.output("new_values", new_values, into="values" if donated else "")
    return b.graph()


def drawn(rng: np.random.Generator) -> dict[str, Array]:
    return {n: rng.normal(size=(HEADS * WIDE,) * 2).astype(np.float32) / 8 for n in ("wq", "wk", "wv")}


def empty_caches() -> dict[str, Array]:
    return {n: np.zeros((HEADS, ROOM, WIDE), np.float32) for n in ("keys", "values")}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_cache_is_updated_where_it_is(target: str) -> None:
    """100 tokens: the caches stay the arrays that they were, and every result is that of attention over all tokens."""
    rng = np.random.default_rng(0)
    params = drawn(rng)
    program = dovetail.compile(decoder_step(), target=target, params=params)
    caches = empty_caches()
    tokens = rng.normal(size=(100, HEADS * WIDE)).astype(np.float32)
    wide = {n: w.astype(np.float64) for n, w in params.items()}
    for at in range(100):
        found = program.run({"x": tokens[at : at + 1], "at": np.array([at], np.int64), **caches})
        assert found["new_keys"] is caches["keys"] and found["new_values"] is caches["values"]
        before = tokens[: at + 1].astype(np.float64)
        q, k, v = ((before @ wide[n]).reshape(-1, HEADS, WIDE).transpose(1, 0, 2) for n in ("wq", "wk", "wv"))
        scores = q[:, -1:] @ k.transpose(0, 2, 1) / np.sqrt(WIDE)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        expected = (weights @ v).transpose(1, 0, 2).reshape(1, -1)
        np.testing.assert_allclose(found["y"], expected, rtol=2e-4, atol=2e-5)
    assert not caches["keys"][:, 100:].any() and caches["keys"][:, :100].all()


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_cache_is_copied(target: str) -> None:
    """By the plan: no step and no end of a run copies a cache, and no memory of a run is as large as one."""
    program = dovetail.compile(decoder_step(), target=target)
    cache = HEADS * ROOM * WIDE * 4
    assert [d.copied for d in program.plan.donations] == [0, 0]
    assert estimate(program.plan.arena_size) < cache
    inside = [s for s in program.plan.steps if any(program.plan.slots[r].pool == "donated" for r in s.results)]
    assert [s.value.op.name for s in inside] == ["scatter_elements"] * 2
    assert [program.plan.locate(s.operands[0]).root for s in inside] == [s.over for s in inside]
    without = dovetail.compile(decoder_step(donated=False), target=target)
    assert estimate(without.plan.arena_size) >= 2 * cache


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_results_are_those_without_donation(target: str) -> None:
    rng = np.random.default_rng(1)
    params = drawn(rng)
    inputs = {"x": rng.normal(size=(1, HEADS * WIDE)).astype(np.float32), "at": np.array([7], np.int64)}
    caches = {n: rng.normal(size=(HEADS, ROOM, WIDE)).astype(np.float32) for n in ("keys", "values")}
    expected = dovetail.compile(decoder_step(donated=False), target=target, params=params).run({**inputs, **caches})
    found = dovetail.compile(decoder_step(), target=target, params=params).run({**inputs, **caches})
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
    assert np.shares_memory(found["new_keys"], caches["keys"])


@pytest.mark.parametrize("target", TARGETS)
def test_state_of_training_is_updated_where_it_is(target: str) -> None:
    """Momentum and weights, each computed from both: what one step reads no other one has overwritten."""
    b = Builder("train")
    w, m, g = (b.input(n, f32["n", 8]) for n in ("w", "m", "g"))
    new_m = m * 0.9 + g
    b.output("new_w", w - new_m * 0.1, into="w")
    b.output("new_m", new_m, into="m")
    program = dovetail.compile(b.graph(), target=target)
    rng = np.random.default_rng(2)
    for rows in (3, 5):
        state = {n: rng.normal(size=(rows, 8)).astype(np.float32) for n in ("w", "m")}
        was = {n: a.astype(np.float64) for n, a in state.items()}
        for _ in range(4):
            g_now = rng.normal(size=(rows, 8)).astype(np.float32)
            found = program.run({**state, "g": g_now})
            assert found["new_w"] is state["w"] and found["new_m"] is state["m"]
            was["m"] = was["m"] * 0.9 + g_now
            was["w"] = was["w"] - was["m"] * 0.1
            for n, a in state.items():
                np.testing.assert_allclose(a, was[n], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_what_has_to_be_copied_is_right_too(target: str) -> None:
    """A product of the state with weights cannot be computed in place."""
    b = Builder("state")
    s = b.input("s", f32[6, 6])
    b.output("next", s @ b.param("w", f32[6, 6], np.eye(6, k=1, dtype=np.float32)), into="s")
    program = dovetail.compile(b.graph(), target=target)
    (donation,) = program.plan.donations
    assert donation.copied == 144 and "in place" in donation.reason
    state = np.arange(36, dtype=np.float32).reshape(6, 6)
    expected = state @ np.eye(6, k=1, dtype=np.float32)
    assert program.run({"s": state})["next"] is state and np.array_equal(state, expected)


def appending() -> Program:
    b = Builder("append")
    x, at, row = b.input("x", f32[8, 4]), b.input("at", i64[1, 1]), b.input("row", f32[1, 4])
    b.output("y", ops.scatter_nd(x, at, row), into="x")
    return dovetail.compile(b.graph())


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.broadcast_to(np.zeros(4, np.float32), (8, 4)), "the input x is donated and not writable"),
        (np.zeros((4, 8), np.float32).T, "the input x is donated and not C-contiguous"),
        (np.zeros((8, 4), ">f4"), "the input x is donated and no plain array of its dtype"),
        (np.zeros((8, 4), np.float16), "has the dtype float16"),
    ],
)
def test_arrays_that_cannot_be_overwritten_are_refused(array: Array, message: str) -> None:
    with pytest.raises(BindError, match=message):
        appending().run({"x": array, "at": np.zeros((1, 1), np.int64), "row": np.ones((1, 4), np.float32)})


def test_one_array_for_two_inputs_is_refused() -> None:
    x = np.zeros((8, 4), np.float32)
    with pytest.raises(BindError, match="the donated input x shares memory with the input row"):
        appending().run({"x": x, "at": np.zeros((1, 1), np.int64), "row": x[:1]})


def test_a_position_outside_is_refused() -> None:
    with pytest.raises(dovetail.errors.DovetailError):
        x, row = np.zeros((8, 4), np.float32), np.ones((1, 4), np.float32)
        appending().run({"x": x, "at": np.full((1, 1), 9, np.int64), "row": row})


def picking() -> Program:
    """A state that each run adds to, and rows of the new state at positions that may be out of range."""
    b = Builder("pick")
    s, g, at = b.input("s", f32["n", 4]), b.input("g", f32["n", 4]), b.input("at", i64["k"])
    new = s + g
    b.output("rows", ops.gather(new, at, axis=-2))
    b.output("t", new, into="s")
    b.output("twice", g * 2.0)
    return dovetail.compile(b.graph())


@pytest.mark.slow
def test_a_run_that_fails_updates_its_state_at_most_once() -> None:
    """A kernel that finds a bad position stops the run after the state is overwritten; the update is not done again."""
    program = picking()
    g = np.ones((8, 4), np.float32)
    for _ in range(3):
        state = np.zeros((8, 4), np.float32)
        for _ in range(3):
            program.run({"s": state, "g": g, "at": np.array([0, -1])})
        assert (state == 3).all()
        with pytest.raises(dovetail.errors.DovetailError, match=r"range|bounds|index"):
            program.run({"s": state, "g": g, "at": np.array([0, 99])})
        assert (state == 4).all() or (state == 3).all()
        before = state.copy()
        found = program.run({"s": state, "g": g, "at": np.array([7])})
        assert list(found) == ["rows", "t", "twice"] and found["t"] is state
        np.testing.assert_array_equal(found["rows"], before[7:] + 1)


def test_donated_programs_use_prepared_calls() -> None:
    """Runs of one shape after the first go through the prepared call, and write to whichever array they are given."""
    program = picking()
    g, at = np.ones((8, 4), np.float32), np.array([1])
    program.run({"s": g.copy(), "g": g, "at": at})
    quick = program._binding.quick  # pyright: ignore[reportPrivateUsage]
    assert quick is not None
    for k in range(5):
        state = np.full((8, 4), k, np.float32)
        found = quick({"s": state, "g": g, "at": at})
        assert found is not None and found["t"] is state and (state == k + 1).all()


@pytest.mark.parametrize("inputs", [{"g": "s"}, {"s": "frozen"}, {"s": "turned"}])
def test_prepared_calls_leave_what_cannot_be_overwritten_to_the_check(inputs: dict[str, str]) -> None:
    program = picking()
    s, g, at = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), np.array([1])
    program.run({"s": s, "g": g, "at": at})
    frozen = s.copy()
    frozen.flags.writeable = False
    known = {"s": s, "frozen": frozen, "turned": s.T}
    with pytest.raises(BindError):
        program.run({"s": s, "g": g, "at": at} | {name: known[to] for name, to in inputs.items()})
    assert (s == 2).all()


def test_memory_is_compared_again_where_an_array_moves() -> None:
    """Runs compare what moved since the last one: another input into the donated array, or that one onto the others."""
    program = picking()
    pool = np.zeros((3, 4, 4), np.float32)
    s, g, at = pool[0], pool[1], np.array([1])
    program.run({"s": s, "g": g, "at": at})
    for _ in range(2):
        with pytest.raises(BindError, match="shares memory"):
            program.run({"s": s, "g": s, "at": at})
        with pytest.raises(BindError, match="shares memory"):
            program.run({"s": g, "g": g, "at": at})
    across = pool.reshape(-1)[8:24].reshape(4, 4)
    with pytest.raises(BindError, match="shares memory"):
        program.run({"s": across, "g": g, "at": at})
    pool[1:] = 1
    assert program.run({"s": s, "g": pool[2], "at": at})["t"] is s and (s == 1).all()


def test_a_profile_leaves_donated_arrays_alone() -> None:
    x, row = np.zeros((8, 4), np.float32), np.ones((1, 4), np.float32)
    appending().profile({"x": x, "at": np.zeros((1, 1), np.int64), "row": row}, runs=3)
    assert not x.any()


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize("dtype", [f32, f16, i64])
def test_updates_in_place_are_those_of_a_copy(reduction: str, dtype: dovetail.dtypes.DType) -> None:
    """Rows that several updates name are combined in order, also where sums are kept in wider numbers."""
    b = Builder("update")
    x, at, rows = b.input("x", dtype[8, 70]), b.input("at", i64[5, 1]), b.input("rows", dtype[5, 70])
    b.output("y", ops.scatter_nd(x, at, rows, reduction=reduction), into="x")
    graph = b.graph()
    rng = np.random.default_rng(3)
    inputs = {n: rng.integers(-9, 9, (k, 70)).astype(dtype.numpy) for n, k in (("x", 8), ("rows", 5))}
    inputs["at"] = np.array([[1], [3], [1], [7], [-1]])
    (expected,) = dovetail.compile(Graph.of(graph.outputs), target="reference").run(dict(inputs)).values()
    program = dovetail.compile(graph)
    assert program.plan.donations[0].copied == 0
    np.testing.assert_array_equal(program.run(inputs)["y"], expected)
    np.testing.assert_array_equal(inputs["x"], expected)


def test_donations_are_kept_with_compiled_programs(tmp_path: Any) -> None:
    """A program from the cache overwrites what one that was just compiled does."""
    rng = np.random.default_rng(4)
    params = drawn(rng)
    for _ in range(2):
        program = dovetail.compile(decoder_step(), params=params, cache=str(tmp_path))
        caches = empty_caches()
        found = program.run({"x": np.ones((1, 64), np.float32), "at": np.array([3], np.int64), **caches})
        assert found["new_keys"] is caches["keys"] and caches["keys"][:, 3].any()


def test_a_cache_of_an_onnx_model_is_updated_in_place() -> None:
    """TensorScatter is how exporters write a cache of fixed size."""
    types = {"cache": f32[2, 4, 32, 8], "new": f32[2, 4, 1, 8], "at": i64[2]}
    graph = import_model(model(["TensorScatter cache new at -> y"], types, ["y"], opset=24)).donate({"y": "cache"})
    program = dovetail.compile(graph)
    assert program.plan.donations[0].copied == 0
    rng = np.random.default_rng(5)
    cache, new = (rng.normal(size=s).astype(np.float32) for s in ((2, 4, 32, 8), (2, 4, 1, 8)))
    expected = cache.copy()
    expected[0, :, 3], expected[1, :, 30] = new[0, :, 0], new[1, :, 0]
    assert program.run({"cache": cache, "new": new, "at": np.array([3, 30])})["y"] is cache
    np.testing.assert_array_equal(cache, expected)


def test_the_report_says_what_is_in_place_and_what_is_copied() -> None:
    b = Builder("both")
    x, at, row = b.input("x", f32[256, 64]), b.input("at", i64[1, 1]), b.input("row", f32[1, 64])
    s = b.input("s", f32[64, 64])
    b.output("y", ops.scatter_nd(x, at, row), into="x")
    b.output("t", s @ b.param("w", f32[64, 64]), into="s")
    report = dovetail.explain(b.graph())
    there, copied = report.donated
    assert (there.output, there.input, there.copied_bytes, there.reason) == ("y", "x", 0, "")
    assert copied.copied_bytes == 64 * 64 * 4 and copied.seconds > 0
    assert "DONATED    1 × in place               y in x" in str(report)
    assert "t to s                 copies 16.4 kB a run: matmul does not run in place" in str(report)
    update = next(k for k in report.kernels if k.op == "scatter_nd")
    assert update.bytes == 2 * 64 * 4 + 8, "an update in place moves a row, and not the whole tensor"


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_one_value_is_written_into_two_inputs(target: str) -> None:
    builder = dovetail.Builder("counters")
    x, first, second = (builder.input(name, i64[()]) for name in ("x", "first", "second"))
    assert first is not second
    builder.output("after", x + 1, into="first")
    builder.output("after_too", x + 1, into="second")
    program = dovetail.compile(builder.graph(), target=target)
    given = {"x": np.array(3), "first": np.array(1), "second": np.array(2)}
    found = program.run(given)
    assert [int(v) for v in (*found.values(), given["first"], given["second"])] == [4, 4, 4, 4]
