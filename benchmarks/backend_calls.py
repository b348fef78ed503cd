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
from dovetail.torch.region_call import FIRST_RUNS

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

    def noted(args: tuple[Any, ...]) -> Any:
        seen.append(args)
        return run(args)

    graph._run = noted
    call()
    graph._run = run
    return seen[0]


def mlp() -> tuple[Any, Any]:
    """Three linear layers of 64, and a row for them."""
    nn = torch.nn
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*layers), torch.randn(1, 64)


def encoder() -> tuple[Any, Any]:
    """As many weights as MiniLM has, 101, in narrow layers: what they add is seen beside their kernels."""
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            parts = [f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)]
            taken = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
            x = self.first(x + self.o(taken))
            return self.second(x + self.down(nn.functional.gelu(self.up(x))))

    class Encoder(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.words, self.norm = nn.Embedding(100, width), nn.LayerNorm(width)
            self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(6)])
            self.pooled = nn.Linear(width, width)

        def forward(self, words: Any) -> Any:
            return torch.tanh(self.pooled(self.layers(self.norm(self.words(words)))[:, 0]))

    return Encoder(32, 4), torch.randint(0, 100, (1, 8))


def measure(name: str, made: Callable[[], tuple[Any, Any]], repeats: int) -> None:
    module, x = made()
    module.eval()
    kernels = Kernels()
    backends = {"nothing": nothing, "kernels": kernels, "eager": eager, "dovetail": dovetail.torch.backend}
    before = set(live())
    compiled = {n: torch.compile(module, backend=b) for n, b in backends.items()}
    ours = compiled["dovetail"]
    ours(x)
    (graph,) = set(live()) - before
    given = _arguments(graph, lambda: ours(x))
    (program,) = graph.programs
    runner: Any = program._binding.runner  # pyright: ignore[reportPrivateUsage]
    (calls,) = runner.foreign_calls.values()
    kept = ours(x)  # the prepared call holds the address of its last result
    space = calls.workspaces.pop()  # other runs have another workspace
    kernels.call = space.last
    for run in compiled.values():
        for _ in range(2 * FIRST_RUNS):
            run(x)
    found = measured(
        {
            "eager": lambda: module(x),
            **{f"torch.compile, {n}": lambda run=run: run(x) for n, run in compiled.items()},
            "our graph": lambda: graph(*given),
            "our kernels": lambda: kernels.call.run(*kernels.call.arguments),
        },
        repeats=repeats,
    )
    assert kept.shape == ours(x).shape and space.calls
    print(f"{name}: {sum(1 for _ in module.parameters())} weights")
    for what, taken in found.items():
        print(f"  {what:26} {taken:7.1f} µs")
    print(f"  added in a loop: {found['our graph'] - found['our kernels']:.1f} µs")
    added = found["torch.compile, dovetail"] - found["torch.compile, kernels"]
    print(f"  added to a backend that makes its result and runs the kernels: {added:.1f} µs")


def main() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        measure("mlp", mlp, 500)
        measure("encoder", encoder, 100)


if __name__ == "__main__":
    main()
