"""Processes that work through a budget. One that dies or falls silent is a finding; another takes its place."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

SILENCE = 120.0
"""Seconds after which a process that says nothing hangs."""

Say = Callable[[Any], None]
Work = Callable[[Any, Say], Any]


@dataclass(frozen=True, slots=True)
class Died:
    """A process that ended, or was ended, in the middle of a task."""

    task: Any
    how: str


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    task: Any = None
    heard: float = 0.0


def work_through(tasks: Iterator[Any], work: Work, jobs: int) -> Iterator[Any]:
    """What `work` gives for each task, in any order; `Died` for a task that took its process down.

    `work` gets a task and a function to call now and then: silence counts as a hang.
    """
    context = multiprocessing.get_context("spawn")
    workers = [_start(context, work) for _ in range(jobs)]
    try:
        for worker in workers:
            _give(worker, tasks)
        while busy := [w for w in workers if w.task is not None]:
            wait([w.connection for w in busy], timeout=1.0)
            for worker in busy:
                found = _hear(worker)
                if found is None:
                    continue
                if isinstance(found, Died):
                    workers.remove(worker)
                    worker.process.kill()
                    worker.process.join()
                    worker = _start(context, work)
                    workers.append(worker)
                yield found
                _give(worker, tasks)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _start(context: Any, work: Work) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, tasks: Iterator[Any]) -> None:
    worker.task = next(tasks, None)
    worker.heard = time.monotonic()
    if worker.task is not None:
        worker.connection.send(worker.task)


def _hear(worker: _Worker) -> Any:
    """The result of a worker's task, once it is there; `Died` if there will be none."""
    try:
        while worker.connection.poll():
            worker.heard = time.monotonic()
            is_result, said = worker.connection.recv()
            if is_result:
                return said
    except (EOFError, OSError):
        worker.process.join(5)
        return Died(worker.task, f"ended with {worker.process.exitcode}")
    if time.monotonic() - worker.heard > SILENCE:
        return Died(worker.task, f"silent for {SILENCE:.0f} s")
    return None


def _serve(connection: Connection, work: Work) -> None:
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        result = work(task, lambda said: connection.send((False, said)))
        connection.send((True, result))
