"""One peer in a process of its own: it prepares a case, and runs it when its turn comes.

`python -m dovetail.bench.peer_process PEER THREADS CACHE NAME MODEL FOLDER` imports what it needs and says so, reads
"start" or "turn SECONDS" from stdin, and answers each with a line of JSON. The peer `limits` is the machine itself:
what it can do at most.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dovetail.bench.case import Case, save_arrays
from dovetail.bench.peers import EVERY, ModuleRun, Peer, Run, Setting, definitions
from dovetail.bench.roofline import roofline_of
from dovetail.runtime.load import load
from dovetail.targets.cpu.measure.peak import Meter

PAUSE = 0.05
"""Before a turn: worker threads of the previous peer spin for a while, and hold a core."""
WARM_UPS, LEAST_RUNS = 2, 3
LIMITS = "limits"


class Contender(Protocol):
    """A peer, or the machine itself, that takes turns."""

    def start(self) -> Mapping[str, Any]: ...

    def turn(self, seconds: float) -> Mapping[str, Any]: ...


class PeerContender:
    """A peer: it starts by preparing the case and running it once, and in its turn runs it again and again."""

    def __init__(self, peer: Peer, case: Case, setting: Setting) -> None:
        self.peer, self.case, self.setting = peer, case, setting
        self.feeds = case.feeds()
        self.run: Run = lambda feeds: ()
        for package in peer.packages:
            importlib.import_module(package)
        if case.network:
            definitions("torch_networks").import_sources(case.network)

    def start(self) -> Mapping[str, Any]:
        """Seconds to prepare and run once, and how far that made the process grow, at most and for good."""
        forget_peak()
        before = resident("VmRSS")
        started = time.perf_counter()
        self.run = self.peer.prepare(self.case, self.setting)
        results = self.run(self.feeds)
        seconds = time.perf_counter() - started
        grown = {"peak": resident("VmHWM") - before, "kept": resident("VmRSS") - before}
        save_arrays(results_of(self.setting, self.peer.name), {str(i): np.asarray(a) for i, a in enumerate(results)})
        self._note_work()
        return {"first": seconds, **grown}

    def _note_work(self) -> None:
        """Leave the work of a module for the machine's process, which then needs not export the module once more."""
        path = work_of(self.setting)
        if isinstance(self.run, ModuleRun) and not path.is_file():
            path.write_text(json.dumps(roofline_of(self.run.graph(), self.feeds)), encoding="utf-8")

    def turn(self, seconds: float) -> Mapping[str, Any]:
        time.sleep(PAUSE)
        for _ in range(WARM_UPS):
            self.run(self.feeds)
        runs: list[float] = []
        while len(runs) < LEAST_RUNS or sum(runs) < seconds:
            started = time.perf_counter()
            self.run(self.feeds)
            runs.append(time.perf_counter() - started)
        return {"runs": runs}


class MachineContender:
    """The machine: it starts by counting what the case has to do, and in its turn measures what can be done."""

    def __init__(self, case: Case, setting: Setting) -> None:
        self.case, self.setting = case, setting
        self.meter = Meter(setting.threads)

    def start(self) -> Mapping[str, Any]:
        if self.case.network:
            flops, read = json.loads(work_of(self.setting).read_text(encoding="utf-8"))
        else:
            flops, read = roofline_of(load(self.case.model, fixed=self.case.fixed()), self.case.feeds())
        return {"flops": flops, "bytes": read}

    def turn(self, seconds: float) -> Mapping[str, Any]:
        time.sleep(PAUSE)
        best, last = self.meter.measure(), self.meter.last
        return {name: {"flops": at.flops, "bytes": at.bytes} for name, at in (("last", last), ("best", best))}


def results_of(setting: Setting, peer: str) -> Path:
    """Return where a peer leaves its results for a comparison."""
    return setting.cache / f"results-{peer}.npz"


def work_of(setting: Setting) -> Path:
    """Return where dovetail's process leaves the work of a module: its flops and the bytes of its weights."""
    return setting.cache / "work.json"


def resident(what: str) -> int:
    """VmRSS, the bytes that the process has in memory, or VmHWM, the most that it had; 0 where the system is silent."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:")), 0)


def forget_peak() -> None:
    """Let VmHWM start again from what is in memory now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def main(arguments: Sequence[str]) -> int:
    # Libraries print what they like; answers have a way of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    peer, threads, cache, name, model, folder = arguments
    setting, case = Setting(int(threads), Path(cache)), Case(name, Path(model), Path(folder))
    seat: Contender | None = None

    def answer(line: str) -> Mapping[str, Any]:
        nonlocal seat
        word, _, seconds = line.strip().partition(" ")
        try:
            if seat is None:
                seat = MachineContender(case, setting) if peer == LIMITS else PeerContender(EVERY[peer], case, setting)
            return {} if not word else seat.start() if word == "start" else seat.turn(float(seconds))
        except Exception as error:  # a peer's failure is an answer, whatever its type
            return {"refused": reason(error)}

    for line in itertools.chain([""], sys.stdin):
        print(json.dumps(answer(line)), file=answers, flush=True)
    return 0


def reason(error: Exception) -> str:
    """Return the first words of an error that say something; openvino begins with the place in its sources."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    return (lines[0] if lines else error.__class__.__name__)[:160]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
