"""Random graphs and damaged files within a budget: `make fuzz`, `make fuzz ARGS="--graphs 20000 --files 100000"`.

Each graph is compiled the default way and a drawn way (passes and rewrites switched off, greedy or e-graph, strict,
symbolic or specialised, one or two threads, written and read again) and judged by float64; runs with other threads, a
second run and the program from the cache must have the same bits. Each damaged file must end in a typed error, or load,
compile and run. What fails is shrunk and kept in build/fuzz, each graph with a test.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fuzz import nnsmith_models
from fuzz.files import KINDS
from fuzz.sources import SOURCES
from fuzz.task import Task, work
from fuzz.workers import Died, work_through

HOME = Path("build") / "fuzz"
GRAPHS_A_TASK = 25
FILES_A_TASK = 250


def tasks(kinds: list[str], counts: dict[str, int], seed: int, end: float) -> Iterator[Task]:
    """Tasks of all kinds in turn until their counts are reached or the time is over."""
    left = dict(counts)
    for number in itertools.count():
        open_kinds = [kind for kind in kinds if left[kind] > 0]
        if not open_kinds or time.monotonic() > end:
            return
        kind = open_kinds[number % len(open_kinds)]
        size = min(left[kind], GRAPHS_A_TASK if kind in SOURCES else FILES_A_TASK)
        left[kind] -= size
        yield Task(kind, seed + number * FILES_A_TASK, size)


def main() -> int:
    """Spend the budget, print totals, and fail if anything did."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--graphs", type=int, default=300, help="graphs of all sources together (default 300)")
    parser.add_argument("--files", type=int, default=3000, help="damaged files of all kinds together (default 3000)")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="where the random numbers start")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--only", default="", help=f"one of {', '.join((*SOURCES, *KINDS))}")
    said = parser.parse_args()
    sources = [name for name in SOURCES if name != "nnsmith" or nnsmith_models.is_installed()]
    if "nnsmith" not in sources:
        print("nnsmith is not installed: its graphs are skipped (python -m pip install nnsmith)")
    counts = {name: said.graphs // len(sources) for name in sources}
    counts |= {name: said.files // len(KINDS) for name in KINDS}
    kinds = [said.only] if said.only else list(counts)
    tried: Counter[str] = Counter()
    uncertain: Counter[str] = Counter()
    failures: list[str] = []
    started = time.monotonic()
    for found in work_through(
        tasks(kinds, counts, said.seed, started + said.seconds), partial(work, home=HOME), said.jobs
    ):
        if isinstance(found, Died):
            failures.append(f"{HOME}: {found.task}: the process {found.how}")
        else:
            tried[found.task.kind] += found.tried
            uncertain[found.task.kind] += found.uncertain
            failures += found.failures
        for line in failures[len(failures) - (1 if isinstance(found, Died) else len(found.failures)) :]:
            print(line, flush=True)
    for kind in kinds:
        unsure = f", {uncertain[kind]} that float64 cannot judge" if uncertain[kind] else ""
        print(f"{kind:12} {tried[kind]:7} tried{unsure}")
    print(f"{len(failures)} failures in {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
