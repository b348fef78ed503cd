"""Products with weights in blocks beside the f32 product: GFLOP/s and GB/s of weights by the number of rows.

    python benchmarks/blocks.py [--rows 1 4 64] [--formats q4_0] [--k 1024] [--n 16384] [--rounds 9]

One thread, its processor time, the least of rounds in which all take turns. Bytes are those of the stored blocks.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bf16, f16, f32, u8
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS
from dovetail.runtime.program import Program
from dovetail.settings import Precision

ROWS = (1, 2, 4, 8, 16, 64)
FLOATS = "f32"
PRECISIONS: tuple[Precision, ...] = ("exact", "fast")
HALVES = {"f16": f16, "bf16": bf16}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS))
    parser.add_argument("--formats", nargs="*", default=["q8_0", "q4_0", "q4_1", "q4_k", "q6_k"])
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--n", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    programs = {(FLOATS, "exact"): _program(FLOATS, given.n, given.k, "exact")}
    for name in given.formats:
        for precision in PRECISIONS:
            programs[name, precision] = _program(name, given.n, given.k, precision)
    print(
        f"{'':14}"
        + "".join([f"{f'{m} rows':>18}" for m in given.rows])
        + f"\n{'':14}"
        + f"{'GFLOP/s   GB/s':>18}" * len(given.rows)
    )
    best: dict[tuple[str, str, int], float] = {}
    for _ in range(given.rounds):
        for (name, precision), program in programs.items():
            for m in given.rows:
                seconds = _seconds(program, m, given.k)
                best[name, precision, m] = min(seconds, best.get((name, precision, m), seconds))
    for name, precision in programs:
        size = _bytes(name, given.n, given.k)
        found = [best[name, precision, m] for m in given.rows]
        cells = [
            f"{2e-9 * m * given.k * given.n / s:11.1f}{1e-9 * size / s:7.1f}"
            for m, s in zip(given.rows, found, strict=True)
        ]
        print(f"{name:7}{precision:7}" + "".join(cells))
    return 0


def _bytes(name: str, n: int, k: int) -> int:
    if name == FLOATS or name in HALVES:
        return (2 if name in HALVES else 4) * n * k
    return n * k // FORMATS[name].elements * FORMATS[name].bytes


def _program(name: Any, n: int, k: int, precision: Precision) -> Program:
    """x @ w with weights of a format."""
    rng = np.random.default_rng(0)
    x = leaf.input("x", f32[symbol("m"), k])
    if name in HALVES:
        weights: Array = rng.normal(size=(n, k)).astype(HALVES[name].numpy)
        graph = Graph.of(
            {"y": x @ ops.permute(ops.cast(leaf.param("w", HALVES[name][n, k]), dtype=f32), order=(-1, -2))}
        )
    elif name == FLOATS:
        weights = rng.normal(size=(k, n)).astype(np.float32)
        graph = Graph.of({"y": x @ leaf.param("w", f32[k, n])})
    else:
        weights = rng.integers(0, 60, (n, _bytes(name, n, k) // n), dtype=np.uint8)
        blocks = library.dequantise_blocks(leaf.param("w", u8[weights.shape]), format=name)
        graph = Graph.of({"y": x @ ops.permute(blocks, order=(-1, -2))})
    return dovetail.compile(graph, threads=1, precision=precision).bind({"w": weights})


def _seconds(program: Program, m: int, k: int) -> float:
    x = np.random.default_rng(m).normal(size=(m, k)).astype(np.float32)
    program.run({"x": x})
    start = time.thread_time()
    program.run({"x": x})
    return time.thread_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
