"""What a call through torch.compile costs besides its kernels: python benchmarks/backend_calls.py

It is compared with backends that add nothing: one returns a kept tensor, one makes its result and runs our kernels, one
runs the captured graph in eager. Kernels take longer between two calls of dynamo than in a loop: caches are cold.
CPU time of the calling thread, in microseconds, medians of rounds that take turns.
"""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import dovetail.torch
from dovetail.torch.compiled import live

torch: Any = import_module("torch")


def eager(module: Any, _: Any) -> Any:
    return module.forward


def nothing(module: Any, inputs: Any) -> Any:
    found = tuple(module.forward(*inputs))

    def run(*_: Any) -> Any:
        return found

    return run


class Kernels:
    """A backend that runs prepared kernels whatever it is given, and makes the tensor that it returns."""

    def __init__(self) -> None:
        self.call: Any = None

    def __call__(self, module: Any, inputs: Any) -> Any:
        def run(*_: Any) -> Any:
            call = self.call
            call.run(*call.arguments)
            return (call.made[0].empty(),)

        return run


def measured(calls: dict[str, Callable[[], Any]], rounds: int = 11, repeats: int = 500) -> dict[str, float]:
    """Microseconds of each call."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.thread_time_ns()
            for _ in range(repeats):
                call()
            taken[name].append((time.thread_time_ns() - started) / repeats / 1000)
    return {name: median(times) for name, times in taken.items()}


def _arguments(graph: Any, call: Callable[[], Any]) -> tuple[Any, ...]:
    """What dynamo gives to a graph in a call."""
    seen: list[tuple[Any, ...]] = []
    run = graph._run

    def noted(*args: Any) -> Any:
        seen.append(args)
        return run(*args)

    graph._run = noted
    call()
    graph._run = run
    return seen[0]


def main() -> None:
    torch.set_num_threads(1)
    x = torch.randn(1, 64)
    layers = [
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    ]
    model = torch.nn.Sequential(*layers).eval()
    kernels = Kernels()
    backends = {"nothing": nothing, "kernels": kernels, "eager": eager, "dovetail": dovetail.torch.backend}
    with torch.no_grad():
        compiled = {n: torch.compile(torch.nn.Sequential(*layers).eval(), backend=b) for n, b in backends.items()}
        ours = compiled["dovetail"]
        ours(x)
        (graph,) = live()
        given = _arguments(graph, lambda: ours(x))
        (program,) = graph.programs
        runner: Any = program._binding.runner  # pyright: ignore[reportPrivateUsage]
        (calls,) = runner.foreign_calls.values()
        kept = ours(x)  # the prepared call holds the address of its last result
        space = calls.workspaces.pop()  # other runs have another workspace
        kernels.call = space.last
        for run in compiled.values():
            for _ in range(3):
                run(x)
        found = measured(
            {
                "eager": lambda: model(x),
                **{f"torch.compile, {n}": lambda run=run: run(x) for n, run in compiled.items()},
                "our graph": lambda: graph(*given),
                "our kernels": lambda: kernels.call.run(*kernels.call.arguments),
            }
        )
    assert kept.shape == (1, 10) and space.calls
    for name, taken in found.items():
        print(f"{name:26} {taken:7.1f} µs")
    print(f"added in a loop: {found['our graph'] - found['our kernels']:.1f} µs")
    added = found["torch.compile, dovetail"] - found["torch.compile, kernels"]
    print(f"added to a backend that makes its result and runs the kernels: {added:.1f} µs")


if __name__ == "__main__":
    main()
