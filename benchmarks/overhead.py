"""What a call costs besides its kernels: `python benchmarks/overhead.py`.

A graph of one element tells the cost of a call alone; MiniLM 1×16 tells what is left of it in a model. Both run beside
ONNX Runtime on the same file, one thread each, in turns; medians of rounds, in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from onnx import TensorProto

import dovetail
from dovetail.bench.net import Net
from dovetail.bench.transformers import MINILM, encoder
from dovetail.ir.literal import Array

ROUNDS = 21


def tiny() -> onnx.ModelProto:
    net = Net("tiny")
    x = net.input("x", TensorProto.FLOAT, [1])
    net.output("y", net.op("Tanh", x))
    return net.model()


def feeds_of(program: dovetail.Program) -> dict[str, Array]:
    return {str(v.attrs["name"]): np.ones([int(str(s)) for s in v.shape], v.dtype.numpy) for v in program.graph.inputs}


def timed(run: Callable[[], Any], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count * 1e6


def session(path: Path) -> Any:
    peer: Any = onnxruntime
    options = peer.SessionOptions()
    options.intra_op_num_threads = 1
    return peer.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare(name: str, model: onnx.ModelProto, folder: Path, count: int) -> str:
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    program, peer = dovetail.compile(path, threads=1), session(path)
    feeds: Mapping[str, Array] = feeds_of(program)
    runs: list[Callable[[], Any]] = [lambda: program.run(feeds), lambda: peer.run(None, feeds)]
    for run in runs:
        timed(run, count)
    rounds = [[timed(run, count) for run in runs] for _ in range(ROUNDS)]
    ours, theirs = (median(r[i] for r in rounds) for i in (0, 1))
    return f"{name:<12} dovetail {ours:10.1f}   onnxruntime {theirs:10.1f}   ratio {theirs / ours:5.2f}"


def main() -> None:
    with TemporaryDirectory() as folder:
        print("microseconds a call, one thread")
        print(compare("tiny", tiny(), Path(folder), 1000))
        print(compare("minilm_1x16", encoder(MINILM, 1, 16), Path(folder), 5))


if __name__ == "__main__":
    main()
