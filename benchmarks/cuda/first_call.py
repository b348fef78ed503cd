"""The first call of a model on an NVIDIA GPU, cold and from the cache, and what a call takes beside its kernels.

    PYTHONPATH=src python3 benchmarks/cuda/first_call.py [name ...]

Each first call is that of a new process, with an empty cache and then with a full one, ours and the driver's: compile,
bind and run, after dovetail was imported. Python's bytecode is there, as it is for an installed package. `started` is
a process whose driver was started before, which shows what is not the driver's: the first column says how long that
took. LLVM and the driver's assembler run in threads: their columns are the longest kernel. A call with device arrays
waits for nothing, and is measured 20 in a row once its launch code is compiled; one from NumPy waits for its results.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGUN = time.perf_counter()

import numpy as np  # noqa: E402

import dovetail  # noqa: E402
from dovetail.targets.cuda.driver.driver import Driver, driver  # noqa: E402
from dovetail.targets.cuda.runs.launch_code import launch_code  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))

NAMES = ("minilm_1x16", "minilm_1x128", "bert_32x128")
SECONDS = 60
"""For one process."""
COLUMNS = ("import", "driver", "LLVM", "assembler", "compile", "bind and run", "first call", "call", "call from NumPy")
MICROSECONDS = COLUMNS[-2:]


def longest(named: str) -> list[float]:
    """The seconds of each call of a method of the driver from now on."""
    found: list[float] = []
    plain: Callable[..., Any] = getattr(Driver, named)

    def timed(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return plain(*arguments)
        finally:
            found.append(time.perf_counter() - begun)

    setattr(Driver, named, timed)
    return found


def child(model: str, cache: str, state: str) -> None:
    """One process: print the seconds of each part."""
    told = {"import": time.perf_counter() - BEGUN}
    kernels = {"LLVM": longest("ptx"), "assembler": longest("assembled")}
    if state == "started":
        begun = time.perf_counter()
        driver()
        told["driver"] = time.perf_counter() - begun
    clock = [time.perf_counter()]
    program = dovetail.compile(model, target="cuda", cache=cache)
    clock.append(time.perf_counter())
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for value in program.graph.inputs:
        shape = [n if isinstance(n, int) else 1 for n in value.shape]
        feeds[str(value.attrs["name"])] = np.ones(shape, value.dtype.numpy)
    program.run(feeds)
    clock.append(time.perf_counter())
    told |= {name: max(found) for name, found in kernels.items() if found}
    there = program.to_device(feeds)
    for _ in range(10):
        program.run(there, outputs="device")
    launch_code.wait()
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
    told |= {"compile": clock[1] - clock[0], "bind and run": clock[2] - clock[1], "first call": clock[2] - clock[0]}
    told |= {"call": statistics.median(calls), "call from NumPy": statistics.median(host)}
    print(json.dumps(told))


def row(model: str, cache: str, state: str) -> str:
    """The seconds of a new process, or why there are none."""
    # The driver keeps machine code too, of kernels that are loaded from PTX: that cache is as old as ours.
    left_out = ("PYTHONDONTWRITEBYTECODE", "CUDA_CACHE_DISABLE")
    environment = {n: v for n, v in os.environ.items() if n not in left_out}
    environment |= {"CUDA_CACHE_PATH": f"{cache}-driver"}
    command = [sys.executable, __file__, "--child", model, cache, state]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"takes longer than {SECONDS} s"
    except subprocess.CalledProcessError as error:
        return f"failed: {' '.join(error.stderr.strip().splitlines()[-2:])}"
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return "".join(
        f"{'':>16}" if name not in told
        else f"{told[name] * 1e6:>13.1f} µs" if name in MICROSECONDS
        else f"{told[name]:>14.3f} s"
        for name in COLUMNS
    )  # fmt: skip


def main(names: list[str]) -> int:
    import onnx
    from converted import half  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    from models import MODELS  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    source = str(Path(dovetail.__file__).parent)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", source], check=False)
    print(f"{'':23}" + "".join(f"{name:>16}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for name in names or NAMES:
            model = Path(folder) / f"{name}.onnx"
            onnx.save(half(MODELS[name][1]()), str(model))  # pyright: ignore
            cache = str(Path(folder) / f"cache-{name}")
            for state in ("cold", "cached", "cached", "started"):
                print(f"{name:14} {state:8}{row(str(model), cache, state)}", flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
    else:
        sys.exit(main(sys.argv[1:]))
