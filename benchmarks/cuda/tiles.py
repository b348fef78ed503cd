"""Products of matrices on an NVIDIA GPU with every tile that fits: the time of each kernel, and which one is chosen.

    PYTHONPATH=src python3 benchmarks/cuda/tiles.py [rows x depth x columns ...] [--tiles]

Times are those of the kernels on the device, by torch's profiler, the median of many runs over rotating operands. What
cuBLAS takes for the product alone stands beside them. Without --tiles only the chosen tile runs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
from profiled import device_events  # pyright: ignore

import dovetail
from dovetail import Graph, Value, library, ops
from dovetail.ir.dtype import bf16
from dovetail.kernels.gpu.gemm import tile as tile_module
from dovetail.kernels.gpu.gemm.tile import PIPELINED_TILES, BlockTile

SHAPES = (
    (4096, 4096, 4096, ""),
    (4096, 768, 768, "added"),
    (4096, 768, 2304, "bias"),
    (4096, 768, 3072, "gelu"),
    (4096, 3072, 768, "added"),
    (4096, 384, 1152, "bias"),
    (4096, 384, 384, "added"),
    (4096, 384, 1536, "gelu"),
    (4096, 1536, 384, "added"),
    (512, 1024, 3072, "swiglu"),
    (512, 1024, 4096, "bias"),
    (512, 3072, 1024, "added"),
    (128, 768, 2304, "bias"),
    (128, 768, 768, "added"),
    (128, 768, 3072, "gelu"),
    (128, 3072, 768, "added"),
    (128, 384, 1536, "gelu"),
    (128, 1536, 384, "added"),
)
"""Rows, depth, columns and epilogue: those of BERT, MiniLM and a decoder."""
RUNS = 30
NUMBERS = itertools.count()


def graph_of(rows: int, depth: int, columns: int, epilogue: str, number: int) -> Graph:
    """The number makes graphs differ: a process compiles equal ones once."""

    def one(name: str, *shape: int) -> Value:
        return dovetail.input(f"{name}{number}", bf16[shape])

    x, w = one("x", rows, depth), one("w", depth, columns)
    made = {
        "": lambda: ops.matmul(x, w),
        "bias": lambda: library.linear(x, w, one("b", columns)),
        "gelu": lambda: library.linear(x, w, one("b", columns), act="gelu"),
        "added": lambda: library.matmul_add(x, w, one("z", rows, columns)),
        "swiglu": lambda: library.swiglu(x, one("u", depth, columns), w),
    }
    return Graph.of({"y": made[epilogue]()})


def timed(torch: Any, step: Callable[[], object]) -> float:
    """The median microseconds of the kernels of a step."""
    times = [e.time_range.elapsed_us() for e in device_events(torch, step, RUNS)]
    kernels = max(1, len(times) // RUNS)
    return statistics.median(times) * kernels


def measured(torch: Any, shape: tuple[int, int, int, str], tile: BlockTile | None, *, own: bool) -> tuple[float, float]:
    """Microseconds with a tile, and the error against float64; the chosen tile where none is given."""
    tiles = tile_module.PIPELINED_TILES if own else () if tile is None else (tile,)
    program = dovetail.compile(graph_of(*shape, next(NUMBERS)), target="cuda", cache="off")
    rng = np.random.default_rng(0)
    feeds = {
        str(v.attrs["name"]): (rng.normal(size=[n for n in v.shape if isinstance(n, int)]) / 8).astype(bf16.numpy)
        for v in program.graph.inputs
    }
    # Kernels are selected when parameters are bound.
    with patch.object(tile_module, "PIPELINED_TILES", tiles):
        there = program.to_device(feeds)
        made = torch.from_dlpack(program.run(there, outputs="device")["y"]).double()
    a = {n.rstrip("0123456789"): torch.from_dlpack(x).double() for n, x in there.items()}
    exact = a["x"] @ a["w"] + a.get("b", 0) + a.get("z", 0)
    if shape[3] == "gelu":
        exact = torch.nn.functional.gelu(exact)
    if shape[3] == "swiglu":
        exact = torch.nn.functional.silu(exact) * (a["x"] @ a["u"])
    error = float((made - exact).norm() / exact.norm())
    return timed(torch, lambda: program.run(there, outputs="device")), error


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", nargs="*", help="such as 4096x768x3072")
    parser.add_argument("--tiles", action="store_true")
    args = parser.parse_args()
    from peers import torch_here  # pyright: ignore

    torch: Any = torch_here()
    if torch is None:
        return
    for shape in SHAPES:
        rows, depth, columns, epilogue = shape
        name = f"{rows}x{depth}x{columns}"
        if args.shape and name not in args.shape:
            continue
        x, w = (torch.randn(s, device="cuda").bfloat16() / 8 for s in ((rows, depth), (depth, columns)))
        theirs = timed(torch, lambda x=x, w=w: torch.mm(x, w)) * (2 if epilogue == "swiglu" else 1)
        chosen, error = measured(torch, shape, None, own=True)
        print(
            f"bench tile_{name}_{epilogue or 'plain'} target=cuda us={chosen:.1f} cublas_us={theirs:.1f} "
            f"ratio={theirs / chosen:.2f} error={error:.1e}",
            flush=True,
        )
        others = {"without producer": None} | {
            f"{t.rows}x{t.columns} {t.stages} stages {t.blocks} blocks": t for t in PIPELINED_TILES
        }
        for label, tile in others.items() if args.tiles else ():
            try:
                found, error = measured(torch, shape, tile, own=False)
                print(f"    {label}: {found:.1f} us error={error:.1e}", flush=True)
            except Exception as failed:
                print(f"    {label}: {type(failed).__name__} {str(failed)[:90]}", flush=True)


if __name__ == "__main__":
    main()
