"""The first call of a model on an NVIDIA GPU, cold and from the cache, and what a call takes beside its kernels.

    PYTHONPATH=src python3 benchmarks/cuda/first_call.py [name ...]

Each first call is that of a new process: import, compile, bind and run, with an empty cache and then with a full one.
A call with device arrays waits for nothing, and is measured 20 in a row; one from NumPy waits for its results.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import dovetail

sys.path.insert(0, str(Path(__file__).parent))

NAMES = ("minilm_1x16", "minilm_1x128", "bert_32x128")


def child(model: str, cache: str) -> None:
    """One process: print the seconds of each part."""
    clock = [time.perf_counter()]
    program = dovetail.compile(model, target="cuda", cache=cache)
    clock.append(time.perf_counter())
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for value in program.graph.inputs:
        shape = [n if isinstance(n, int) else 1 for n in value.shape]
        feeds[str(value.attrs["name"])] = np.ones(shape, value.dtype.numpy)
    program.run(feeds)
    clock.append(time.perf_counter())
    there = program.to_device(feeds)
    for _ in range(10):
        program.run(there, outputs="device")
    calls: list[float] = []
    for _ in range(20):
        begun = time.perf_counter()
        for _ in range(19):
            program.run(there, outputs="device")
        found = program.run(there, outputs="device")
        calls.append((time.perf_counter() - begun) / 20)
        next(iter(found.values())).numpy()
    host: list[float] = []
    for _ in range(200):
        begun = time.perf_counter()
        program.run(feeds)
        host.append(time.perf_counter() - begun)
    told = {"compile": clock[1] - clock[0], "bind and run": clock[2] - clock[1], "first call": clock[2] - clock[0]}
    told |= {"call": statistics.median(calls), "call from NumPy": statistics.median(host)}
    print(json.dumps(told))


def main(names: list[str]) -> int:
    from models import MODELS, half  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    with tempfile.TemporaryDirectory() as folder:
        for name in names or NAMES:
            model = Path(folder) / f"{name}.onnx"
            onnx.save(half(MODELS[name][1]()), str(model))  # pyright: ignore
            cache = str(Path(folder) / f"cache-{name}")
            # The driver keeps machine code of its own, which would hide what is compiled here.
            environment = {**os.environ, "CUDA_CACHE_DISABLE": "1"}
            for state in ("cold", "cached", "cached"):
                command = [sys.executable, __file__, "--child", str(model), cache]
                done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
                told = json.loads(done.stdout.splitlines()[-1])
                parts = "  ".join(
                    f"{part} {seconds * 1e6:.1f} µs"
                    if "call" in part and part != "first call"
                    else f"{part} {seconds:.3f} s"
                    for part, seconds in told.items()
                )
                print(f"{name:14} {state:7} {parts}", flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:4])
    else:
        sys.exit(main(sys.argv[1:]))
