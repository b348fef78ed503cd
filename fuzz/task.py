"""A piece of the budget: some graphs or some files from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fuzz.files import KINDS, limit_memory, run_file
from fuzz.run import run_batch
from fuzz.sources import SOURCES
from fuzz.workers import Say

MEMORY = 6 << 30
"""Bytes of address space that a process may take."""


@dataclass(frozen=True, slots=True)
class Task:
    """Some graphs of a source, or some files of a kind, from a seed."""

    kind: str
    seed: int
    count: int


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a task."""

    task: Task
    tried: int
    uncertain: int
    failures: tuple[str, ...]


def work(task: Task, say: Say, *, home: Path) -> Done:
    """Run one task in this process."""
    limit_memory(MEMORY)
    if task.kind in SOURCES:
        batch = run_batch(task.kind, task.seed, task.count, home, lambda: say(None))
        return Done(task, batch.graphs, batch.uncertain, (batch.failure,) if batch.failure else ())
    failures: list[str] = []
    for seed in range(task.seed, task.seed + task.count):
        say(seed)
        why = run_file(task.kind, seed, home)
        if why:
            path = home / f"{task.kind}-{seed}{KINDS[task.kind].suffix}"
            failures.append(f"{path}: {why.strip().splitlines()[-1][:300]}")
    return Done(task, task.count, 0, tuple(failures))
