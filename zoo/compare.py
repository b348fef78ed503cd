"""Two runners of one model, timed in turns on the same threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

PAUSE = 0.03
"""Seconds before a turn: worker threads of the previous runner spin for a while, and hold a core."""
TURNS, MOST_TURNS = 5, 15
"""Turns of each runner; more where the ratio is doubtful."""
TURN_SECONDS = 0.12
LEAST_RUNS = 2
DOUBTFUL = 1.1
"""Below this ratio a comparison continues to MOST_TURNS."""
LONG_RUN = 0.25
"""Seconds from which one run is a turn: what a first run warms up is little of it."""
MOST_SECONDS = 60.0
"""A doubtful comparison ends after this, whatever its turns."""


@dataclass(frozen=True, slots=True)
class Times:
    """Medians of all runs of both, on the wall clock and in CPU time of the process."""

    seconds: float
    peer_seconds: float
    cpu_seconds: float
    peer_cpu_seconds: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the peer we are."""
        return self.peer_seconds / self.seconds

    @property
    def cpu_ratio(self) -> float:
        """The same in CPU time, which a busy machine disturbs less."""
        return self.peer_cpu_seconds / self.cpu_seconds


def compared(ours: Callable[[], object], theirs: Callable[[], object]) -> Times:
    """Both in turns; a doubtful ratio is measured for longer."""
    sides = (ours, theirs)
    walls: tuple[list[float], list[float]] = ([], [])
    cpus: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    for turn in range(MOST_TURNS):
        for side, wall, cpu in zip(sides, walls, cpus, strict=True):
            _take_turn(side, wall, cpu)
        clear = median(walls[1]) >= DOUBTFUL * median(walls[0])
        if turn + 1 >= TURNS and (clear or time.perf_counter() - begun > MOST_SECONDS):
            break
    return Times(median(walls[0]), median(walls[1]), median(cpus[0]), median(cpus[1]))


def _take_turn(run: Callable[[], object], wall: list[float], cpu: list[float]) -> None:
    """Run several times after a first run that does not count, and note each run's times; a long run is run once."""
    time.sleep(PAUSE)
    if not wall or wall[-1] < LONG_RUN:
        run()
    begun, runs = time.perf_counter(), 0
    while runs < (1 if runs and wall[-1] >= LONG_RUN else LEAST_RUNS) or time.perf_counter() - begun < TURN_SECONDS:
        started, used = time.perf_counter(), time.process_time()
        run()
        # A clock of CPU time may be too coarse for a tiny model.
        wall.append(time.perf_counter() - started)
        cpu.append(max(time.process_time() - used, 1e-7))
        runs += 1
