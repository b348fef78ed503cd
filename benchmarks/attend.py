"""The attend kernel on one thread, against ONNX Runtime, torch and NumPy: `python benchmarks/attend.py`.

Times are medians of interleaved rounds; the share is of the machine's own rate of fused multiply-adds, measured here.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from onnx import TensorProto, helper

from dovetail import Graph, Value, library
from dovetail.codegen.llvm.function import Parameter, Signature
from dovetail.codegen.llvm.handles import Ptr
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dtypes import f32
from dovetail.ir.dim import evaluate, symbol
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.spec import TensorLocations
from dovetail.library.heads import split_heads
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.jit import compile_text, host
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.select import make_job


@dataclass(frozen=True, slots=True)
class Work:
    """One attention: batch, heads of queries and of keys, features of a head, queries and keys."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    d: int
    queries: int
    keys: int
    causal: bool = False
    cached: bool = False
    """Whether keys and values are stored head by head, as in a KV cache."""

    @property
    def flops(self) -> float:
        seen = self.queries * self.keys
        if self.causal:
            seen = self.queries * (self.queries + 1) // 2
        return 4.0 * self.batch * self.heads * seen * self.d


WORKS = (
    Work("minilm 1x16", 1, 12, 12, 32, 16, 16),
    Work("minilm 1x128", 1, 12, 12, 32, 128, 128),
    Work("minilm 8x128", 8, 12, 12, 32, 128, 128),
    Work("bert-base 1x128", 1, 12, 12, 64, 128, 128),
    Work("prefill 1x128 causal", 1, 16, 8, 64, 128, 128, causal=True),
    Work("long 1x1024 causal", 1, 16, 8, 64, 1024, 1024, causal=True),
    Work("whisper 1x1500", 1, 6, 6, 64, 1500, 1500),
    Work("one query, 256 keys", 1, 16, 8, 64, 1, 256, cached=True),
    Work("one query, 4096 keys", 1, 16, 8, 64, 1, 4096, cached=True),
    Work("the same, keys in rows", 1, 16, 8, 64, 1, 4096),
)


class Kernel:
    """The compiled code of one attention on arrays, called without anything around it."""

    def __init__(self, work: Work, feeds: Mapping[str, Array], *, symbolic: bool = True) -> None:
        sq, sk = (symbol("sq"), symbol("sk")) if symbolic and work.queries > 1 else (work.queries, work.keys)
        if work.queries == work.keys:
            sk = sq
        one = {"q": (sq, work.heads), "k": (sk, work.kv_heads), "v": (sk, work.kv_heads)}
        given: dict[str, Value] = {}
        for name, (rows, heads) in one.items():
            if work.cached and name != "q":
                given[name] = input(name, f32[work.batch, heads, rows, work.d])
            else:
                given[name] = split_heads(input(name, f32[work.batch, rows, heads * work.d]), heads)
        groups = None if work.heads == work.kv_heads else work.heads // work.kv_heads
        fill = float("-inf") if work.causal else None
        value = library.attention(
            given["q"], given["k"], given["v"], scale=work.d**-0.5, groups=groups, causal=work.causal, fill=fill
        )
        plan = make_plan(Graph.of(value), target=CPU)
        (step,) = plan.phase("run")
        job = make_job(step, TensorLocations(plan.locate, (), target=loops_of(host_device())), host_device())
        assert job is not None
        started = time.perf_counter()
        (self.function,) = BACKEND.code.functions([job])
        self.seconds = time.perf_counter() - started
        sizes = {"sq": work.queries, "sk": work.keys}
        self.y = np.empty((work.batch, work.heads, work.queries, work.d), np.float32)
        self.feeds = dict(feeds)
        for name in ("k", "v") if work.cached else ():
            x = feeds[name].reshape(work.batch, -1, work.kv_heads, work.d)
            self.feeds[name] = np.ascontiguousarray(x.swapaxes(1, 2))
        points: list[int] = []
        for name in job.kernel.pointers:
            array = self.y if name == "y" else self.feeds[name]
            points.append(array.ctypes.data)
        self.words = np.array([*points, *(evaluate(s, sizes) for s in job.sizes)], np.int64)
        self.scratch = np.empty(evaluate(job.scratch, sizes) + 64, np.uint8)
        entry = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(self.function.address)
        aligned = -(-self.scratch.ctypes.data // 64) * 64
        self.call: Callable[[], Any] = lambda: entry(self.words.ctypes.data, 0, self.tiles, aligned)
        self.tiles = evaluate(job.tiled.tiles, sizes)


def expected(work: Work, feeds: Mapping[str, Array], dtype: Any = np.float32) -> Array:
    """NumPy, as one writes it."""
    q, k, v = (
        np.asarray(feeds[n], dtype).reshape(work.batch, -1, h, work.d).swapaxes(1, 2)
        for n, h in (("q", work.heads), ("k", work.kv_heads), ("v", work.kv_heads))
    )
    if work.heads != work.kv_heads:
        k, v = (np.repeat(x, work.heads // work.kv_heads, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * dtype(work.d**-0.5)
    if work.causal:
        scores = np.where(np.tri(work.queries, work.keys, dtype=bool), scores, -np.inf)
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores @ v


def peer(work: Work, feeds: Mapping[str, Array]) -> Callable[[], Any] | None:
    """ONNX Runtime's own fused attention on one thread; it has no grouped heads here, so that keys are repeated."""
    try:
        ort: Any = import_module("onnxruntime")
    except ImportError:
        return None

    hidden = work.heads * work.d
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [work.batch, s, hidden])
        for n, s in (("q", work.queries), ("k", work.keys), ("v", work.keys))
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=work.heads,
        unidirectional=int(work.causal),
    )  # fmt: skip
    graph = helper.make_graph([node], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model: Any = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options: Any = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session: Any = ort.InferenceSession(model.SerializeToString(), options)
    wide: dict[str, Array] = {"q": feeds["q"]}
    for name in ("k", "v"):
        x = feeds[name].reshape(work.batch, -1, work.kv_heads, work.d)
        wide[name] = np.repeat(x, work.heads // work.kv_heads, axis=2).reshape(work.batch, -1, hidden)
    return lambda: session.run(None, wide)


def eager(work: Work, feeds: Mapping[str, Array]) -> Callable[[], Any] | None:
    """torch's own attention on the same memory."""
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(1)
    q, k, v = (torch.from_numpy(feeds[n]).unflatten(-1, (-1, work.d)).transpose(1, 2) for n in ("q", "k", "v"))
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v, is_causal=work.causal, enable_gqa=work.heads != work.kv_heads)


def peak() -> Callable[[], Any]:
    """A loop of nothing but fused multiply-adds: 24 sums, 20,000 rounds."""
    t = VectorBuilder(host_device())
    count = host().vector_registers * 3 // 4
    sums = [t.variable(t.load(t.ptr_add(Ptr("%a"), 4 * i))) for i in range(count)]
    x = t.load_splat(Ptr("%a"))
    with t.loop(0, 20_000):
        for v in sums:
            t.set(t.fma(x, x, t.get(v)), v)
    for i, v in enumerate(sums):
        t.store(t.get(v), t.ptr_add(Ptr("%a"), t.bytes * i))
    function = t.function(Signature("peak", (Parameter("ptr", "a"),)))
    text = "\n".join([*function.uses, function.text])
    code = compile_text(text)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_int64)(code.address("peak"))
    room = np.zeros(count * t.lanes, np.float32)

    def run(keep: Any = code) -> None:
        entry(room.ctypes.data)

    return run


def timed(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The median seconds of each call, in turns."""
    rounds: dict[str, int] = {}
    for name, call in calls.items():
        call()
        started = time.thread_time()
        call()
        rounds[name] = max(1, int(2e-3 / max(1e-7, time.thread_time() - started)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        for name, call in calls.items():
            started = time.thread_time()
            for _ in range(rounds[name]):
                call()
            found[name].append((time.thread_time() - started) / rounds[name])
    return {name: median(times) for name, times in found.items()}


def main() -> None:
    flops = 20_000 * (host().vector_registers * 3 // 4) * host().lanes * 2
    most = peak()
    print(
        f"{'work':24}{'µs':>10}{'numpy':>10}{'ort':>10}{'vs ort':>8}{'vs torch':>10}"
        f"{'GFLOP/s':>9}{'share':>7}{'GB/s':>7}{'error':>10}"
        f"{'peak':>8}"
    )
    rng = np.random.default_rng(0)
    for work in WORKS:
        feeds = {
            n: rng.normal(size=(work.batch, s, h * work.d)).astype(np.float32)
            for n, s, h in (
                ("q", work.queries, work.heads), ("k", work.keys, work.kv_heads), ("v", work.keys, work.kv_heads)
            )
        }  # fmt: skip
        kernel = Kernel(work, feeds)
        calls: dict[str, Callable[[], Any]] = {
            "peak": most,
            "own": kernel.call,
            "numpy": lambda w=work, f=feeds: expected(w, f),
        }
        other = peer(work, feeds)
        if other is not None:
            calls["ort"] = other
        torch = eager(work, feeds)
        if torch is not None:
            calls["torch"] = torch
        times = timed(calls, 2.0)
        error = float(np.abs(kernel.y - expected(work, feeds, np.float64)).max())
        own, ort = times["own"], times.get("ort", float("nan"))
        rate, best = work.flops / own, flops / times["peak"]
        moved = sum(f.nbytes for f in feeds.values()) / own / 1e9
        print(
            f"{work.name:24}{own * 1e6:10.1f}{times['numpy'] * 1e6:10.1f}{ort * 1e6:10.1f}{ort / own:8.2f}"
            f"{times.get('torch', float('nan')) / own:10.2f}"
            f"{rate / 1e9:9.1f}{rate / best:7.0%}{moved:7.1f}{error:10.1e}{best / 1e9:8.1f}"
            f"   compiled in {kernel.seconds:.2f} s"
        )


if __name__ == "__main__":
    main()
