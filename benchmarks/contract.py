"""GEMM kernels against NumPy (OpenBLAS) and ONNX Runtime: GFLOP/s, and GB/s of weights.

    python benchmarks/contract.py [--threads 1] [--rows 1 16 128] [--seconds 0.3] [--models MiniLM]

All of them take turns; each number is the lower quartile, since what disturbs a machine only ever takes time. With one
thread that is the processor's time of the thread, with more the wall clock's. The peak is a loop of independent fused
multiply-adds on one core, times the threads. Weights change from turn to turn where --cold is given, so that they come
from memory.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHAPES = {
    "MiniLM": [(384, 384), (384, 1536), (1536, 384)],
    "BERT-base": [(768, 768), (768, 3072), (3072, 768)],
    "decoder": [(1024, 2048), (1024, 3072), (3072, 1024), (1024, 32000)],
}
ROWS = (1, 2, 4, 8, 16, 32, 128, 1024)
CHAINS = 20
"""Sums of the peak's loop: enough to hide the latency of one."""
COLD_BYTES = 600_000_000
"""Weights that are gone through in turn where none may be in a cache."""
ACTS = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")


@dataclass(frozen=True, slots=True)
class Row:
    """One shape: the seconds of each contender, and of the peak's loop for as many multiplications."""

    m: int
    k: int
    n: int
    seconds: dict[str, float]

    def rate(self, name: str) -> float:
        """GFLOP/s."""
        return 2e-9 * self.m * self.k * self.n / self.seconds[name]

    @property
    def bandwidth(self) -> float:
        """GB/s of weights that are read once."""
        return 4e-9 * self.k * self.n / self.seconds["dovetail"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS))
    parser.add_argument("--seconds", type=float, default=0.3, help="of each shape")
    parser.add_argument("--models", nargs="*", default=list(SHAPES))
    parser.add_argument("--act", choices=ACTS, help="a linear with this activation in the place of a plain product")
    parser.add_argument("--cold", action="store_true", help="take other weights in every turn")
    options = parser.parse_args()
    # OpenBLAS reads it once, when NumPy is imported.
    os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
    print(f"{options.threads} threads; GFLOP/s, and of the peak; GB/s of weights")
    names = ("dovetail", "NumPy", "ORT", "peak")
    print(f"{'model':<10} {'m':>5} {'k':>5} {'n':>6} {' '.join(f'{name:>8}' for name in names)}  share  GB/s")
    for model in options.models:
        for k, n in SHAPES[model]:
            for row in measured(k, n, options):
                rates = [row.rate(name) for name in names]
                print(
                    f"{model:<10} {row.m:>5} {k:>5} {n:>6} {' '.join(f'{rate:>8.1f}' for rate in rates)} "
                    f"{rates[0] / rates[-1]:>6.0%} {row.bandwidth:>5.1f}",
                    flush=True,
                )
    return 0


def measured(k: int, n: int, options: argparse.Namespace) -> list[Row]:
    """One weight at several numbers of rows, all from one code."""
    import numpy as np

    rng = np.random.default_rng(0)
    w = rng.normal(size=(k, n)).astype(np.float32)
    count = max(2, COLD_BYTES // w.nbytes) if options.cold else 1
    weights = [w, *(w.copy() for _ in range(count - 1))]
    product = Product(w, options.threads, options.act)
    packed = [product.pack(w) for w in weights]
    sessions = [_onnxruntime(w, options.threads) for w in (weights[:4] if options.cold else weights)]
    spin = _peak()
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    found: list[Row] = []
    for m in options.rows:
        x = rng.normal(size=(m, k)).astype(np.float32)
        y = np.empty((m, n), np.float32)
        spins = max(1, int(m * k * n / options.threads / (16 * CHAINS)))
        calls = [product.call(x, y, p) for p in packed]
        assert options.act not in (None, "none") or np.allclose((calls[0](), y)[1], x @ w, 1e-3, 1e-3)

        def numpy_product(turn: int, x: Any = x, y: Any = y) -> object:
            return np.matmul(x, weights[turn % count], out=y)

        contenders: dict[str, Callable[[int], object]] = {
            "dovetail": lambda turn, calls=calls: calls[turn % count](),
            "NumPy": numpy_product,
            "ORT": lambda turn, x=x: sessions[turn % len(sessions)](x),
            "peak": lambda turn, spins=spins: spin(spins),
        }
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        end = time.perf_counter() + options.seconds
        turn = 0
        while time.perf_counter() < end or turn < 7:
            turn += 1
            for name, run in contenders.items():
                started = clock()
                run(turn)
                taken[name].append(clock() - started)
        found.append(Row(m, k, n, {name: sorted(each)[len(each) // 4] for name, each in taken.items()}))
    return found


class Product:
    """The compiled code of one product, called without anything around it."""

    def __init__(self, w: Any, threads: int, act: str | None) -> None:
        from dovetail import Graph, library
        from dovetail.dtypes import f32
        from dovetail.ir.dim import symbol
        from dovetail.ir.leaf import input, param
        from dovetail.kernels.spec import TensorLocations
        from dovetail.plan.plan import make_plan
        from dovetail.targets.cpu.backend import BACKEND
        from dovetail.targets.cpu.claims import CLAIMS as CPU
        from dovetail.targets.cpu.isa import host_device
        from dovetail.targets.cpu.loops import loops_of
        from dovetail.targets.cpu.select import make_job
        from dovetail.targets.cpu.threads.pool import thread_pool

        k, n = w.shape
        x, weight = input("x", f32[symbol("m"), k]), param("w", f32[k, n])
        chosen: Any = act
        graph = Graph.of(x @ weight if act is None else library.linear(x, weight, act=chosen))
        plan = make_plan(graph, target=CPU)
        (step,) = plan.phase("run")
        job = make_job(step, TensorLocations(plan.locate, (), target=loops_of(host_device())), host_device())
        assert job is not None
        self.job = job
        (self.function,) = BACKEND.code.functions([job])
        self.pool = thread_pool(threads)

    def pack(self, w: Any) -> Any:
        point: Any = self.job.bindings["b0"]
        return point.pack(w)

    def call(self, x: Any, y: Any, packed: Any) -> Callable[[], object]:
        import numpy as np

        from dovetail.targets.runtime.calls.launch_args import chunk_of, number
        from dovetail.targets.runtime.calls.launch_table import KIND_COMPILED, empty_table

        sizes = {"m": x.shape[0]}
        arrays = {"a": x, "b0": packed, "c": y}
        words = np.array(
            [*(arrays[p].ctypes.data for p in self.job.kernel.pointers), *(number(s, sizes) for s in self.job.sizes)],
            np.int64,
        )
        tiles, threads = number(self.job.tiled.tiles, sizes), self.pool.threads
        chunk = chunk_of(tiles, number(self.job.tiled.work, sizes), threads)
        table = empty_table(1)
        table[0] = (self.function.address, words.ctypes.data, tiles, chunk, KIND_COMPILED, 0)
        stride = -(-number(self.job.scratch, sizes) // 64) * 64
        scratch = np.empty(stride * threads + 64, np.uint8)
        start = -(-scratch.ctypes.data // 64) * 64
        return lambda: (self.pool.run(table.ctypes.data, 0, 1, start, stride), words, scratch, arrays)


def _onnxruntime(w: Any, threads: int) -> Callable[[Any], object]:
    import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
    from onnx import TensorProto, helper, numpy_helper

    ort: Any = onnxruntime
    k, n = w.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})


def _peak() -> Callable[[int], object]:
    """A loop of independent FMAs of 16 elements, for n iterations."""
    import numpy as np

    from dovetail.targets.cpu.jit import compile_text, host

    lanes = host().lanes
    kind = f"<{lanes} x float>"
    chains = range(CHAINS)
    scale = 16 // lanes
    lines = [
        f"declare {kind} @llvm.fma.v{lanes}f32({kind}, {kind}, {kind})",
        "define void @spin(ptr %p, i64 %turns) {",
        "entry:",
        f"  %x = load {kind}, ptr %p, align 4",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"  %a{c} = phi {kind} [ %x, %entry ], [ %b{c}, %loop ]" for c in chains),
        *(f"  %b{c} = call {kind} @llvm.fma.v{lanes}f32({kind} %a{c}, {kind} %x, {kind} %x)" for c in chains),
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %turns",
        "  br i1 %more, label %loop, label %end",
        "end:",
    ]
    for c in chains:
        lines.append(f"  %q{c} = getelementptr {kind}, ptr %p, i64 {c}")
        lines.append(f"  store {kind} %b{c}, ptr %q{c}, align 4")
    code = compile_text("\n".join([*lines, "  ret void", "}"]))
    spin = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address("spin"))
    room = np.zeros(CHAINS * lanes, np.float32)
    return lambda turns: (spin(room.ctypes.data, turns * scale), code)


if __name__ == "__main__":
    sys.exit(main())
