"""One training step (forward, backward, AdamW) beside torch, torch.compile and jax.

    python benchmarks/train.py [--threads 2] [--models mlp resnet20_32] [--seconds 10] [--rounds 5] [--cpu] [--profile]

Each peer has a process of its own on as many cores as it has threads, with the same weights and batch, and they take
turns. Times are medians; with --cpu they are processor time, for machines that others use too. Peers that are not
installed are left out, and one whose first losses are not ours is refused. Memory is the most that a process holds
during a step, after the first ones, beyond what it held when its packages were imported, in both without pages of
files, which the system may drop. Ratios above 1 of time and below 1 of memory are in our favour.
--profile shows our kernels that take longest, by kind.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from asked import asked
from train_steps.works import WORKS, Work

from dovetail.bench.peer_process import forget_peak, resident
from dovetail.bench.process import OnCores

OURS = "dovetail"
PEERS = {OURS: "dovetail", "torch": "torch", "torch.compile": "torch", "jax": "jax"}
"""Each peer, and the package that it needs."""
FIRST = 3
"""Steps whose losses are compared."""
FARTHEST = 1e-3


@dataclass(slots=True)
class Timed:
    """A peer's process and what it told."""

    name: str
    process: subprocess.Popen[str]
    losses: list[float] = field(default_factory=list[float])
    grown: int = 0
    runs: list[float] = field(default_factory=list[float])

    def ask(self, words: str) -> dict[str, Any]:
        return asked(self.process, words)

    @property
    def median(self) -> float:
        return statistics.median(self.runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", nargs="*", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--vs", nargs="*", default=list(PEERS)[1:], choices=list(PEERS)[1:])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each peer, about")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer")
    parser.add_argument("--cpu", action="store_true", help="processor time")
    parser.add_argument("--profile", action="store_true", help="only our kernels, by kind")
    parser.add_argument("--serve", choices=list(PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, WORKS[options.models[0]], options.threads, options.cpu)
        return 0
    for name in options.models:
        if options.profile:
            profile(name, options.threads)
        else:
            print(measured(name, options), flush=True)
    return 0


def measured(model: str, options: argparse.Namespace) -> str:
    """The line of one model; what each peer told goes to stderr."""
    asked = [OURS, *(peer for peer in options.vs if importlib.util.find_spec(PEERS[peer]) is not None)]
    ready: list[Timed] = []
    for peer in asked:
        with OnCores(options.threads):
            flags = ["--threads", str(options.threads), *(["--cpu"] if options.cpu else [])]
            process = subprocess.Popen(
                [sys.executable, __file__, "--serve", peer, "--models", model, *flags],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(options.threads), "JAX_PLATFORMS": "cpu"},
            )  # fmt: skip
        timed = Timed(peer, process)
        told = timed.ask("start")
        if "refused" not in told:
            timed.losses, timed.grown = told["losses"], told["grown"]
            ours = ready[0].losses if ready else timed.losses
            far = max(abs(a - b) / abs(a) for a, b in zip(ours, timed.losses, strict=True))
            told = {"refused": f"its losses are {far:.2g} from ours"} if far > FARTHEST else told
        if "refused" in told:
            process.kill()
            if peer == OURS:
                raise SystemExit(f"{model}: {told['refused']}")
            print(f"  {model} {peer}: refused, {told['refused']}", file=sys.stderr)
        else:
            ready.append(timed)
    for turn in range(options.rounds):
        for place in range(len(ready)):
            peer = ready[(turn + place) % len(ready)]
            peer.runs += peer.ask(f"turn {options.seconds / options.rounds}")["runs"]
    for peer in ready:
        print(f"  {model} {peer.name}: {peer.median * 1e3:.1f} ms, {peer.grown >> 20} MiB", file=sys.stderr)
        assert peer.process.stdin is not None
        peer.process.stdin.close()
        peer.process.wait()
    return line(model, options.threads, ready)


def line(model: str, threads: int, ready: Sequence[Timed]) -> str:
    ours, *peers = ready
    if not peers:
        return f"bench train/{model} threads={threads} ratio=none best_peer=none ms={ours.median * 1e3:.3g}"
    best = min(peers, key=lambda peer: peer.median)
    memory = ours.grown / min(peer.grown for peer in peers)
    return (
        f"bench train/{model} threads={threads} ratio={best.median / ours.median:.2f} best_peer={best.name}"
        f" ms={ours.median * 1e3:.3g} memory={memory:.2f}"
    )


def serve(peer: str, work: Work, threads: int, cpu: bool) -> None:
    """One peer: prepares at "start", and makes steps at "turn SECONDS"."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    clock = time.process_time if cpu else time.perf_counter
    step: Callable[[], float] = float
    for line in sys.stdin:
        word, _, seconds = line.strip().partition(" ")
        try:
            if word == "start":
                importlib.import_module(PEERS[peer])
                prepare = prepare_of(peer)
                before = resident("VmRSS") - resident("RssFile")
                step = prepare(work, threads)
                answer: dict[str, Any] = {"losses": [step() for _ in range(FIRST)]}
                forget_peak()
                step()
                answer["grown"] = resident("VmHWM") - resident("RssFile") - before
            else:
                time.sleep(0.05)
                step()
                answer = {"runs": timed_steps(step, float(seconds), clock)}
        except Exception as error:  # a peer's failure is an answer, whatever its type
            answer = {"refused": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(answer), file=answers, flush=True)


def prepare_of(peer: str) -> Callable[[Work, int], Callable[[], float]]:
    if peer == OURS:
        return importlib.import_module("train_steps.ours").prepare
    if peer == "jax":
        return importlib.import_module("train_steps.jax_step").prepare
    in_torch: Any = importlib.import_module("train_steps.torch_step").prepare
    return lambda work, threads: in_torch(work, threads, compiled=peer == "torch.compile")


def timed_steps(step: Callable[[], float], seconds: float, clock: Callable[[], float]) -> list[float]:
    runs: list[float] = []
    until = time.perf_counter() + seconds
    while len(runs) < 2 or time.perf_counter() < until:
        started = clock()
        step()
        runs.append(clock() - started)
    return runs


def profile(model: str, threads: int) -> None:
    """Our kernels by kind, those that take longest first."""
    ours: Any = importlib.import_module("train_steps.ours")
    measured = ours.profiled(WORKS[model], threads)
    kinds: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for kernel in measured.kernels:
        kinds[kernel.op, kernel.on_host].append(kernel.seconds)
    total = sum(sum(found) for found in kinds.values())
    print(f"{model}: {total * 1e3:.1f} ms in {sum(map(len, kinds.values()))} kernels")
    for (op, on_host), found in sorted(kinds.items(), key=lambda item: -sum(item[1])):
        where = " on the host" if on_host else ""
        print(f"{sum(found) * 1e3:9.2f} ms {sum(found) / total:6.1%} {len(found):4} {op}{where}")


if __name__ == "__main__":
    sys.exit(main())
