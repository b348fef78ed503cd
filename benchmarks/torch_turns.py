"""What it costs that torch and dovetail take turns in one process: `python benchmarks/torch_turns.py`.

Each has a pool of threads, whose workers spin for a while after their work and could hold the other's core. A module
runs in eager, as a program of ours, and both in turns; on one thread there is no other pool. Microseconds of processor
time of all threads, medians of rounds that take turns.
"""

# pyright: basic

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import dovetail
from dovetail.targets.cpu.cores import available_threads

ROUNDS, CALLS, PAUSE = 25, 12, 0.02
SHAPES = ((16, 128), (64, 256), (128, 512))
"""Rows and columns of what two linear layers with a GELU between them get."""


def timed(run: Callable[[], Any]) -> float:
    time.sleep(PAUSE)  # the workers of whoever ran before come to rest
    started = time.process_time()
    for _ in range(CALLS):
        run()
    return (time.process_time() - started) / CALLS * 1e6


def main() -> None:
    if find_spec("torch") is None:
        print("torch is not installed", file=sys.stderr)
        return
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    for threads in sorted({1, available_threads()}):
        torch.set_num_threads(threads)
        for rows, width in SHAPES:
            layers = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            module, x = nn.Sequential(*layers).eval().requires_grad_(False), torch.randn(rows, width)
            program: Any = dovetail.compile(module, args=(x,), threads=threads)
            runs: list[Callable[[], Any]] = [
                lambda module=module, x=x: module(x),
                lambda program=program, x=x: program(x),
                lambda module=module, program=program, x=x: (module(x), program(x)),
            ]
            taken: list[list[float]] = [[], [], []]
            with torch.inference_mode():
                for run in runs:
                    timed(run)
                for _ in range(ROUNDS):
                    for times, run in zip(taken, runs, strict=True):
                        times.append(timed(run))
            eager, ours, turns = map(median, taken)
            print(
                f"{rows:4} × {width:<4} threads={threads}  eager {eager:8.0f} µs  dovetail {ours:8.0f} µs  "
                f"in turns {turns:8.0f} µs, {turns / (eager + ours) - 1:+.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
