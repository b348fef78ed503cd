"""A process that is warm: it forks for every file, and each fork loads one file under limits of its own.

It reads one request a line and answers with one line, both in JSON. Everything a fork may cost is bounded: the memory
that it adds, its processor time by a limit of the system, and the time on the clock by ending it.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import dovetail
from dovetail.frontends import safetensors
from dovetail.ir.dim import substitute
from tests.frontends.onnx.build import model, node

MORE_BYTES = 200 << 20
LONGEST_WAIT = 20.0
STEPS = 200_000
"""Of a loop by which the speed of the machine is found."""
STEPS_SECONDS = 0.012
"""What they take where a second is enough for each file."""


def main() -> None:
    """Answer requests until there are no more."""
    warm_up()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(in_a_fork(json.loads(line))), flush=True)


def warm_up() -> None:
    """Load, compile and run once, so that what is measured later is the file."""
    made = model(
        [node("Add x w -> y")], {"x": dovetail.dtypes.f32["n", 4]}, ["y"], initializers={"w": np.ones(4, np.float32)}
    )
    path = Path(sys.argv[1]) / "warm.onnx"
    path.write_bytes(made.SerializeToString())
    dovetail.compile(path, target="reference").run({"x": np.ones((2, 4), np.float32)})
    safetensors.check_header(b"{}", 0)


def in_a_fork(request: dict[str, str]) -> dict[str, Any]:
    """What became of a file, or how the fork ended that loaded it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        answer = json.dumps(attempt(request)).encode()
        os.write(writer, answer)
        os._exit(0)
    os.close(writer)
    chunks: list[bytes] = []
    end = time.monotonic() + LONGEST_WAIT
    while (left := end - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            chunk = os.read(reader, 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if status or not chunks:
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status >> 8}"
        return {"crash": how}
    return json.loads(b"".join(chunks))


def attempt(request: dict[str, str]) -> dict[str, Any]:
    """Load one file under limits: what it ended in, how long it took and how much memory it added."""
    before, most = used(), most_seconds()
    limits(most)
    clock, began = time.process_time(), time.monotonic()
    found: dict[str, Any] = {"error": "", "bases": [], "message": "", "hint": ""}
    try:
        STAGES[request["stage"]](Path(request["path"]))
    except dovetail.errors.DovetailError as error:
        found = {
            "error": type(error).__name__,
            "bases": [c.__name__ for c in type(error).__mro__],
            "message": str(error),
            "hint": error.hint,
        }
    except BaseException as error:
        found = {"error": type(error).__name__, "bases": [], "message": str(error)[:2000], "hint": ""}
    seconds, wall = time.process_time() - clock, time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**found, "seconds": seconds, "most_seconds": most, "wall": wall, "bytes": peak - before}


def used() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def most_seconds() -> float:
    """A second, or as long as a slower machine, or one that is busy, takes for what others do in one."""
    clock, total = time.process_time(), 0
    for number in range(STEPS):
        total += number & 1
    return max(1.0, (time.process_time() - clock) / STEPS_SECONDS)


def limits(seconds: float) -> None:
    """Bound what this process may still take. Written pages count; a mapped file does not."""
    lines = Path("/proc/self/status").read_text().splitlines()
    data = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + MORE_BYTES, data + MORE_BYTES))
    whole = math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def compiled(path: Path) -> dovetail.Program:
    return dovetail.compile(path, target="reference")


def run(path: Path) -> None:
    """Run with inputs of ones, each symbolic size 2."""
    program = compiled(path)
    feeds: dict[str, Any] = {}
    for value in program.graph.inputs:
        shape = [substitute(size, dict.fromkeys(program.plan.symbols, 2)) for size in value.tensor.shape]
        feeds[value.attrs["name"]] = np.ones(shape, value.tensor.dtype.numpy)  # pyright: ignore
    program.run(feeds)


def greedy(path: Path) -> None:
    """Take more memory than is allowed."""
    _ = bytearray(MORE_BYTES + (1 << 20))


def endless(path: Path) -> None:
    """Take more time than is allowed."""
    while True:
        pass


def crash(path: Path) -> None:
    """End as a bug in native code would."""
    os.abort()


STAGES = {
    "load": dovetail.load,
    "compile": compiled,
    "run": run,
    "safetensors": safetensors.read_safetensors,
    "greedy": greedy,
    "endless": endless,
    "crash": crash,
}

if __name__ == "__main__":
    main()
