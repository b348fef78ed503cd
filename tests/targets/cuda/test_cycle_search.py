"""The search for the cycles that a persistent kernel waits, with times that a function gives."""

from __future__ import annotations

from itertools import count

from dovetail.kernels.loops.ir import Cycles
from dovetail.targets.gpu.persistent.cycle_search import Counts, compared, search

WAITS = (Cycles("early_0", 0, 8), Cycles("pause_1", 1000, 8), Cycles("pause_2", 1000), Cycles("pace", 3400, 8, 65536))


def test_each_number_moves_towards_the_shortest_time() -> None:
    def timed(counts: Counts) -> float:
        early, pause, _, pace = counts
        return 1.0 + abs(early - 300) / 1e4 + abs(pause - 1500) / 1e4 + abs(pace - 3128) / 1e4

    found = search(WAITS, timed)
    assert found.counts == (300, 1500, 1000, 3128) and found.ratio < 0.93


def test_what_one_wait_of_a_run_takes_is_not_searched() -> None:
    seen: set[int] = set()

    def timed(counts: Counts) -> float:
        seen.add(counts[2])
        return 1.0 - counts[2] / 1e4

    assert search(WAITS, timed).counts == (0, 1000, 1000, 3400) and seen == {1000}


def test_no_pause_is_below_none() -> None:
    seen: set[int] = set()

    def timed(counts: Counts) -> float:
        seen.update(counts)
        return 1.0

    search(WAITS, timed)
    assert min(seen) == 0


def test_estimates_stay_where_runs_differ_by_chance() -> None:
    """Clocks change from run to run, by more than any wait: candidates have their runs in turns with the best one."""
    runs = count()
    found = search(WAITS, lambda _: 1.0 + 0.3 * (next(runs) // 40 % 2))
    assert found.counts == (0, 1000, 1000, 3400) and found.ratio == 1.0


def test_estimates_stay_where_the_last_comparison_finds_no_gain() -> None:
    """What was faster in some runs may not be so in more of them: then nothing is taken."""
    runs = count()

    def timed(counts: Counts) -> float:
        number = next(runs)
        is_moved = counts != (0, 1000, 1000, 3400)
        return 1.0 - (0.01 if is_moved and number < 100 else 0.0)

    found = search(WAITS, timed)
    assert next(runs) > 100 and found.counts == (0, 1000, 1000, 3400) and found.ratio == 1.0


def test_a_comparison_is_the_median_of_turns() -> None:
    times = iter([2.0, 1.0, 2.0, 1.0, 2.0, 9.0])
    assert compared(((1,), (2,)), lambda _: next(times), 3) == [1.0, 0.5]
