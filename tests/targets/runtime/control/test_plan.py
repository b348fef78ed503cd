"""Branches and loops in compiled code: against float64, against the host, and with any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.errors import BindError
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, bool_, f16, f32, i32, i64
from dovetail.ir.literal import Array
from dovetail.ops import build
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph, NativeRunner
from dovetail.targets.cpu.threads import control_text
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.runtime.building import build as ready
from tests.tolerances import assert_close

Feeds = Mapping[str, Array]


def native(outputs: Mapping[str, Value], params: Feeds | None = None, threads: int = 2) -> NativeRunner:
    """A graph that runs, none of its steps on the host."""
    graph = NativeGraph(make_plan(Graph.of(outputs), target=CPU), threads=threads)
    assert not graph.on_host, f"on the host: {[s.value.op.name for s in graph.on_host]}"
    return graph.bind(params or {})


def no_control(*_: object) -> None:
    """Nothing that branches or loops is compiled."""


def on_host(outputs: Mapping[str, Value], params: Feeds | None = None) -> NativeRunner:
    """The same with branches and loops decided on the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ready, "make_control", no_control)
        graph = NativeGraph(make_plan(Graph.of(outputs), target=CPU), threads=1)
        assert graph.on_host
        runner = graph.bind(params or {})
        return runner


def check(outputs: Mapping[str, Value], *feeds: Feeds, params: Feeds | None = None) -> list[dict[str, Array]]:
    """One compilation for all feeds: near its meaning, the same bits as the host's, for any number of threads."""
    runners = [native(outputs, params, threads) for threads in (1, 2, 3)]
    host = on_host(outputs, params)
    found: list[dict[str, Array]] = []
    for feed in feeds:
        expected = evaluate(runners[0].plan.graph, feed, params=params or {}, lift=True)
        same = host.run(feed)
        for runner in runners:
            # The second run finds the words of the first.
            got = [runner.run(feed) for _ in range(2)][-1]
            for name, value in outputs.items():
                assert (got[name].shape, got[name].dtype) == (expected[name].shape, value.dtype.numpy)
                assert_close(got[name], expected[name], value.dtype, scale=4.0)
                assert got[name].tobytes() == same[name].tobytes(), name
        found.append(same)
    return found


def some(dtype: DType, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype.numpy)


def lstm(x: Value, h: Value, c: Value, w: Value, *, reverse: bool = False) -> dict[str, Value]:
    """A layer whose input is projected already; its hidden state is a carry and an output."""

    def cell(h: Value, c: Value, x: Value, w: Value) -> tuple[Value, ...]:
        i, o, f, g = (ops.part(x + h @ w, axis=-1, index=k, parts=4) for k in range(4))
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
        h = ops.sigmoid(o) * ops.tanh(c)
        return h, c, h

    found = ops.scan(cell, [h, c], [x], [w], reverse=reverse)
    return {"h": found.carries[0], "c": found.carries[1], "y": found.outputs[0]}


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_recurrent_layer_for_every_length_and_batch(reverse: bool, known: bool) -> None:
    size = 24
    x = leaf.input("x", f32["n", "b", 4 * size])
    h, c = (leaf.input(name, f32["b", size]) for name in "hc")
    w = leaf.param("w", f32[size, 4 * size]) if known else leaf.input("w", f32[size, 4 * size])
    weights = some(f32, size, 4 * size) * np.float32(0.2)
    feeds = [
        {"x": some(f32, n, b, 4 * size), "h": some(f32, b, size, seed=1), "c": some(f32, b, size, seed=2)}
        for n, b in ((1, 1), (2, 3), (7, 1), (0, 2), (33, 2))
    ]
    if not known:
        feeds = [{**feed, "w": weights} for feed in feeds]
    check(lstm(x, h, c, w, reverse=reverse), *feeds, params={"w": weights} if known else None)


@pytest.mark.slow
def test_weights_that_are_seen_transposed_and_scanned_along_another_axis() -> None:
    x, h, w = leaf.input("x", f32["b", "n", 8]), leaf.input("h", f32["b", 8]), leaf.param("w", f32[8, 8])
    steps = build.swap(x, 0, 1)
    found = ops.scan(
        lambda h, x, w: (ops.tanh(x + h @ w), ops.reduce_sum(h * x, axes=(-1,))),
        [h],
        [steps],
        [ops.permute(w, order=(-1, -2))],
    )
    outputs = {"h": found.carries[0], "y": build.swap(found.outputs[0], 0, 1)}
    feeds = [{"x": some(f32, b, n, 8), "h": some(f32, b, 8)} for b, n in ((3, 5), (1, 1), (2, 0))]
    check(outputs, *feeds, params={"w": some(f32, 8, 8, seed=3)})


@pytest.mark.slow
def test_slices_that_do_not_lie_densely_are_copied() -> None:
    x, z = leaf.input("x", f32[3, "n", 4]), leaf.input("z", f32[5, "n"])
    turned = ops.permute(x, order=(-2, -1, -3))
    found = ops.scan(
        lambda s, x, z: (s + x, ops.reduce_max(x, axes=(-1,)), z),
        [leaf.constant(np.zeros((4, 3), np.float32))],
        [turned, ops.permute(z, order=(-1, -2))],
    )
    outputs = {"s": found.carries[0], "a": found.outputs[0], "b": found.outputs[1]}
    check(outputs, *({"x": some(f32, 3, n, 4), "z": some(f32, 5, n)} for n in (1, 4, 9)))


def test_carries_that_change_places_stay_or_become_constant() -> None:
    a, b, c, d = (leaf.input(name, i32[5]) for name in "abcd")
    one = leaf.constant(np.arange(5, dtype=np.int32))
    found = ops.scan(
        lambda a, b, c, d, one: (b, a, c, one, a + d, c), [a, b, c, d], captures=[one], length=symbol("trips")
    )
    outputs = {f"r{i}": v for i, v in enumerate((*found.carries, *found.outputs))} | {
        "n": leaf.input("n", i32["trips"])
    }
    feeds = [
        {**{name: np.arange(5, dtype=np.int32) * k for k, name in enumerate("abcd", 2)}, "n": np.zeros(n, np.int32)}
        for n in (0, 1, 2, 3, 6)
    ]
    runner = native(outputs)
    for feed in feeds:
        expected, got = evaluate(runner.plan.graph, feed), runner.run(feed)
        for name, array in expected.items():
            assert got[name].tolist() == array.tolist(), name


@pytest.mark.slow
def test_scans_within_scans() -> None:
    x, w = leaf.input("x", f32["n", "m", 6]), leaf.param("w", f32[6, 6])

    def inner(s: Value, x: Value, w: Value) -> tuple[Value, Value]:
        s = ops.tanh(s @ w + x)
        return s, s * 2.0

    def outer(s: Value, x: Value, w: Value) -> tuple[Value, ...]:
        found = ops.scan(inner, [s], [x], [w], reverse=True)
        return found.carries[0], found.outputs[0], ops.reduce_sum(found.outputs[0], axes=(-2,))

    start = build.zeros((1, 6), f32)
    found = ops.scan(outer, [start], [ops.unsqueeze(x, axes=(-2,))], [w])
    outputs = {"s": found.carries[0], "y": found.outputs[0], "z": found.outputs[1]}
    feeds = [{"x": some(f32, n, m, 6)} for n, m in ((1, 1), (3, 4), (4, 3), (2, 0), (0, 2))]
    check(outputs, *feeds, params={"w": some(f32, 6, 6, seed=5)})


@pytest.mark.slow
def test_a_branch_within_a_scan_reads_what_was_carried() -> None:
    x = leaf.input("x", f32["n", 4])

    def body(s: Value, x: Value) -> tuple[Value, Value]:
        low = ops.less(build.squeeze_dims(ops.reduce_sum(x, axes=(-1,)), -1), leaf.scalar(0.0, f32))
        (new,) = ops.cond(low, lambda s, x: s - x, lambda s, x: ops.tanh(s) + x, s, x)
        return new, new

    found = ops.scan(body, [build.zeros((4,), f32)], [x])
    outputs = {"s": found.carries[0], "y": found.outputs[0]}
    check(outputs, *({"x": some(f32, n, 4)} for n in (1, 2, 17, 0)))


def collatz(n: Value, limit: int | None = None) -> dict[str, Value]:
    one, two = leaf.constant(np.array(1)), leaf.constant(np.array(2))

    def body(n: Value, count: Value, one: Value, two: Value) -> tuple[Value, ...]:
        odd = ops.equal(ops.mod(n, two), one)
        return ops.where(odd, n * (two + one) + one, ops.div(n, two)), count + one

    found = ops.while_loop(
        lambda n, count, one, two: ops.less(one, n), body, [n, leaf.constant(np.array(0))], [one, two], limit=limit
    )
    return {"n": found.carries[0], "count": found.carries[1], "more": found.stopped}


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 0, 5, 111])
def test_a_loop_ends_by_what_it_computes_or_at_its_limit(limit: int | None) -> None:
    feeds = [{"n": np.array(n)} for n in (1, 2, 6, 27)]
    found = check(collatz(leaf.input("n", i64[()]), limit), *feeds)
    counts = [0, 1, 8, 111]
    assert [int(f["count"]) for f in found] == [c if limit is None else min(c, limit) for c in counts]
    assert [bool(f["more"]) for f in found] == [limit is not None and limit < c for c in counts]


@pytest.mark.exhaustive
def test_a_loop_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = leaf.input("flag", bool_[()])
    found = ops.while_loop(lambda x, flag: flag, lambda x, flag: x + 1.0, [build.zeros((), f32)], [flag])
    runner = native({"y": found.carries[0]})
    assert runner.run({"flag": np.array(False)})["y"] == 0.0
    assert control_text.MOST_TRIPS == 10_000_000
    with pytest.raises(BindError, match="does not end"):
        runner.run({"flag": np.array(True)})


@pytest.mark.slow
def test_a_branch_on_what_was_computed() -> None:
    x, w = leaf.input("x", f32["n", 8]), leaf.param("w", f32[8, 8])
    big = ops.less(leaf.scalar(0.0, f32), build.squeeze_dims(ops.reduce_sum(x, axes=(-2, -1)), (-2, -1)))
    a, b = ops.cond(
        big,
        lambda x, w: (x @ w, ops.reduce_sum(x, axes=(-1,))),
        lambda x, w: (x * 3.0, ops.reduce_max(x, axes=(-1,))),
        x,
        w,
    )
    params = {"w": some(f32, 8, 8, seed=7)}
    check({"a": a, "b": b}, *({"x": some(f32, n, 8) + k} for n, k in ((1, 1), (3, -1), (20, 2))), params=params)


def test_of_a_branch_one_side_may_run_on_the_host() -> None:
    flag, x = leaf.input("flag", bool_[()]), leaf.input("x", f32["n"])

    def counted(x: Value) -> Value:
        places = ops.nonzero(x, count=symbol("k"))
        return ops.cast(ops.reduce_sum(ops.cast(places, dtype=f32), axes=(-2, -1)), dtype=f32)

    (y,) = ops.cond(flag, lambda x: ops.unsqueeze(ops.reduce_sum(x, axes=(-1,)), axes=(-1,)), counted, x)
    runner = native({"y": y})
    array = np.array([1, 0, 2, 3], np.float32)
    for chosen, expected in ((True, 6.0), (False, 5.0), (True, 6.0)):
        assert runner.run({"flag": np.array(chosen), "x": array})["y"].item() == expected


def test_what_a_branch_asks_of_its_sizes_is_asked_where_it_is_taken() -> None:
    flag, x, y = leaf.input("flag", bool_[()]), leaf.input("x", f32["n"]), leaf.input("y", f32["m"])
    (z,) = ops.cond(
        flag,
        lambda x, y: ops.reduce_sum(x + y, axes=(-1,)),
        lambda x, y: ops.reduce_sum(x, axes=(-1,)),
        x,
        y,
    )
    runner = native({"z": z})
    three, two = np.ones(3, np.float32), np.ones(2, np.float32)
    assert runner.run({"flag": np.array(True), "x": three, "y": three})["z"].item() == 6
    assert runner.run({"flag": np.array(False), "x": three, "y": two})["z"].item() == 3
    with pytest.raises(BindError):
        runner.run({"flag": np.array(True), "x": three, "y": two})


def test_a_kernel_inside_that_refuses_what_it_reads() -> None:
    table, indices = leaf.input("table", f32[4]), leaf.input("indices", i64["n", 1])
    found = ops.scan(lambda s, i, table: s + ops.gather(table, i, axis=0), [build.zeros((1,), f32)], [indices], [table])
    runner = native({"s": found.carries[0]})
    numbers = np.arange(4, dtype=np.float32)
    assert runner.run({"table": numbers, "indices": np.array([[1], [3]])})["s"].tolist() == [4.0]
    with pytest.raises(BindError, match="9"):
        runner.run({"table": numbers, "indices": np.array([[1], [9]])})
    assert runner.run({"table": numbers, "indices": np.array([[2]])})["s"].tolist() == [2.0]


@pytest.mark.slow
def test_narrow_types_are_carried_too() -> None:
    x, flags = leaf.input("x", f16["n", 3]), leaf.input("flags", bool_["n", 3])
    found = ops.scan(
        lambda s, seen, x, flag: (s + ops.where(flag, x, s), ops.bit_or(seen, flag), s),
        [build.zeros((3,), f16), leaf.constant(np.zeros(3, bool))],
        [x, flags],
    )
    outputs = {"s": found.carries[0], "seen": found.carries[1], "y": found.outputs[0]}
    check(outputs, *({"x": some(f16, n, 3), "flags": some(f32, n, 3) > 0} for n in (1, 5)))


@pytest.mark.slow
def test_threads_of_python_run_one_loop_at_once() -> None:
    size = 16
    x, h, c = leaf.input("x", f32["n", 1, 64]), leaf.input("h", f32[1, size]), leaf.input("c", f32[1, size])
    runner = native(lstm(x, h, c, leaf.param("w", f32[size, 64])), {"w": some(f32, size, 64)})
    feeds = [{"x": some(f32, n, 1, 64), "h": some(f32, 1, size), "c": some(f32, 1, size)} for n in (3, 40)]
    expected = [{k: v.tobytes() for k, v in runner.run(feed).items()} for feed in feeds]
    wrong: list[str] = []

    def work(seed: int) -> None:
        for turn in range(50):
            which = (seed + turn) % 2
            got = {k: v.tobytes() for k, v in runner.run(feeds[which]).items()}
            wrong.extend(k for k in got if got[k] != expected[which][k])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
