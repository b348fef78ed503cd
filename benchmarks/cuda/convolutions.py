"""Layers of ResNet-50 on an NVIDIA GPU: the time of each kernel, in the model and alone with every tile that fits.

    PYTHONPATH=src python3 benchmarks/cuda/convolutions.py [layer ...] [--model] [--tiles]

Times are those of the kernels on the device, by torch's profiler, the median of many runs. --model prints each kernel
of the model in order. --tiles runs each layer with every tile and part of k; without it the chosen ones alone run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from converted import half  # pyright: ignore
from models import MODELS, torch_here  # pyright: ignore
from profiled import device_events  # pyright: ignore

import dovetail
from dovetail import Graph, ops
from dovetail.bench.workloads import feeds_for
from dovetail.kernels.gpu.gemm import tile as tile_module
from dovetail.kernels.gpu.gemm.tile import DEPTH, PIPELINED_TILES, SPLITS, TALL_TILES, BlockTile
from dovetail.targets.cuda.runs.run import steps_of

RUNS = 20
EVERY = (*PIPELINED_TILES, *TALL_TILES)
Layer = tuple[int, int, int, int, int]
LAYERS: tuple[Layer, ...] = (
    (64, 64, 56, 1, 1),
    (64, 64, 56, 3, 1),
    (64, 256, 56, 1, 1),
    (256, 64, 56, 1, 1),
    (256, 128, 56, 1, 1),
    (128, 128, 56, 3, 2),
    (128, 128, 28, 3, 1),
    (256, 512, 56, 1, 2),
    (128, 512, 28, 1, 1),
    (512, 128, 28, 1, 1),
    (512, 256, 28, 1, 1),
    (256, 256, 14, 3, 1),
    (256, 1024, 14, 1, 1),
    (1024, 256, 14, 1, 1),
    (1024, 512, 14, 1, 1),
    (512, 512, 7, 3, 1),
    (512, 2048, 7, 1, 1),
    (2048, 512, 7, 1, 1),
)
"""Channels, filters, size, window and stride; a layer with more filters than channels adds a residual."""
IMAGES = 32


def in_order(torch: Any, step: Callable[[], object]) -> list[tuple[str, float]]:
    """The kernels of a step in order, with the median microseconds of each."""
    events = device_events(torch, step, RUNS)
    events.sort(key=lambda e: e.time_range.start)
    count = max(1, len(events) // RUNS)
    whole = events[: count * RUNS]
    return [
        (whole[i].name, statistics.median(e.time_range.elapsed_us() for e in whole[i::count])) for i in range(count)
    ]


def model(torch: Any) -> None:
    """Each kernel of the model, with what it computes."""
    made = half(MODELS["resnet50_32"][1]())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(made.SerializeToString())
        program = dovetail.compile(path, target="cuda")
    there = program.to_device(feeds_for(made))
    times = in_order(torch, lambda: program.run(there, outputs="device"))
    steps = [(step, kernel) for step, kernels in steps_of(program.plan) for kernel in kernels or ()]
    for number, (name, time) in enumerate(times):
        told = ""
        if len(steps) == len(times):
            step, kernel = steps[number]
            launch = kernel.kernel.launch
            shapes = " ".join("x".join(map(str, v.shape)) for v in (*step.value.operands[:2], step.results[0]))
            told = f"{shapes} grid={launch and launch.grid} block={launch and launch.block}"
        print(f"    {time:8.1f} us {name[:24]:24s} {told}", flush=True)
    print(f"bench resnet50_32_kernels target=cuda us={sum(t for _, t in times):.1f} kernels={len(times)}", flush=True)


def measured(torch: Any, layer: Layer, tiles: Sequence[BlockTile], parts: Sequence[int]) -> tuple[float, float]:
    """Microseconds of a layer with the best of some tiles and parts of k, and the error against float64."""
    channels, filters, size, window, stride = layer
    around, rng = window // 2, np.random.default_rng(0)
    w, b = (
        (rng.normal(size=s) / (channels * window**2) ** 0.5).astype(np.float16)
        for s in ((filters, channels, window, window), (filters, 1, 1))
    )
    x = dovetail.input("x", dovetail.dtypes.f16[IMAGES, size, size, channels])
    sums = ops.conv(ops.permute(x, order=(-4, -1, -3, -2)), dovetail.graphs.constant(w), strides=stride, padding=around)
    sums = sums + dovetail.graphs.constant(b)
    out = (size - 1) // stride + 1
    given = {"x": rng.normal(size=(IMAGES, size, size, channels)).astype(np.float16)}
    if filters > channels:
        other = dovetail.input("z", dovetail.dtypes.f16[IMAGES, out, out, filters])
        sums = sums + ops.permute(other, order=(-4, -1, -3, -2))
        given["z"] = rng.normal(size=(IMAGES, out, out, filters)).astype(np.float16)
    y = ops.permute(ops.relu(sums), order=(-4, -2, -1, -3))
    graph = Graph.of({"y": ops.mul(y, y)})
    with (
        patch.object(tile_module, "PIPELINED_TILES", tiles),
        patch.object(tile_module, "TALL_TILES", ()),
        patch.object(tile_module, "SPLITS", parts),
    ):
        program = dovetail.compile(graph, target="cuda", cache="off")
        there = program.to_device(given)
        found = torch.from_dlpack(program.run(there, outputs="device")["y"]).double()
    a = {n: torch.from_dlpack(v).permute(0, 3, 1, 2).double() for n, v in there.items()}
    weight, bias = torch.from_numpy(w).cuda().double(), torch.from_numpy(b.reshape(-1)).cuda().double()
    exact = (torch.nn.functional.conv2d(a["x"], weight, bias, stride, around) + a.get("z", 0)).relu().square()
    error = float((found - exact.permute(0, 2, 3, 1)).norm() / exact.norm())
    return sum(t for _, t in in_order(torch, lambda: program.run(there, outputs="device"))), error


def one_by_one(torch: Any, layer: Layer) -> None:
    """A layer with each tile, and without a producer."""
    rounds = -(-layer[0] * layer[3] ** 2 // DEPTH)
    choices: list[tuple[Sequence[BlockTile], int]] = [((), 1)]
    choices += [((tile,), p) for tile in EVERY for p in (1, 2, 4) if p == 1 or (rounds % p == 0 and rounds >= 2 * p)]
    for tiles, parts in choices:
        label = "".join(f"{t.rows}x{t.columns} {t.stages} stages {t.blocks} blocks {parts} parts" for t in tiles)
        try:
            time, error = measured(torch, layer, tiles, (parts,) if tiles else SPLITS)
            print(f"    {label or 'without producer'}: {time:.1f} us error={error:.1e}", flush=True)
        except Exception as failed:
            print(f"    {label}: {type(failed).__name__} {str(failed)[:90]}", flush=True)


def floor(layer: Layer) -> float:
    """Microseconds at 700 TFLOP/s and 4 TB/s."""
    channels, filters, size, window, stride = layer
    pixels = IMAGES * ((size - 1) // stride + 1) ** 2
    read = pixels * channels * (stride**2 if window > 1 else 1)
    nbytes = 2 * (read + pixels * filters * (2 if filters > channels else 1))
    return max(2 * pixels * channels * filters * window**2 / 700e6, nbytes / 4e6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("layer", nargs="*", help="such as 64x64x56x3x1")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    args = parser.parse_args()
    torch: Any = torch_here()
    if torch is None:
        return
    if args.model:
        model(torch)
    for layer in LAYERS:
        name = "x".join(map(str, layer))
        if args.layer and name not in args.layer:
            continue
        time, error = measured(torch, layer, EVERY, SPLITS)
        print(f"bench layer_{name} target=cuda us={time:.1f} floor={floor(layer):.1f} error={error:.1e}", flush=True)
        if args.tiles:
            one_by_one(torch, layer)


if __name__ == "__main__":
    main()
