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
AGREE = 0.05
"""The part by which the clock may differ from events of the device without being told."""
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

    def add_from_numpy(self, torch: Any, network: Any, pinned: Sequence[Any]) -> None:
        """torch from tensors in pinned memory of the host and back to the host: eager, and in a CUDA graph."""

        def eager() -> object:
            return network(*[x.to("cuda", non_blocking=True) for x in pinned]).cpu()

        def replayed() -> Step:
            given = [x.cuda() for x in pinned]
            replay, result = recorded(torch, lambda: network(*given))

            def step() -> object:
                for there, x in zip(given, pinned, strict=True):
                    there.copy_(x, non_blocking=True)
                replay()
                return result.cpu()

            return step

        self.add("eager", lambda: eager)
        self.add("eager_graph", replayed)

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


@dataclass(frozen=True, slots=True)
class Time:
    """The seconds of a step, of many back to back."""

    wall: float
    device: float | None = None
    """Between two events of the device around them; None where these cannot tell."""

    @property
    def seconds(self) -> float:
        """By the device where it tells, else by the clock."""
        return self.wall if self.device is None else self.device


def raced(torch: Any, contenders: Mapping[str, Step], *, by_events: bool = True) -> dict[str, Time]:
    """The median time of each, in turns."""
    counts: dict[str, int] = {}
    for name, step in contenders.items():
        for _ in range(5):
            step()
        counts[name] = max(5, int(SECONDS / max(timed(torch, step, 20, by_events=by_events).seconds, 1e-7)))
    rounds: dict[str, list[Time]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, step in contenders.items():
            rounds[name].append(timed(torch, step, counts[name], by_events=by_events))
    return {name: _median(times) for name, times in rounds.items()}


def _median(times: Sequence[Time]) -> Time:
    by_device = [t.device for t in times if t.device is not None]
    told = len(by_device) == len(times)
    return Time(statistics.median(t.wall for t in times), statistics.median(by_device) if told else None)


def timed(torch: Any, step: Step, count: int, *, by_events: bool = True) -> Time:
    """The time of a step, of many back to back.

    Events are on torch's stream, which our programs and replays of its graphs run on. JAX has streams of its own, and
    so may others: where less than half of the time is between events, they do not count.
    """
    settle = step.settle if isinstance(step, JaxStep) else torch.cuda.synchronize
    settle()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start = time.perf_counter()
    begin.record()
    for _ in range(count):
        step()
    end.record()
    settle()
    wall = (time.perf_counter() - start) / count
    if not by_events or isinstance(step, JaxStep):
        return Time(wall)
    torch.cuda.synchronize()
    device = begin.elapsed_time(end) * 1e-3 / count
    return Time(wall, device if device >= wall / 2 else None)


def told_times(times: Mapping[str, Time]) -> str:
    """The milliseconds of each, those of the clock too where it differs, and of which there are no others."""
    found: list[str] = []
    for name, one in times.items():
        found.append(f"{name}={one.seconds * 1e3:.4f}")
        if one.device is not None and abs(one.wall - one.device) > AGREE * one.device:
            found.append(f"{name}_wall={one.wall * 1e3:.4f}")
    by_wall = [name for name, one in times.items() if one.device is None]
    return " ".join([*found, f"by_wall={','.join(by_wall)}"] if 0 < len(by_wall) < len(times) else found)


def compared(times: Mapping[str, Time], floor: float | None = None, *, own: Sequence[str] = ("dovetail",)) -> str:
    """What lines of `make bench` have: the best peer's time over ours, its name, our milliseconds, and the share of the
    limit, which is that of the roofline. `own` are programs of ours, of which the first is compared."""
    ours = times[own[0]].seconds
    peers = {name: one.seconds for name, one in times.items() if name not in own}
    best = min(peers, key=peers.__getitem__, default=None)
    ratio = "none" if best is None else f"{peers[best] / ours:.2f}"
    told = f"ratio={ratio} best_peer={best or 'none'} ms={ours * 1e3:.3g}"
    if floor is None:
        return told
    return f"{told} limit={floor / ours:.2f} floor={floor * 1e3:.4f} roofline={floor / ours:.0%}"


def graphed(torch: Any, step: Step) -> Step:
    """A step of torch in a CUDA graph."""
    return recorded(torch, step)[0]


def recorded(torch: Any, step: Step) -> tuple[Step, Any]:
    """The same with its result, which each replay writes."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph.replay, result


def profiled(torch: Any, step: Step) -> None:
    """The kernels of a run by time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    for event in sorted(found.key_averages(), key=lambda e: -e.device_time_total)[:12]:
        print(f"    {event.device_time_total / 10:9.1f} us {event.count // 10:4d} x {event.key[:80]}", flush=True)


__all__ = [
    "ATTENTIONS", "AUTOTUNE", "MODES", "PEER_SECONDS", "JaxStep", "Peers", "Step", "Time", "Wanted", "add_flags",
    "compared", "graphed", "jax_here", "profiled", "raced", "recorded", "timed", "told_times", "torch_here", "wanted",
]  # fmt: skip
