"""Contenders of benchmarks on an NVIDIA GPU: torch eager, in a CUDA graph and compiled, and JAX, timed in turns.

A contender that fails, or takes too long to be ready, is left out and named. torch.compile with max-autotune has a flag
of its own with a time limit: it times many kernels for each product.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROUNDS, SECONDS = 7, 0.1
MODES = ("default", "reduce-overhead")
AUTOTUNE = "max-autotune"
PEER_SECONDS = 120.0
"""For a peer to be ready."""
AUTOTUNE_SECONDS = 100.0
ATTENTIONS = ("xla", "cudnn")
"""How JAX computes attention."""
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The peers beside torch eager and eager in a CUDA graph."""

    modes: Mapping[str, float] = field(default_factory=dict[str, float])
    """Modes of torch.compile, and the seconds in which each must be ready."""
    attentions: Sequence[str] = ()
    """Those of JAX, each of which is a peer."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of peers that take long to be ready."""
    parser.add_argument(
        "--max-autotune",
        nargs="?",
        type=float,
        const=AUTOTUNE_SECONDS,
        metavar="SECONDS",
        help=f"beside torch.compile with max-autotune, if that is ready within these seconds ({AUTOTUNE_SECONDS:g})",
    )
    parser.add_argument(
        "--jax", nargs="*", choices=ATTENTIONS, help="beside JAX, jitted, with attention by these ways (xla)"
    )


def wanted(args: argparse.Namespace, modes: Iterable[str]) -> Wanted:
    """What flags and modes of torch.compile ask for."""
    limits = dict.fromkeys(modes, PEER_SECONDS)
    if args.max_autotune is not None:
        limits[AUTOTUNE] = args.max_autotune
    return Wanted(limits, () if args.jax is None else args.jax or ATTENTIONS[:1])


def torch_here() -> Any:
    """torch with a CUDA device; None where there is none, which is printed."""
    try:
        import torch as untyped  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("torch is not installed: nothing to compare with")
        return None
    torch: Any = untyped
    if not torch.cuda.is_available():
        print("there is no CUDA device")
        return None
    return torch


def jax_here(backend: str = "gpu") -> Any:
    """JAX with a device of a backend; it takes memory as it needs it, since others share the device."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax: Any = importlib.import_module("jax")
    if jax.default_backend() != backend:
        raise RuntimeError(f"JAX has no {backend}, but {jax.default_backend()}")
    return jax


@dataclass(slots=True)
class JaxStep:
    """A call of JAX, which returns before it has run: `settle` waits for the last one."""

    jax: Any
    call: Callable[[], Any]
    result: Any = None

    def __call__(self) -> None:
        self.result = self.call()

    def settle(self) -> None:
        self.jax.block_until_ready(self.result)


@dataclass(slots=True)
class Peers:
    """Contenders by name, and why others are none."""

    steps: dict[str, Step] = field(default_factory=dict[str, Step])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, name: str, make: Callable[[], Step], seconds: float = PEER_SECONDS) -> None:
        """Prepare a contender and run it three times, as those need that record a graph; one that fails is left out."""

        def late(*_: object) -> None:
            raise TimeoutError(f"not ready within {seconds:g} s")

        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            step = make()
            for _ in range(3):
                step()
            self.steps[name] = step
        except Exception as error:  # whatever it is, the others run
            self.failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def add_torch(self, torch: Any, network: Any, given: Sequence[Any], modes: Mapping[str, float]) -> None:
        """A network of torch: eager, in a CUDA graph, and compiled in some modes."""

        def eager() -> object:
            return network(*given)

        def compiled(mode: str) -> Step:
            torch._dynamo.reset()
            other = torch.compile(network, fullgraph=True, dynamic=False, mode=mode)
            return lambda: other(*given)

        self.add("eager", lambda: eager)
        self.add("eager_graph", lambda: graphed(torch, eager))
        for mode, seconds in modes.items():
            self.add(mode, lambda mode=mode: compiled(mode), seconds)

    def add_jax(self, attentions: Iterable[str], make: Callable[[Any, str], Callable[[], Any]]) -> dict[str, JaxStep]:
        """JAX with attention in several ways; those that run, by name."""
        for attention in attentions:
            name = "jax" if attention == ATTENTIONS[0] else f"jax_{attention}"

            def made(attention: str = attention) -> Step:
                jax = jax_here()
                step = JaxStep(jax, make(jax, attention))
                step()
                step.settle()
                return step

            self.add(name, made)
        return {name: step for name, step in self.steps.items() if isinstance(step, JaxStep)}

    @property
    def told(self) -> str:
        """Those that failed, for the end of a line."""
        return "".join(f" {name}=failed({why})" for name, why in self.failed.items())


def raced(torch: Any, contenders: Mapping[str, Step]) -> dict[str, float]:
    """The median seconds of each, in turns."""
    counts: dict[str, int] = {}
    for name, step in contenders.items():
        for _ in range(5):
            step()
        counts[name] = max(5, int(SECONDS / max(timed(torch, step, 20), 1e-7)))
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, step in contenders.items():
            rounds[name].append(timed(torch, step, counts[name]))
    return {name: statistics.median(times) for name, times in rounds.items()}


def timed(torch: Any, step: Step, count: int) -> float:
    """The seconds of a step, of many back to back."""
    settle = step.settle if isinstance(step, JaxStep) else torch.cuda.synchronize
    settle()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    settle()
    return (time.perf_counter() - start) / count


def graphed(torch: Any, step: Step) -> Step:
    """A step of torch in a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def profiled(torch: Any, step: Step) -> None:
    """The kernels of a run by time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    for event in sorted(found.key_averages(), key=lambda e: -e.device_time_total)[:12]:
        print(f"    {event.device_time_total / 10:9.1f} us {event.count // 10:4d} x {event.key[:80]}", flush=True)


__all__ = [
    "ATTENTIONS", "AUTOTUNE", "MODES", "PEER_SECONDS", "JaxStep", "Peers", "Step", "Wanted", "add_flags", "graphed",
    "jax_here", "profiled", "raced", "timed", "torch_here", "wanted",
]  # fmt: skip
