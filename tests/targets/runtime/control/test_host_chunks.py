"""Loops that stack outputs of a number of trips that the run finds: compiled chunks, against the meaning in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, DovetailError
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import of_numpy
from dovetail.ir.leaf import constant, input, param, scalar
from dovetail.ir.literal import Array
from dovetail.ops.generate import counting
from dovetail.ops.tracing import scan, while_loop
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.runtime.control import host, host_chunks
from tests.tolerances import assert_close

SIZE = 6
COUNTS = [0, 1, 7, 8, 9, 24, 25, 90]
"""Trips: none, some, and around the ends of chunks."""


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


Body = Callable[..., tuple[Value, ...]]


def cell(trip: Value, h: Value, *captures: Value) -> tuple[Value, ...]:
    """The state is a carry and an output; so is a part of it, seen from the other side."""
    new = ops.tanh(ops.matmul(h, captures[0]) + 0.1)
    return trip + 1, new, new, ops.permute(new * 2, order=(-1, -2)), trip


def loop(body: Body = cell, *, limit: Size | None = 1000) -> Graph:
    x, w, stop = input("x", f32["n", SIZE]), param("w", f32[SIZE, SIZE]), input("stop", i64[()])
    found = while_loop(
        lambda trip, h, w, stop: ops.less(trip, stop),
        body,
        (scalar(0, i64), x),
        (w, stop),
        limit=limit,
        trips=symbol("trips"),
    )
    outputs = {f"y{i}": v for i, v in enumerate(found.outputs)}
    return Graph.of({"h": found.carries[1], "stopped": found.stopped, **outputs})


def check(graph: Graph, counts: list[int], *, threads: int = 1) -> None:
    params = {"w": numbers(1, SIZE, SIZE) * np.float32(0.2)}
    program = dovetail.compile(graph, threads=threads).bind(params)
    for rows in (1, 3):
        for count in counts:
            feed = {"x": numbers(rows, rows, SIZE), "stop": np.array(count)}
            wanted = evaluate(graph, feed, params=params, lift=True)
            for _ in range(2):
                got = program.run(feed)
                for name, array in wanted.items():
                    dtype = of_numpy(got[name].dtype)
                    assert dtype is not None and got[name].shape == array.shape, name
                    assert_close(got[name], array, dtype)


@pytest.fixture
def by_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the chunks that ran, the first of at most 8 trips."""
    lengths: list[int] = []
    monkeypatch.setattr(host_chunks, "FIRST_CHUNK", 8)
    monkeypatch.setattr(host_chunks, "CHUNK_GROWTH", 2)

    def noted(
        chunk: host_chunks.TripChunk,
        operands: Sequence[Array],
        sizes: Mapping[str, int],
        run: host_chunks.RunChunk,
        expected: int | None,
    ) -> tuple[Array, ...]:
        def once(given: Sequence[Array], known: Mapping[str, int]) -> Sequence[Array]:
            lengths.append(known[chunk.length])
            return run(given, known)

        return host_chunks.run_chunks(chunk, operands, sizes, once, expected)

    monkeypatch.setattr(host, "run_chunks", noted)
    return lengths


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_trips(threads: int, by_chunks: list[int]) -> None:
    check(loop(), COUNTS, threads=threads)
    assert by_chunks[0] == 8 and max(by_chunks) == 128


def test_the_first_chunk_is_about_as_long_as_the_last_run(by_chunks: list[int]) -> None:
    program = dovetail.compile(loop()).bind({"w": numbers(1, SIZE, SIZE)})
    for count in (3, 3, 0, 20, 20, 21, 90, 2):
        got = program.run({"x": numbers(1, 1, SIZE), "stop": np.array(count)})
        assert got["y0"].shape[0] == count
    assert by_chunks == [8, 4, 4, 4, 8, 16, 32, 32, 32, 64, 128]


def test_results_of_several_runs_share_no_memory() -> None:
    """An output that nothing else reads is the array that the loop made."""
    program = dovetail.compile(loop()).bind({"w": numbers(1, SIZE, SIZE) * np.float32(0.2)})
    feeds = [{"x": numbers(seed, 2, SIZE), "stop": np.array(5)} for seed in (1, 2)]
    first = program.run(feeds[0])
    kept = {name: array.copy() for name, array in first.items()}
    second = program.run(feeds[1])
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])
        assert array.flags.owndata and array.flags.c_contiguous and array.flags.writeable
        assert not any(np.shares_memory(array, other) for other in (*second.values(), *feeds[0].values()))
        assert not any(np.shares_memory(array, other) for n, other in first.items() if n != name)


@pytest.mark.parametrize("limit", [0, 1, 8, 13])
def test_a_limit_stops_it(limit: int, by_chunks: list[int]) -> None:
    check(loop(limit=limit), [0, 7, 8, 13, 30])
    assert max(by_chunks) <= max(8, limit)


@pytest.mark.slow
def test_a_loop_inside_the_body() -> None:
    def body(trip: Value, h: Value, *captures: Value) -> tuple[Value, ...]:
        inner = scan(lambda h, w: (ops.tanh(ops.matmul(h, w)), h), [h], captures=captures[:1], length=3)
        return trip + 1, inner.carries[0], inner.outputs[0]

    check(loop(body), [0, 2, 9])


@pytest.mark.slow
def test_a_trip_that_fails_is_an_error_and_one_after_the_exit_is_not() -> None:
    table = constant(np.arange(6, dtype=np.float32))

    def body(trip: Value, h: Value, *captures: Value) -> tuple[Value, ...]:
        return trip + 1, h, ops.gather(table, trip, axis=0)

    graph, params = loop(body), {"w": numbers(1, SIZE, SIZE) * np.float32(0.2)}
    check(graph, [0, 5, 6])
    program = dovetail.compile(graph).bind(params)
    with pytest.raises(BindError):
        program.run({"x": numbers(1, 1, SIZE), "stop": np.array(7)})
    found = program.run({"x": numbers(1, 1, SIZE), "stop": np.array(6)})
    assert found["y0"].tolist() == list(range(6))


def test_a_body_that_finds_a_size_takes_single_trips(by_chunks: list[int]) -> None:
    def body(trip: Value, h: Value, *captures: Value) -> tuple[Value, ...]:
        found = ops.reduce_sum(counting(trip, count=symbol("found")), axes=(-1,))
        return trip + 1, h, found

    check(loop(body), [0, 5])
    assert not by_chunks


def test_large_outputs_shorten_chunks(by_chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_chunks, "CHUNK_BYTES", 500)
    check(loop(), [12])
    assert max(by_chunks) < 10


def test_large_outputs_shorten_the_first_chunk(by_chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_chunks, "FIRST_BYTES", 300)
    check(loop(), [3])
    assert by_chunks[0] < 8


def test_sizes_that_two_loops_find_must_agree() -> None:
    x, stops = input("x", f32[SIZE]), [input(f"stop{i}", i64[()]) for i in range(2)]
    found = [
        while_loop(
            lambda trip, h, stop: ops.less(trip, stop),
            lambda trip, h, stop: (trip + 1, h * 0.5, h),
            (scalar(0, i64), x),
            (stop,),
            limit=100,
            trips=symbol("trips"),
        )
        for stop in stops
    ]
    program = dovetail.compile(Graph.of({"y": found[0].outputs[0] + found[1].outputs[0]}))
    feed = {"x": np.ones(SIZE, np.float32), "stop0": np.array(3), "stop1": np.array(3)}
    np.testing.assert_allclose(program.run(feed)["y"], 2.0 ** -np.arange(3)[:, None] * np.full(SIZE, 2.0))
    with pytest.raises(DovetailError, match="trips"):
        program.run({**feed, "stop1": np.array(4)})


def test_a_loop_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_chunks, "MOST_TRIPS", 50)
    monkeypatch.setattr("dovetail.ops.control.MOST_TRIPS", 50)
    program = dovetail.compile(loop(limit=None)).bind({"w": numbers(1, SIZE, SIZE) * np.float32(0.2)})
    with pytest.raises(BindError, match="does not end"):
        program.run({"x": numbers(1, 1, SIZE), "stop": np.array(1 << 40)})


@pytest.mark.parametrize("more", ["a step before", "a step after", "an output twice", "a view", "an input"])
def test_a_loop_that_is_not_alone_in_its_plan(more: str) -> None:
    """A plan that is one loop runs without memory for its tensors; what is more than that needs it."""
    x, stop = input("x", f32["n", SIZE]), input("stop", i64[()])
    found = while_loop(
        lambda trip, h, stop: ops.less(trip, stop),
        lambda trip, h, stop: (trip + 1, h * 0.5, h),
        (scalar(0, i64), ops.tanh(x) if more == "a step before" else x),
        (stop,),
        limit=1000,
        trips=symbol("trips"),
    )
    outputs = {"h": found.carries[1], "y": found.outputs[0]}
    others = {
        "a step after": ops.reduce_sum(found.carries[1], axes=(-1,)),
        "an output twice": found.carries[1],
        "a view": ops.permute(found.outputs[0], order=(-1, -2)),
        "an input": x,
    }
    if more in others:
        outputs["more"] = others[more]
    graph = Graph.of(outputs)
    program = dovetail.compile(graph)
    for count in (4, 4, 0, 9, 50):
        feed = {"x": numbers(count, 3, SIZE), "stop": np.array(count)}
        wanted = evaluate(graph, feed, lift=True)
        got = program.run(feed)
        for name, array in wanted.items():
            assert got[name].shape == array.shape, name
            assert_close(got[name], array, f32)
        assert not any(np.shares_memory(got[a], got[b]) for a in got for b in got if a < b)
