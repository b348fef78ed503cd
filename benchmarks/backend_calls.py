"""What a call through torch.compile costs besides its kernels: python benchmarks/backend_calls.py

It is compared with backends that add nothing: one returns a kept tensor, one makes its result and runs our kernels, one
runs the captured graph in eager. They take turns after the same guards: those of two compilations of a module, which
differ only in where they lie in memory, may take 25 µs more or less. Kernels take longer between two calls of dynamo
than in a loop: caches are cold. CPU time of the calling thread, in microseconds, medians of rounds that take turns; of
what we add, the median of the differences within a round.
"""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import random
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median, quantiles
from typing import Any

import dovetail.torch
from dovetail.torch.compiled import live
from dovetail.torch.region_call import FIRST_RUNS
from dovetail.torch.staying import is_compiled

torch: Any = import_module("torch")


WARM_CALLS = 5
"""Calls before those that are timed, each time that another backend has its turn."""


class Turns:
    """Backends that take turns in one compiled module: dynamo's code calls what a global variable holds."""

    def __init__(self, module: Any) -> None:
        self.graph: Any = None
        self._before = set(globals())
        self.compiled = torch.compile(module, backend=self._noted)

    def _noted(self, graph: Any, inputs: Any) -> Any:
        self.graph = graph
        return dovetail.torch.backend(graph, inputs)

    @property
    def _name(self) -> str:
        (name,) = (name for name in set(globals()) - self._before if name.startswith("__compiled_fn"))
        return name

    @property
    def ours(self) -> Any:
        """What dynamo calls now."""
        return globals()[self._name]

    def put(self, function: Any) -> None:
        """Let dynamo call this."""
        globals()[self._name] = function


def measured(
    calls: dict[str, tuple[Callable[[], None], Callable[[], Any]]], rounds: int, repeats: int
) -> dict[str, list[float]]:
    """Microseconds of each call in each round; before its calls it is told that it has its turn."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample([*calls], len(calls)):
            turn, call = calls[name]
            turn()
            for _ in range(WARM_CALLS):
                call()
            started = time.thread_time_ns()
            for _ in range(repeats):
                call()
            taken[name].append((time.thread_time_ns() - started) / repeats / 1000)
    return taken


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

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
            self.layers = nn.Sequential(*layers)

        def forward(self, x: Any) -> Any:
            return self.layers(x)

    return Layers(), torch.randn(1, 64)


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


def measure(name: str, made: Callable[[], tuple[Any, Any]], rounds: int, repeats: int) -> None:
    module, x = made()
    module.eval()
    turns, before = Turns(module), set(live())
    run = turns.compiled
    run(x)
    (graph,) = set(live()) - before
    given = _arguments(graph, lambda: run(x))
    (program,) = graph.programs
    runner: Any = program._binding.runner  # pyright: ignore[reportPrivateUsage]
    (calls,) = runner.foreign_calls.values()
    kept = run(x)  # the prepared call holds the address of its last result
    space = calls.workspaces.pop()  # other runs have another workspace
    call = space.last
    while not is_compiled():
        time.sleep(0.01)
    for _ in range(2 * FIRST_RUNS):
        run(x)

    def nothing(*_: Any) -> Any:
        return (kept,)

    def kernels(*_: Any) -> Any:
        call.run(*call.arguments)
        return (call.new_results[0].empty(),)

    def of_dynamo(function: Any) -> tuple[Callable[[], None], Callable[[], Any]]:
        return lambda: turns.put(function), lambda: run(x)

    def alone(function: Callable[[], Any]) -> tuple[Callable[[], None], Callable[[], Any]]:
        return lambda: None, function

    aside = torch._dynamo.disable  # dynamo calls all backends so
    taken = measured(
        {
            "eager": alone(lambda: module(x)),
            "torch.compile, nothing": of_dynamo(aside(nothing)),
            "torch.compile, kernels": of_dynamo(aside(kernels)),
            "torch.compile, eager": of_dynamo(aside(turns.graph.forward)),
            "torch.compile, dovetail": of_dynamo(turns.ours),
            "our graph": alone(lambda: graph.run(given)),
            "our kernels": alone(lambda: call.run(*call.arguments)),
        },
        rounds,
        repeats,
    )
    assert kept.shape == run(x).shape and space.calls
    print(f"{name}: {sum(1 for _ in module.parameters())} weights")
    for what, times in taken.items():
        print(f"  {what:26} {median(times):7.1f} µs")
    print(f"  added in a loop: {_added(taken['our graph'], taken['our kernels'])}")
    added = _added(taken["torch.compile, dovetail"], taken["torch.compile, kernels"])
    print(f"  added to a backend that makes its result and runs the kernels: {added}")


def _added(ours: list[float], others: list[float]) -> str:
    differences = [a - b for a, b in zip(ours, others, strict=True)]
    low, middle, high = quantiles(differences, n=4)
    return f"{middle:.1f} µs (half of the rounds between {low:.1f} and {high:.1f})"


def main() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        measure("mlp", mlp, 40, 200)
        measure("encoder", encoder, 80, 50)


if __name__ == "__main__":
    main()
