"""The thread pool by a clock of the test's own: stragglers are quarantined, for how long, and come back."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.jit import compile_text
from dovetail.targets.cpu.threads.pool_text import (
    INSIDE,
    LAST_QUARANTINE_END,
    MAX_QUARANTINE_NS,
    QUARANTINE_NS,
    QUARANTINED_UNTIL,
    STOP,
    STRAGGLER_NS,
    WORKERS,
    block_bytes,
    pool_text,
)

pytestmark = pytest.mark.serial  # it starts pools of several threads

TILES = 4
COUNT = """
define void @count(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {
entry:
  %counted = sub i64 %end, %begin
  atomicrmw add ptr %a, i64 %counted seq_cst
  ret void
}
"""
_CLOCK = re.compile(r"define internal i64 @now\(\) nounwind \{.*?\n\}\n", re.DOTALL)


class Bench:
    """A pool of one worker whose clock the test moves, with one step that counts the tiles that are run."""

    def __init__(self) -> None:
        self.clock: Callable[[], int] = lambda: 0
        self._now = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: self.clock())
        address = ctypes.cast(self._now, ctypes.c_void_p).value
        asked = f"""define internal i64 @now() nounwind {{
entry:
  %clock = inttoptr i64 {address} to ptr
  %time = call i64 %clock()
  ret i64 %time
}}
"""
        plain = pool_text(arm=host().is_arm, linux=sys.platform == "linux", spins=100)
        text, found = _CLOCK.subn(asked, plain)
        assert found == 1
        self.code = compile_text(
            text.replace("define internal void @quarantine(", "define void @quarantine("),
            vectorize=False,
            optimize=False,
        )
        self.count = compile_text(COUNT)
        self._memory = np.zeros(block_bytes(1) + 64, np.uint8)
        self.block = (self._memory.ctypes.data + 63) // 64 * 64
        self.tiles = np.zeros(1, np.int64)

    def word(self, name: int) -> Any:
        """A word of the worker's line."""
        return ctypes.c_int64.from_address(self.block + WORKERS + name)

    def half(self, at: int) -> Any:
        """The gate, or whether all are to go home."""
        return ctypes.c_int32.from_address(self.block + at)

    @property
    def quarantined(self) -> tuple[int, int, int]:
        return self.word(QUARANTINE_NS).value, self.word(LAST_QUARANTINE_END).value, self.word(QUARANTINED_UNTIL).value

    def quarantine(self, waited: int) -> None:
        kind: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        kind(self.code.address("quarantine"))(self.block + WORKERS, waited)

    def lead(self, workers: int = 1) -> None:
        """Run the step; whoever is inside when its tiles are done is waited for."""
        self.half(0).value |= 1
        row = [self.count.address("count"), self.tiles.ctypes.data, TILES, 1, 0, 0]
        table = np.array([row], np.int64)
        kind: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 6)
        assert kind(self.code.address("run"))(self.block, table.ctypes.data, 0, 1, 0, 0, workers, 0) == 1

    def work(self) -> None:
        """Be the worker, until somebody says stop."""
        kind: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        kind(self.code.address("worker"))(self.block, 1)


@pytest.fixture(scope="module")
def compiled() -> Bench:
    return Bench()


@pytest.fixture
def bench(compiled: Bench) -> Bench:
    ctypes.memset(compiled.block, 0, block_bytes(1))
    compiled.tiles[:] = 0
    compiled.half(0).value = 1
    return compiled


def test_a_worker_is_kept_away_for_as_long_as_it_was_waited_for(bench: Bench) -> None:
    bench.clock = lambda: 10_000
    bench.quarantine(500)
    assert bench.quarantined == (500, 10_500, 10_500)


def test_twice_as_long_if_it_is_late_again_soon_after(bench: Bench) -> None:
    bench.clock = lambda: 10_000
    bench.quarantine(500)
    bench.clock = lambda: 10_500 + 499
    bench.quarantine(20)
    assert bench.quarantined == (1000, 11_999, 11_999)
    bench.clock = lambda: 11_999 + 1000
    bench.quarantine(20)
    assert bench.quarantined == (20, 13_019, 13_019), "that was not soon any more"


def test_never_longer_than_the_longest(bench: Bench) -> None:
    now = 0
    bench.clock = lambda: now
    lengths: list[int] = []
    for _ in range(40):
        bench.quarantine(STRAGGLER_NS)
        lengths.append(bench.word(QUARANTINE_NS).value)
        now = bench.word(LAST_QUARANTINE_END).value + 1
    assert lengths[:3] == [STRAGGLER_NS, 2 * STRAGGLER_NS, 4 * STRAGGLER_NS]
    assert lengths[-1] == max(lengths) == MAX_QUARANTINE_NS


@pytest.mark.parametrize(("waits", "late"), [(STRAGGLER_NS, False), (STRAGGLER_NS + 100 + 1, True)])
def test_the_leader_bars_whom_it_misses(bench: Bench, waits: int, late: bool) -> None:
    """The worker is inside when the leader is done, and leaves after a while; the leader worked for 100."""
    bench.word(INSIDE).value = 1
    times = iter([1000, 1100])

    def clock() -> int:
        time = next(times, None)
        if time is None:
            bench.word(INSIDE).value = 0
            return 1100 + waits
        return time

    bench.clock = clock
    bench.lead()
    assert bench.tiles[0] == TILES, "the leader has run all that the worker did not"
    assert bench.quarantined == ((waits, 1100 + 2 * waits, 1100 + 2 * waits) if late else (0, 0, 0))


@pytest.mark.parametrize(("time", "comes"), [(4999, False), (5000, True)])
def test_a_worker_that_is_barred_leaves_jobs_alone_until_its_time_is_over(bench: Bench, time: int, comes: bool) -> None:
    bench.clock = lambda: 0
    bench.lead(workers=1)
    assert bench.tiles[0] == TILES
    # The job once more, with all of its tiles in the range of the worker, and the gate open.
    ranges = (ctypes.c_int64 * 2).from_address(bench.block + WORKERS + 64)
    ranges[1] = TILES << 32
    bench.half(0).value += 1
    bench.word(QUARANTINED_UNTIL).value = 5000

    def clock() -> int:
        bench.half(STOP).value = 1
        return time

    bench.clock = clock
    bench.work()
    assert bench.tiles[0] == (2 * TILES if comes else TILES)
    assert bench.word(QUARANTINED_UNTIL).value == (0 if comes else 5000)
    assert bench.half(WORKERS + INSIDE).value == 0, "it is not inside"
