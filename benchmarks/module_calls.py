"""What a call of a compiled torch module costs besides its kernels: `python benchmarks/module_calls.py`.

A module of tiny layers runs on one thread in turns: its kernels alone, eager, the program on tensors and on arrays.
Medians of rounds, in microseconds of processor time.
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
from dovetail.frontends.torch.reading.tensors import torch_library
from dovetail.targets.cpu.native import NativeRunner

ROUNDS, CALLS = 15, 2000


def timed(run: Callable[[], Any]) -> float:
    started = time.thread_time()
    for _ in range(CALLS):
        run()
    return (time.thread_time() - started) / CALLS * 1e6


def main() -> None:
    if find_spec("torch") is None:
        print("torch is not installed", file=sys.stderr)
        return
    import torch  # pyright: ignore[reportMissingImports]
    from torch import nn  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval().requires_grad_(False)
    x = torch.randn(1, 8)
    with torch.inference_mode():
        program = dovetail.compile(module, args=(x,), threads=1)
        program(x)
        kept = program(x)  # the prepared call holds the address of its last result
        runner = program.program._binding.runner  # pyright: ignore[reportPrivateUsage]
        assert isinstance(runner, NativeRunner)
        space = runner.foreign_calls[torch_library()].workspaces.pop()  # other runs have another workspace
        (call,) = space.calls.values()
        arrays = {str(v.attrs["name"]): x.numpy() for v in program.graph.inputs}
        runs: dict[str, Callable[[], Any]] = {
            "kernels": lambda: call.run(*call.arguments),
            "eager": lambda: module(x),
            "tensors": lambda: program(x),
            "arrays": lambda: program.program.run(arrays),
        }
        rounds = [{name: timed(run) for name, run in runs.items()} for _ in range(ROUNDS)]
    assert kept.shape == (1, 4)
    found = {name: median(r[name] for r in rounds) for name in runs}
    print("microseconds a call, one thread")
    for name, took in found.items():
        beyond = f"   beyond the kernels {took - found['kernels']:6.2f}" if name in ("tensors", "arrays") else ""
        print(f"{name:<10}{took:8.2f}{beyond}")


if __name__ == "__main__":
    main()
