"""Convolutions of ResNet-50, layer by layer: dovetail against onnxruntime, and the share of the machine's FMA rate.

CPU time of the calling thread with one thread (so that a loaded machine does not disturb it much), wall time with more.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnxruntime as _untyped  # pyright: ignore[reportMissingTypeStubs]
from onnx import TensorProto, helper

import dovetail
from dovetail import library
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.targets.cpu.jit import compile_text, host
from dovetail.targets.cpu.native import NativeGraph

onnxruntime: Any = _untyped


@dataclass(frozen=True, slots=True)
class Layer:
    """One convolution and how often the network has it."""

    times: int
    channels: int
    size: int
    filters: int
    window: int = 1
    stride: int = 1
    groups: int = 1

    @property
    def around(self) -> int:
        return self.window // 2

    @property
    def out(self) -> int:
        return (self.size + 2 * self.around - self.window) // self.stride + 1

    @property
    def flops(self) -> float:
        return 2.0 * self.out**2 * self.filters * self.channels // self.groups * self.window**2

    def __str__(self) -> str:
        of = f"{self.channels:4}x{self.size:<3} -> {self.filters:4}  {self.window}x{self.window}/{self.stride}"
        return of + (f" in {self.groups}" if self.groups > 1 else "")


RESNET_50 = (
    Layer(1, 3, 224, 64, 7, 2),
    Layer(1, 64, 56, 64), Layer(3, 64, 56, 64, 3), Layer(4, 64, 56, 256), Layer(2, 256, 56, 64),
    Layer(1, 256, 56, 128), Layer(1, 128, 56, 128, 3, 2), Layer(4, 128, 28, 512), Layer(1, 256, 56, 512, 1, 2),
    Layer(3, 512, 28, 128), Layer(3, 128, 28, 128, 3),
    Layer(1, 512, 28, 256), Layer(1, 256, 28, 256, 3, 2), Layer(6, 256, 14, 1024), Layer(1, 512, 28, 1024, 1, 2),
    Layer(5, 1024, 14, 256), Layer(5, 256, 14, 256, 3),
    Layer(1, 1024, 14, 512), Layer(1, 512, 14, 512, 3, 2), Layer(3, 512, 7, 2048), Layer(1, 1024, 14, 2048, 1, 2),
    Layer(2, 2048, 7, 512), Layer(2, 512, 7, 512, 3),
)  # fmt: skip
DEPTHWISE = (Layer(1, 96, 112, 96, 3, 2, 96), Layer(1, 144, 56, 144, 3, 1, 144), Layer(1, 384, 14, 384, 3, 1, 384))


def ours(layer: Layer, threads: int, w: Any, b: Any) -> Callable[[Any], Any]:
    x = leaf.input("x", f32[1, layer.channels, layer.size, layer.size])
    weights, bias = leaf.param("w", f32[w.shape]), leaf.param("b", f32[layer.filters, 1, 1])
    y = library.conv_bias_act(
        x, weights, bias, act="relu", strides=(layer.stride,) * 2, padding=(layer.around,) * 4, groups=layer.groups
    )
    program = dovetail.compile(dovetail.Graph.of(y), target="cpu")
    compiled = NativeGraph(program.plan, threads=threads)
    assert not compiled.on_host, "every convolution here has a kernel"
    runner = compiled.bind({"w": w, "b": b.reshape((-1, 1, 1))})
    return lambda image: runner.run({"x": image})["y"]


def theirs(layer: Layer, threads: int, w: Any, b: Any) -> Callable[[Any], Any]:
    nodes = [
        helper.make_node(
            "Conv", ["x", "w", "b"], ["c"], strides=[layer.stride] * 2, pads=[layer.around] * 4, group=layer.groups
        ),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    arrays = {"w": w, "b": b}
    graph = helper.make_graph(
        nodes, "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, layer.channels, layer.size, layer.size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda image: session.run(None, {"x": image})[0]


def fma_rate() -> float:
    """FLOP/s of one core: independent chains of vector FMAs."""
    lanes, chains = host().lanes, 12
    kind = f"<{lanes} x float>"
    phis = [f"  %a{i} = phi {kind} [ zeroinitializer, %entry ], [ %b{i}, %loop ]" for i in range(chains)]
    steps = [
        f"  %b{i} = call {kind} @llvm.fma.v{lanes}f32({kind} %a{i}, {kind} splat (float 0.5), {kind} splat (float 1.0))"
        for i in range(chains)
    ]
    sums = [f"  store volatile {kind} %b{i}, ptr %p, align 4" for i in range(chains)]
    text = "\n".join([
        f"declare {kind} @llvm.fma.v{lanes}f32({kind}, {kind}, {kind})",
        "define void @rate(ptr %p, i64 %n) {", "entry:", "  br label %loop", "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %j, %loop ]", *phis, *steps, "  %j = add i64 %i, 1",
        "  %more = icmp slt i64 %j, %n", "  br i1 %more, label %loop, label %end", "end:", *sums, "  ret void", "}",
    ])  # fmt: skip
    code = compile_text(text, vectorize=False)
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address("rate"))
    room = np.zeros(lanes, np.float32)
    count = 200_000
    times: list[float] = []
    for _ in range(15):
        started = time.thread_time()
        run(room.ctypes.data, count)
        times.append(time.thread_time() - started)
    return 2.0 * lanes * chains * count / min(times)


def measure(runs: dict[str, Callable[[Any], Any]], image: Any, threads: int, seconds: float) -> dict[str, float]:
    """Seconds of each, interleaved."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(image)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(next(iter(found.values()))) < 5:
        for name, run in runs.items():
            started = clock()
            run(image)
            found[name].append(clock() - started)
    # CPU time is only ever lengthened by others; the lower quartile is nearest to what it is alone.
    return {
        name: statistics.quantiles(times, n=4)[0] if threads == 1 else statistics.median(times)
        for name, times in found.items()
    }


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.4
    rate = fma_rate() * threads
    print(f"{threads} thread(s), FMA rate {rate / 1e9:.0f} GFLOP/s")
    rng = np.random.default_rng(0)
    total = {"dovetail": 0.0, "onnxruntime": 0.0}
    for layer in (*RESNET_50, *DEPTHWISE):
        w = rng.standard_normal((layer.filters, layer.channels // layer.groups, layer.window, layer.window), np.float32)
        b = rng.standard_normal(layer.filters, np.float32)
        image = rng.standard_normal((1, layer.channels, layer.size, layer.size), np.float32)
        runs = {"dovetail": ours(layer, threads, w, b), "onnxruntime": theirs(layer, threads, w, b)}
        found = measure(runs, image, threads, seconds)
        for name, t in found.items():
            total[name] += t * layer.times if layer in RESNET_50 else 0.0
        mine, other = found["dovetail"], found["onnxruntime"]
        print(
            f"{layer.times} x {layer!s:28} {mine * 1e3:7.3f} ms {layer.flops / mine / rate:5.0%} of the rate   "
            f"onnxruntime {other * 1e3:7.3f} ms {layer.flops / other / rate:5.0%}   ratio {other / mine:.2f}"
        )
    flops = sum(layer.times * layer.flops for layer in RESNET_50)
    print("ResNet-50: " + ", ".join(f"{n} {t * 1e3:.1f} ms ({flops / t / rate:.0%})" for n, t in total.items()))


if __name__ == "__main__":
    main()
