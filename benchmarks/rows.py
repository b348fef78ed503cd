"""Row kernels on one thread, against ONNX Runtime, NumPy and a plain copy: `python benchmarks/rows.py`.

Times are medians of interleaved rounds; the share is of the rate at which NumPy copies an array of the same size. Our
side is the bare kernel, ONNX Runtime's a whole call with its few microseconds around it: small sizes flatter us.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import TensorProto, helper

from dovetail import Graph, Value, library, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.isa import host_device
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.select import make_job

EPS = 1e-5
ROUNDS = 41


@dataclass(frozen=True, slots=True)
class Work:
    """One op on arrays of a shape: as a value, in NumPy and in ONNX; `tensors` of the shape go through memory."""

    name: str
    shape: tuple[int, ...]
    value: Value
    plain: Callable[[Mapping[str, Array]], Any]
    node: str
    attrs: Mapping[str, Any]
    tensors: float = 2.0


def works() -> list[Work]:
    def norm(f: Mapping[str, Array], x: Array) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPS) * f["gain"] + f["bias"]

    def soft(f: Mapping[str, Array]) -> Any:
        raised = np.exp(f["x"] - f["x"].max(-1, keepdims=True))
        return raised / raised.sum(-1, keepdims=True)

    def by_tanh(f: Mapping[str, Array]) -> Any:
        """NumPy has no erf: the form by tanh, which differs in the fourth digit."""
        x = f["x"]
        return 0.5 * x * (1 + np.tanh(np.float32(0.7978845608) * (x + np.float32(0.044715) * (x * x * x))))

    found: list[Work] = []
    for shape in ((12, 128, 128), (128, 384), (1024, 768)):
        x, r = input("x", f32[shape]), input("r", f32[shape])
        gain, bias = input("gain", f32[shape[-1]]), input("bias", f32[shape[-1]])
        total = library.residual_layer_norm(x, r, gain, bias, eps=EPS)
        found += [
            Work("softmax", shape, library.softmax(x), soft, "Softmax", {"axis": -1}),
            Work(
                "layer_norm",
                shape,
                library.layer_norm(x, gain, bias, eps=EPS),
                lambda f: norm(f, f["x"]),
                "LayerNormalization",
                {"epsilon": EPS},
            ),
            Work(
                "residual_layer_norm",
                shape,
                total,
                lambda f: norm(f, f["x"] + f["r"]),
                "LayerNormalization",
                {"epsilon": EPS},
                3.0,
            ),
            Work("gelu", shape, library.gelu(x), by_tanh, "Gelu", {}),
            Work("sum of rows", shape, ops.reduce_sum(x, axes=(-1,)), lambda f: f["x"].sum(-1), "ReduceSum", {}, 1.0),
            Work(
                "sum of columns", shape, ops.reduce_sum(x, axes=(-2,)), lambda f: f["x"].sum(-2), "ReduceSum", {}, 1.0
            ),
        ]
    return found


class Kernel:
    """The compiled code of one step on arrays, called without anything around it."""

    def __init__(self, value: Value, feeds: Mapping[str, Array]) -> None:
        plan = make_plan(Graph.of(value), target=CPU)
        (step,) = plan.phase("run")
        job = make_job(step, TensorLocations(plan.locate, (), target=loops_of(host_device())), host_device())
        assert job is not None
        started = time.perf_counter()
        (self.function,) = BACKEND.code.functions([job])
        self.seconds = time.perf_counter() - started
        self.y = aligned(np.zeros(tuple(int(cast(int, n)) for n in value.shape), np.float32))
        named = {name: point for name, point in job.bindings.items() if isinstance(point, Value)}
        self.arrays = [
            self.y if p is value else feeds[p.attrs["name"]] for p in (named[n] for n in job.kernel.pointers)
        ]
        self.words = np.array([a.ctypes.data for a in self.arrays], np.int64)
        self.scratch = np.empty(int(cast(int, job.scratch)) + 64, np.uint8)
        self.tiles = int(cast(int, job.tiled.tiles))
        entry = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(self.function.address)
        self.call: Callable[[], Any] = lambda: entry(
            self.words.ctypes.data, 0, self.tiles, -(-self.scratch.ctypes.data // 64) * 64
        )


def peer(work: Work, feeds: Mapping[str, Array]) -> Callable[[], Any]:
    """The same op in ONNX Runtime, on one thread."""
    more = {"ReduceSum": ["axes"], "LayerNormalization": ["gain", "bias"]}.get(work.node, [])
    names = ["x", *(["r"] if work.tensors > 2 else []), *more]
    held = {"gain": feeds["gain"], "bias": feeds["bias"]}
    held["axes"] = np.array([-1 if "rows" in work.name else -2], np.int64)
    # Add and norm apart: on this machine ONNX Runtime's own fused form of the two takes several times as long.
    first = [helper.make_node("Add", ["x", "r"], ["total"])] if "r" in names else []
    read = ["total", "gain", "bias"] if first else names
    nodes = [*first, helper.make_node(work.node, read, ["y"], **work.attrs)]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, feeds[n].shape) for n in names if n not in held],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(held[n], n) for n in names if n in held],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    runtime = cast(Any, onnxruntime)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {n: feeds[n] for n in names if n not in held}
    return lambda: session.run(None, given)


def aligned(array: Array) -> Array:
    """A copy that begins where a line of the cache does, as tensors in an arena do."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    found = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def timed(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each, in turns; short ones are repeated within a turn."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        repeats[name] = max(1, int(5e-4 / max(1e-7, time.perf_counter() - started)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()  # what the one before left in the caches is not its own
            started = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((time.perf_counter() - started) / repeats[name])
    return {name: median(found) for name, found in seconds.items()}


def main() -> None:
    rng = np.random.default_rng(0)
    print(f"{'op':20} {'shape':>12} {'µs':>8} {'onnxrt':>8} {'NumPy':>8} {'ratio':>6} {'GB/s':>6} {'of copy':>7}")
    for work in works():
        x, r = (aligned(rng.normal(size=work.shape).astype(np.float32)) for _ in range(2))
        gain, bias = (aligned(rng.normal(size=work.shape[-1]).astype(np.float32)) for _ in range(2))
        feeds = {"x": x, "r": r, "gain": gain, "bias": bias}
        kernel = Kernel(work.value, feeds)
        other = aligned(x)
        ours, theirs = kernel.call, peer(work, feeds)
        ours()
        np.testing.assert_allclose(kernel.y.ravel(), theirs()[0].ravel(), rtol=1e-3, atol=1e-3)
        found = timed(
            {
                "own": ours,
                "peer": theirs,
                "plain": lambda f=feeds, w=work: w.plain(f),
                "copy": lambda a=other, b=x: np.copyto(a, b),
            }
        )
        rate = work.tensors * x.nbytes / found["own"]
        share = rate / (2 * x.nbytes / found["copy"])
        print(
            f"{work.name:20} {'×'.join(map(str, work.shape)):>12} {found['own'] * 1e6:8.1f} {found['peer'] * 1e6:8.1f} "
            f"{found['plain'] * 1e6:8.1f} {found['peer'] / found['own']:6.2f} {rate / 1e9:6.1f} {share:7.2f}"
        )


if __name__ == "__main__":
    main()
