"""Cases on several processes. One that takes too long, or takes its process down, is one error and not the end."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from tests.conformance.suite import Case, Outcome, judge

MOST_SECONDS = 120.0
"""For one case. The suite's own reference takes tens of seconds for some of its whole networks."""

Judge = Callable[[Case], Outcome]


@dataclass(slots=True)
class _Worker:
    """A process, and the case that it has at the moment."""

    process: BaseProcess
    pipe: Connection
    index: int | None = None
    started: float = 0.0

    def give(self, index: int) -> None:
        self.index, self.started = index, time.monotonic()
        self.pipe.send(index)

    def end(self) -> int | None:
        """Stop it, whatever it does; the result is its exit code."""
        self.pipe.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        return self.process.exitcode


def outcomes(
    cases: Sequence[Case],
    *,
    processes: int,
    most_seconds: float = MOST_SECONDS,
    within: float = math.inf,
    judge: Judge = judge,
) -> Iterator[Outcome]:
    """How each case ended, in the order in which they do; after `within` seconds, the others are not run.

    An error may have lost a device or damaged its process, which another one replaces.
    """
    end = time.monotonic() + within
    waiting = list(range(len(cases)))[::-1]
    workers = [_start(cases, judge) for _ in range(min(processes, len(cases)))]
    for worker in workers:
        worker.give(waiting.pop())
    try:
        while workers and time.monotonic() < end:
            ready = wait([w.pipe for w in workers], timeout=0.2)
            for worker in list(workers):
                index = worker.index
                assert index is not None, "every worker in the list has a case"
                late = time.monotonic() - worker.started > most_seconds
                if worker.pipe not in ready and not late:
                    continue
                outcome = _answer(worker) if worker.pipe in ready else None
                if outcome is None or outcome.verdict == "error":
                    workers.remove(worker)
                    why = f"it takes longer than {most_seconds:g} s" if worker.pipe not in ready else ""
                    worker.process.kill()
                    code = worker.end()
                    outcome = outcome or _lost(cases[index], why or f"the process ended with code {code}")
                    if waiting:
                        worker = _start(cases, judge)
                        workers.append(worker)
                elif not waiting:
                    workers.remove(worker)
                    worker.end()
                if waiting and worker in workers:
                    worker.give(waiting.pop())
                yield outcome
    finally:
        for worker in workers:
            worker.process.kill()
            worker.end()


def _start(cases: Sequence[Case], judge: Judge) -> _Worker:
    # Forked, because the suite has its cases as closures, and computes its expected outputs when it is loaded.
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(cases, judge, there), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _serve(cases: Sequence[Case], judge: Judge, pipe: Connection) -> None:
    while True:
        try:
            index: int = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(judge(cases[index]))


def _answer(worker: _Worker) -> Outcome | None:
    try:
        return worker.pipe.recv()
    except (EOFError, OSError):
        return None


def _lost(case: Case, why: str) -> Outcome:
    return Outcome(case.kind, case.name, case.operator, "error", why)
