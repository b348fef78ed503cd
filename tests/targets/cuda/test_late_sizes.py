"""Plans with sizes that a run finds while it runs, on the simulated device."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, Value, compile, ops
from dovetail.errors import BindError
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_, f16, f32, i64
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.backend import SIMULATED
from tests.targets.cuda.simulated import SimulatedDriver, target_of

X, MASK = input("x", f32["n", 5]), input("mask", bool_["n"])


def kept_rows() -> Value:
    """The rows of x where the mask holds, scaled and sorted."""
    rows = ops.compress(X * 2.0, MASK, axis=-2, count=symbol("kept"))
    return ops.sort(ops.exp(rows))[0]


def feeds(n: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, 5)).astype(np.float32), "mask": rng.random(n) < 0.5}


@pytest.mark.slow
def test_kernels_run_at_sizes_that_the_run_found() -> None:
    graph = Graph.of({"rows": kept_rows(), "x": X + 1.0})
    device = SimulatedDriver()
    program = compile(graph, target=target_of(device))
    for n, seed in ((7, 0), (50, 1), (7, 2), (0, 3), (1, 4)):
        given = feeds(n, seed)
        expected = evaluate(graph, given)
        found = program.run(given)
        for name, array in expected.items():
            assert found[name].shape == array.shape
            np.testing.assert_allclose(found[name], array, rtol=1e-6)
    assert any(name.startswith("launch") for name in device.log)


@pytest.mark.exhaustive
def test_a_run_gives_its_memory_back() -> None:
    device = SimulatedDriver()
    program = compile(Graph.of({"y": kept_rows()}), target=target_of(device))
    for _ in range(3):
        program.run(feeds(40))
    held = len(device.memory)
    for _ in range(5):
        program.run(feeds(40))
    assert len(device.memory) == held


def test_an_index_out_of_range_is_an_error_after_a_late_size() -> None:
    places = ops.squeeze(ops.nonzero(MASK, count=symbol("kept")), axes=(-2,))
    value = ops.gather(input("w", f32[9, 2]), places + input("more", i64[()]), axis=-2)
    program = compile(Graph.of({"y": value}), target=SIMULATED)
    given = {"w": np.ones((9, 2), np.float32), "mask": np.ones(4, bool)}
    assert program.run({**given, "more": np.array(5)})["y"].shape == (4, 2)
    with pytest.raises(BindError, match="index 9 into an axis of size 9"):
        program.run({**given, "more": np.array(6)})
    assert program.run({**given, "more": np.array(5)})["y"].shape == (4, 2), "the flag is cleared"


@pytest.mark.slow
def test_convolutions_and_host_steps_go_with_late_sizes() -> None:
    """Packed filters are found, and results of the host keep their layout."""
    image, w = input("image", f16[1, 16, 6, 6]), param("w", f16[16, 16, 3, 3])
    found = ops.conv(ops.relu(ops.conv(image, w, padding=1)), w, padding=1)
    kept = ops.compress(found, MASK, axis=-3, count=symbol("kept"))
    graph = Graph.of({"y": ops.neg(kept)})
    rng = np.random.default_rng(0)
    weights = {"w": (rng.normal(size=(16, 16, 3, 3)) / 12).astype(np.float16)}
    given = {"image": rng.normal(size=(1, 16, 6, 6)).astype(np.float16), "mask": rng.random(16) < 0.5}
    expected = evaluate(graph, given, params=weights)["y"]
    got = compile(graph, target=SIMULATED).bind(weights).run(given)["y"]
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_donated_inputs_are_written() -> None:
    total = X + ops.reduce_sum(kept_rows(), axes=(-2,))
    graph = Graph.of({"y": total}).donate({"y": "x"})
    given = feeds(20)
    expected = evaluate(Graph.of({"y": total}), given)["y"]
    program = compile(graph, target=SIMULATED)
    found = program.run(given)["y"]
    np.testing.assert_allclose(given["x"], expected, rtol=1e-5)
    assert found is given["x"]


@pytest.mark.slow
@pytest.mark.parametrize("trips", [5, 70, "n"])
def test_loops_that_are_not_unrolled_run_on_the_host(trips: int | str) -> None:
    """A scan of a few trips becomes kernels; a longer one, and one of any length, is a step of the host."""
    xs = input("xs", f32[trips, 3])

    def step(total: Value, x: Value) -> tuple[Value, Value]:
        return total * 0.5 + x, total

    scanned = ops.scan(step, [input("start", f32[3])], [ops.neg(xs)])
    program = compile(Graph.of({"last": scanned.carries[0] * 2.0, "trail": scanned.outputs[0]}), target=SIMULATED)
    on_host = [s for s in program.plan.phase("run") if s.value.op.name == "scan"]
    assert len(on_host) == (trips != 5)
    count = trips if isinstance(trips, int) else 9
    given = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    total, trail = np.ones(3), list[Array]()
    for x in -given.astype(np.float64):
        trail.append(total)
        total = total * 0.5 + x
    for _ in range(2):
        found = program.run({"xs": given, "start": np.ones(3, np.float32)})
        np.testing.assert_allclose(found["last"], 2 * total, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["trail"], np.stack(trail), rtol=1e-5, atol=1e-5)


def test_a_loop_without_a_limit_runs_on_the_host() -> None:
    def goes_on(x: Value) -> Value:
        return ops.squeeze(ops.less(ops.reduce_max(x, axes=(-1,)), 100.0), axes=(-1,))

    looped = ops.while_loop(goes_on, lambda x: x * 2.0, [ops.exp(input("x", f32[4]))])
    program = compile(Graph.of({"y": ops.neg(looped.carries[0])}), target=SIMULATED)
    given = np.array([0.0, 1.0, -1.0, 0.5], np.float32)
    # e is the largest: six times doubled, it is the first above 100.
    np.testing.assert_allclose(program.run({"x": given})["y"], -64 * np.exp(given.astype(np.float64)), rtol=1e-5)
