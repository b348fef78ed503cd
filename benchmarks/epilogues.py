"""Elementwise steps inside the kernel before them, beside the same program without: `python benchmarks/epilogues.py`.

Both programs run in turn in one process; times are medians. `--threads 1` runs on one thread, names pick cases. `--cpu`
counts the processor's time instead of the clock's, for machines that others use too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

import dovetail as dt
from dovetail import Graph, Value, library, ops
from dovetail.dtypes import bf16, f16, f32
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array

ROUNDS = 41
PASS = "fuse_epilogues"
MATMULS = ((16, 384, 1536), (128, 384, 1536), (1024, 64, 512), (3136, 96, 384))
"""m, k, n."""
CONVS = (
    (32, 32, 3, 56, 1),
    (64, 64, 1, 56, 1),
    (128, 128, 3, 28, 1),
    (256, 256, 1, 14, 1),
    (96, 384, 1, 56, 1),
    (384, 96, 1, 56, 1),
    (32, 64, 3, 112, 1),
    (192, 192, 3, 56, 192),
)
"""Channels, filters, window, height and width, groups. The results of the last four do not fit L2."""
ROWS = ((128, 768), (1024, 1024))


def quick_gelu(y: Value) -> Value:
    return y * ops.sigmoid(y * 1.702)


def hard_swish_after_affine(y: Value) -> Value:
    """What PP-OCR has after its convolutions: a scalar product and sum, hard swish, and both once more."""
    y = y * 1.25 + 0.1
    return (y * ops.relu6(y + 3.0) / 6.0) * 0.75 - 0.2


UNARY: Mapping[str, Callable[[Value], Value]] = {
    "leaky_relu": lambda y: ops.leaky_relu(y, slope=0.1),
    "quick_gelu": quick_gelu,
    "affine hard_swish": hard_swish_after_affine,
    "cast f16": lambda y: ops.cast(y, dtype=f16),
    "cast bf16": lambda y: ops.cast(y, dtype=bf16),
}


def matmul_cases(m: int, k: int, n: int) -> dict[str, Value]:
    y = input("x", f32[m, k]) @ param("w", f32[k, n]) + param("b", f32[n])
    found = {name: of(y) for name, of in UNARY.items()}
    found["layer scale"] = y * param("s", f32[n]) + input("r", f32[m, n])
    found["product"] = y * input("z", f32[m, n])
    found["product with a value"] = y * ops.sqrt(input("z", f32[m, n]))
    return {f"matmul {m}x{k}x{n} {name}": value for name, value in found.items()}


def conv_cases(channels: int, filters: int, window: int, side: int, groups: int) -> dict[str, Value]:
    x, w = input("x", f32[1, channels, side, side]), param("w", f32[filters, channels // groups, window, window])
    y = ops.conv(x, w, padding=(window // 2,) * 4, groups=groups) + param("b", f32[filters, 1, 1])
    found = {name: of(y) for name, of in UNARY.items()}
    full = input("z", f32[1, filters, side, side])
    found["layer scale and residual"] = y * param("s", f32[filters, 1, 1]) + full
    found["squeeze and excite"] = ops.relu(y) * input("s", f32[1, filters, 1, 1])
    found["product"] = y * full
    found["gate, cast f16"] = ops.cast(y * ops.sigmoid(y) * full, dtype=f16)
    kind = "depthwise" if groups > 1 else f"conv {channels}->{filters}"
    return {f"{kind} {window}x{window} at {side} {name}": value for name, value in found.items()}


def row_cases(m: int, n: int) -> dict[str, Value]:
    x, z, s = input("x", f32[m, n]), input("z", f32[m, n]), param("s", f32[n])
    norm = library.layer_norm(x, param("gain", f32[n]), param("bias", f32[n]), eps=1e-5)
    found = {
        "norm, cast f16": ops.cast(norm, dtype=f16),
        "norm, layer scale": norm * s + z,
        "exp, norm": library.layer_norm(ops.exp(x) * s, param("gain", f32[n]), param("bias", f32[n]), eps=1e-5),
        "scale and mask, softmax": library.softmax(x * 0.125 + z),
        "product, sum": ops.reduce_sum(x * z, axes=(-1,)),
        "l2 normalise": x / ops.sqrt(ops.reduce_sum(x * x, axes=(-1,)) + 1e-6),
    }
    return {f"rows {m}x{n} {name}": value for name, value in found.items()}


def drawn(values: tuple[Value, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {v.attrs["name"]: rng.standard_normal(v.shape).astype(np.float32) for v in values}  # type: ignore[arg-type]


def measure(value: Value, threads: int, clock: Callable[[], float]) -> tuple[float, float, bool, bool]:
    """Seconds of a run apart and together, whether anything joined, and whether the results are equal bit for bit."""
    graph = Graph.of(value)
    programs = [dt.compile(graph, threads=threads, without=without) for without in ([PASS], [])]
    params, feeds = drawn(graph.parameters), drawn(graph.inputs)
    bound = [program.bind(params) for program in programs]
    results = [each.run(feeds)["y"] for each in bound]
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for each, kept in zip(bound, times, strict=True):
            started = clock()
            each.run(feeds)
            kept.append(clock() - started)
    joined = len(programs[1].report.kernels) < len(programs[0].report.kernels)
    return median(times[0]), median(times[1]), joined, results[0].tobytes() == results[1].tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="measure the cases that have one of these words in their name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.cpu else time.perf_counter
    cases = {name: v for size in MATMULS for name, v in matmul_cases(*size).items()}
    cases |= {name: v for size in CONVS for name, v in conv_cases(*size).items()}
    cases |= {name: v for size in ROWS for name, v in row_cases(*size).items()}
    print(f"{'case':48} {'apart':>10} {'together':>10} {'gain':>7}")
    for name, value in cases.items():
        if given.names and not any(word in name for word in given.names):
            continue
        apart, together, joined, same = measure(value, given.threads, clock)
        note = ("" if joined else "  not joined") + ("" if same else "  rounded otherwise")
        print(f"{name:48} {apart * 1e6:8.1f}µs {together * 1e6:8.1f}µs {100 * (apart / together - 1):6.1f}%{note}")


if __name__ == "__main__":
    main()
