"""Products by cuBLASLt in the place of our kernels, on a simulated driver and a library in NumPy."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, input, library, ops, param
from dovetail.dtypes import bf16, f16, f32, f64
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.runs import runner
from dovetail.targets.cuda.runs.run import CudaGraph
from dovetail.targets.cuda.runs.runner import CudaRunner
from tests.targets.cuda.library_card import (
    Card,
    biased,
    bound,
    card_with_library,
    check,
    inner,
    linear,
)
from tests.targets.cuda.simulated import drawn_for
from tests.tolerances import assert_close

RANDOM = np.random.default_rng(3)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return card_with_library(monkeypatch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16])
def test_a_result_without_an_epilogue_is_written_directly(card: Card, dtype: DType) -> None:
    graph = inner(dtype)
    program, feeds = bound(card, graph)
    for _ in range(3):
        check(graph, program.run(feeds))
        ran = card.launches()
        assert ran[:2] == ["copy", "cublaslt"] and "library_sum" not in ran
    _, a, b, c = card.library.problems[0]
    assert {m.kind for m in (a, b, c)} == {{f32: 0, f64: 1, f16: 2, bf16: 14}[dtype]}


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16])
def test_an_epilogue_is_a_kernel_of_ours(card: Card, dtype: DType) -> None:
    graph = biased(dtype)
    program, feeds = bound(card, graph)
    for _ in range(3):
        check(graph, program.run(feeds))
        assert card.launches() == ["copy", "cublaslt", "library_sum"]
    # Sums are rounded once, after the epilogue.
    assert card.library.problems[0][3].kind == (1 if dtype is f64 else 0)


def transposed(side: str) -> Graph:
    """A product with a factor whose rows are along k in memory, or across."""
    if side == "w":
        x, w = input("x", f32[24, 32]), ops.permute(param("w", f32[40, 32]), order=(-1, -2))
    else:
        x, w = ops.permute(input("x", f32[32, 24]), order=(-1, -2)), param("w", f32[32, 40])
    return Graph.of({"y": library.gelu(x @ w)})


@pytest.mark.exhaustive
@pytest.mark.parametrize("side", ["x", "w"])
def test_factors_may_be_transposed(card: Card, side: str) -> None:
    graph = transposed(side)
    program, feeds = bound(card, graph)
    check(graph, program.run(feeds))
    assert "cublaslt" in card.launches()
    product = card.library.problems[0][0]
    # The library has the transposed product: its factors are those of ours in the other order.
    assert product.transposed == {3: int(side == "w"), 4: int(side == "x")}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 32, 40), (24, 1, 40), (24, 32, 1), (1, 1, 1), (5, 7, 3)])
def test_sizes_may_be_one_or_odd(card: Card, rows: int, depth: int, columns: int) -> None:
    graph = biased(rows=rows, depth=depth, columns=columns)
    program, feeds = bound(card, graph)
    check(graph, program.run(feeds))


@pytest.mark.slow
def test_weights_that_our_kernels_pack_are_bound_as_they_are(card: Card) -> None:
    graph = inner(bf16, rows=4, depth=256, columns=256)
    drawn, plan = drawn_for(graph), make_plan(graph, target=CLAIMS)
    made: list[CudaRunner] = []
    for libraries in ("off", "auto"):
        program = CudaGraph(plan, lambda: card.driver, None, None, "always", libraries)
        one = program.bind({"w": drawn["w"]})
        assert isinstance(one, CudaRunner)
        made.append(one)
        card.launches()
        check(graph, one.run({"x": drawn["x"]}))
        assert ("cublaslt" in card.launches()) == (libraries == "auto")
    ours, theirs = ([bool(x.kernel.packed) for x in one.bound.loaded] for one in made)
    assert any(ours) and not any(theirs)


@pytest.mark.slow
@pytest.mark.parametrize("graph", [biased(), inner(), Graph.of({"y": linear()[0] @ linear()[1]})])
def test_arrays_of_the_device_may_move(card: Card, graph: Graph) -> None:
    """Each run reads other arrays and writes a result that the caller keeps, or drops."""
    program, feeds = bound(card, graph)
    arrays = [program.to_device({"x": feeds["x"] * factor}) for factor in (1, 2, 3, 0.5)]
    kept: list[tuple[Any, Array]] = []
    for turn in range(12):
        at = turn * turn % len(arrays)
        made = program.run(arrays[at], outputs="device")["y"]
        right = program.run({"x": arrays[at]["x"].numpy()})["y"]
        kept.append((made, right))
        if turn % 3 == 0:
            kept.clear()
    for made, right in kept:
        assert np.array_equal(made.numpy(), right)
    assert "cublaslt" in card.launches()


@pytest.mark.slow
def test_a_result_that_moves_is_copied_as_it_is_rounded(card: Card) -> None:
    x, w = linear(bf16)
    graph = Graph.of({"y": x @ w})
    program, feeds = bound(card, graph)
    check(graph, program.run(feeds))
    assert card.launches() == ["copy", "cublaslt", "library_sum"]
    assert card.library.problems[0][3].kind == 14


@pytest.mark.slow
def test_a_donated_input_is_overwritten(card: Card) -> None:
    x, w = input("x", f32[32, 32]), param("w", f32[32, 32])
    graph = Graph.of({"y": x + library.gelu(x @ w)}).donate({"y": "x"})
    program, feeds = bound(card, graph)
    expected = np.array(program.run({"x": feeds["x"].copy()})["y"])
    for _ in range(3):
        there = program.to_device({"x": feeds["x"]})
        address = there["x"].address
        found = program.run(there, outputs="device")["y"]
        assert found.address == address and np.array_equal(found.numpy(), expected)
    assert "cublaslt" in card.launches()


def layers(count: int = 3, dtype: DType = f32) -> Graph:
    x = input("x", dtype[24, 32])
    for layer in range(count):
        x = x + library.gelu(x @ param(f"w{layer}", dtype[32, 32]))
    return Graph.of({"y": x})


@pytest.mark.slow
def test_equal_layers_are_measured_once(card: Card) -> None:
    graph = layers()
    program, feeds = bound(card, graph)
    check(graph, program.run(feeds), scale=4.0)
    assert card.launches().count("cublaslt") == 3
    # The first reads an input, which is copied.
    assert card.library.calls.count("cublasLtMatmulAlgoGetHeuristic") == 2


@pytest.mark.slow
def test_a_plan_with_a_step_on_the_host_runs_launches_one_by_one(card: Card) -> None:
    x, w = linear(f64)
    graph = Graph.of({"y": ops.tanh(ops.erf(x @ w) @ param("v", f64[40, 16]))})
    program, feeds = bound(card, graph)
    for _ in range(3):
        check(graph, program.run(feeds))
        assert card.launches().count("cublaslt") == 2


@pytest.mark.slow
def test_times_of_steps_are_those_of_their_launches(card: Card) -> None:
    program, feeds = bound(card, biased())
    card.library.seconds = 0.5
    outputs, marks = program.run_marked(feeds)
    check(biased(), outputs)
    (mark,) = marks
    assert 0.5e9 < mark.end - mark.begin < 0.6e9


@pytest.mark.slow
def test_threads_run_at_once(card: Card) -> None:
    graph = biased()
    program, feeds = bound(card, graph)
    expected = program.run(feeds)["y"].tobytes()
    found: list[bytes] = []

    def work() -> None:
        for _ in range(4):
            found.append(program.run(feeds)["y"].tobytes())

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 16


@pytest.mark.slow
def test_frames_of_other_shapes_do_not_share_a_graph(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that goes gives its graph to the next one, which updates its nodes; those of the library cannot be."""
    monkeypatch.setattr(runner, "MOST_FRAMES", 1)
    x, w = linear()
    graph = Graph.of({"y": ops.tanh(x @ w), "e": ops.exp(input("z", f32["n"]))})
    x_of, w_of = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((24, 8), (8, 40)))
    program = card.compile(graph).bind({"w": w_of})
    card.launches()
    for turn in range(12):
        z_of = np.full(4 + turn // 3 % 2, turn, np.float32)
        found = program.run({"x": x_of * turn / 50, "z": z_of})
        assert "cublaslt" in card.launches()
        assert_close(found["y"], np.tanh(x_of.astype(np.float64) * turn / 50 @ w_of), f32)
        assert_close(found["e"], np.exp(z_of), f32)
