"""Networks of convolutions stay below twice the error of plain f32 sums, whatever share of them Winograd serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import make_plan
from dovetail.runtime.compile import explain
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.conv.winograd.rounding import Layers
from dovetail.targets.cpu.loops import loops_of
from tests.kernels.convolving import WIDE, around

Array = NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """A window and its filters; a layer of one pixel keeps the number of channels."""

    window: int
    filters: int


def network(size: int, channels: int, layers: list[Layer]) -> tuple[Graph, dict[str, Array]]:
    """Convolutions in a chain, each with a ReLU, and weights that keep the size of activations."""
    rng = np.random.default_rng(len(layers) + channels)
    x: Value = input("x", f32[1, channels, size, size])
    params: dict[str, Array] = {}
    for i, layer in enumerate(layers):
        shape = (layer.filters, channels, layer.window, layer.window)
        params[f"w{i}"] = (rng.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
        x = ops.relu(ops.conv(x, param(f"w{i}", f32[shape]), padding=(layer.window // 2,) * 4))
        channels = layer.filters
    return Graph.of({"y": x}), params


def plain(x: Array, params: dict[str, Array]) -> Array:
    """The chain as NumPy computes it in the dtype of `x`: one product of matrices for each layer."""
    (x,) = x
    for w in params.values():
        filters, _, window, _ = w.shape
        pad, (_, height, width) = window // 2, x.shape
        padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
        taps = [padded[:, i : i + height, j : j + width] for i in range(window) for j in range(window)]
        columns = np.stack(taps, 1).reshape(-1, height * width)
        sums = w.astype(x.dtype).reshape(filters, -1) @ columns
        x = np.maximum(sums, 0).reshape(filters, height, width)
    return x[None]


NETWORKS = {
    "all 3×3": (28, 40, [Layer(3, 64), Layer(3, 33), Layer(3, 96), Layer(3, 32)]),
    "all 5×5": (24, 32, [Layer(5, 32), Layer(5, 40)]),
    "a third 3×3": (24, 64, [Layer(1, 48), Layer(3, 64), Layer(1, 72)]),
    "one": (33, 130, [Layer(3, 64)]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("size", "channels", "layers"), NETWORKS.values(), ids=NETWORKS)
def test_errors_stay_below_twice_those_of_plain_sums(size: int, channels: int, layers: list[Layer]) -> None:
    graph, params = network(size, channels, layers)
    program = dovetail.compile(graph, target="cpu", params=params, threads=1)
    ours, theirs = 0.0, 0.0
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(1, channels, size, size)).astype(np.float32)
        exact = plain(x.astype(np.float64), params)
        ours += np.log(np.square(program.run({"x": x})["y"] - exact).mean())
        theirs += np.log(np.square(plain(x, params) - exact).mean())
    assert np.exp((ours - theirs) / 8) <= 2


def forms(size: int, channels: int, layers: list[Layer], **options: Any) -> set[str]:
    graph, _ = network(size, channels, layers)
    return {k.form for k in explain(graph, target="cpu", cache="off", **options).kernels if k.phase == "run"}


@pytest.mark.slow
def test_larger_patches_serve_a_third_of_a_network_at_most() -> None:
    few = [Layer(3, 64), Layer(1, 64), Layer(1, 64)]
    assert "winograd 4×4" in forms(28, 64, few)
    many = forms(28, 64, [*few, Layer(3, 64)])
    assert "winograd 2×4" in many and "winograd 4×4" not in many
    assert "winograd 4×4" in forms(28, 64, [*few, Layer(3, 64)], precision="fast")


def test_depthwise_layers_and_small_images_do_not_count() -> None:
    """A depthwise window rounds little, so it leaves no room for layers that round more; a small image takes F(2×2)."""
    found = around((1, 64, 28, 28), 64).outputs["y"]
    depthwise = around((1, 64, 28, 28), 64, groups=64).outputs["y"]
    small = around((1, 64, 14, 14), 64).outputs["y"]
    plan = make_plan(around((1, 64, 28, 28), 64), target=CPU)

    def layers(*steps: Value) -> Layers:
        return Layers.of(TensorLocations(plan.locate, set(), target=loops_of(WIDE), steps=steps))

    assert layers(found, depthwise) == Layers(1, 1) and not layers(found, depthwise).are_mostly_plain
    assert layers(found, small, small) == Layers(3, 1) and layers(found, small, small).are_mostly_plain
    assert layers() == Layers() and layers().are_mostly_plain
    symbolic = around(("n", 64, "h", "w"), 64).outputs["y"]
    assert layers(symbolic) == Layers(1, 1), "sizes that a run finds may be large"
