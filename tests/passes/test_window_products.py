"""Convolutions by filters of a run, and their gradients, are products of what windows see."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import dovetail
import dovetail.targets.cpu.claims
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.passes.lowerings.window_products import multiplies_windows
from dovetail.targets.cpu.claims import CLAIMS
from dovetail.targets.reference.interpreter import evaluate

CASES = {
    "plain": ((3, 8, 7, 6), (8, 8, 3, 3), 1, 1, 1, 1),
    "strided": ((2, 8, 9, 8), (16, 8, 3, 3), 2, 1, 1, 1),
    "dilated, in groups": ((2, 16, 9, 8), (32, 8, 3, 3), 1, 2, 2, 2),
    "of one pixel": ((2, 8, 6, 6), (8, 8, 1, 1), 2, 1, 0, 1),
}


@pytest.fixture(autouse=True)
def on_neon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device for which products of copies are as fast as other kernels, whichever this one is."""
    device = CpuDevice(128, 32, ("fma_by_lane",))
    monkeypatch.setattr(dovetail.targets.cpu.claims, "host_device", lambda: device)


def by_loops(feeds: dict[str, Array], stride: int, dilation: int, padding: int, groups: int) -> dict[str, Array]:
    """The convolution and its gradients in float64, tap by tap."""
    x, w, s = (feeds[name].astype(np.float64) for name in "xws")
    around = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    y, d_around, dw = np.zeros(s.shape), np.zeros(around.shape), np.zeros(w.shape)
    rows, columns = s.shape[2:]
    many, few = w.shape[0] // groups, w.shape[1]
    for group, i, j in product(range(groups), range(w.shape[2]), range(w.shape[3])):
        down = slice(i * dilation, i * dilation + stride * (rows - 1) + 1, stride)
        across = slice(j * dilation, j * dilation + stride * (columns - 1) + 1, stride)
        c, m = slice(group * few, (group + 1) * few), slice(group * many, (group + 1) * many)
        y[:, m] += np.einsum("mc,nchw->nmhw", w[m, :, i, j], around[:, c, down, across])
        dw[m, :, i, j] = np.einsum("nmhw,nchw->mc", s[:, m], around[:, c, down, across])
        d_around[:, c, down, across] += np.einsum("mc,nmhw->nchw", w[m, :, i, j], s[:, m])
    inner = slice(padding, -padding or None)
    return {"y": y, "dx": d_around[:, :, inner, inner], "dw": dw}


def static(value: Value) -> tuple[int, ...]:
    return tuple([size for size in value.shape if isinstance(size, int)])


def drawn(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {str(v.attrs["name"]): rng.normal(size=static(v)).astype(np.float32) for v in graph.inputs}


def with_gradients(name: str) -> Graph:
    shape, filters, stride, dilation, padding, groups = CASES[name]
    x, w = dovetail.input("x", f32[shape]), dovetail.input("w", f32[filters])
    y = ops.conv(x, w, strides=stride, dilations=dilation, padding=padding, groups=groups)
    seed = dovetail.input("s", y.tensor)
    dx, dw = dovetail.graphs.gradient(y, [x, w], seed)
    return Graph.of({"y": y, "dx": dx, "dw": dw}, inputs=(x, w, seed))


@pytest.mark.parametrize("name", CASES)
def test_filters_of_a_run_and_their_gradients(name: str) -> None:
    graph = with_gradients(name)
    lowered = legalize(graph, CLAIMS, lowerings=LOWERINGS).graph
    assert not [value for value in lowered.values if value.op in (ops.conv, ops.conv_transpose)]
    feeds = drawn(graph)
    found = evaluate(lowered, feeds, lift=True)
    for output, expected in by_loops(feeds, *CASES[name][2:]).items():
        np.testing.assert_allclose(found[output], expected, rtol=1e-9, atol=1e-9, err_msg=output)


@pytest.mark.exhaustive
def test_kernels_have_the_numbers() -> None:
    graph = with_gradients("strided")
    program = dovetail.compile(graph, target="cpu", threads=1)
    feeds = drawn(graph)
    found = program.run(feeds)
    for output, expected in by_loops(feeds, *CASES["strided"][2:]).items():
        np.testing.assert_allclose(found[output], expected, rtol=2e-5, atol=2e-5, err_msg=output)
    assert not [step for step in program.plan.steps if step.value.op is ops.conv]


@pytest.mark.slow
def test_images_are_cut_where_copies_are_large() -> None:
    x, w = dovetail.input("x", f32[5, 64, 31, 31]), dovetail.input("w", f32[8, 64, 3, 3])
    graph = Graph.of({"y": ops.conv(x, w, padding=1)}, inputs=(x, w))
    lowered = legalize(graph, CLAIMS, lowerings=LOWERINGS).graph
    assert sum(value.op is ops.matmul for value in lowered.values) == 2
    feeds = drawn(graph) | {"s": np.zeros((5, 8, 31, 31), np.float32)}
    found = evaluate(lowered, drawn(graph), lift=True)["y"]
    np.testing.assert_allclose(found, by_loops(feeds, 1, 1, 1, 1)["y"], rtol=1e-9, atol=1e-9)


def test_what_stays_a_convolution() -> None:
    def taken(images: tuple[int, ...], filters: tuple[int, ...], groups: int = 1) -> bool:
        w = dovetail.input("w", f32[filters])
        return multiplies_windows(ops.conv(dovetail.input("x", f32[images]), w, padding=1, groups=groups))

    assert taken((2, 8, 16, 16), (8, 8, 3, 3))
    assert not taken((2, 8, 64, 64), (8, 8, 3, 3)), "rows are long"
    assert not taken((2, 8, 16, 16), (8, 1, 3, 3), groups=8), "each group has one filter"
    bound = dovetail.param("w", f32[8, 8, 3, 3])
    assert not multiplies_windows(ops.conv(dovetail.input("x", f32[2, 8, 16, 16]), bound, padding=1))
    symbolic = ops.conv(dovetail.input("x", f32[2, 8, "h", "w"]), dovetail.input("f", f32[8, 8, 3, 3]))
    assert not multiplies_windows(symbolic), "sizes are known at run time only"
