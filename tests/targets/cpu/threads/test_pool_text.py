"""The crew by a clock of the test's own: who is waited for too long is kept away, for how long, and comes back."""

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
    BARRED,
    FOR,
    INSIDE,
    LONGEST,
    OWN,
    PATIENCE,
    STOP,
    UNTIL,
    block_bytes,
    crew_text,
)

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
    """A crew of one worker whose clock the test moves, with one step that counts the tiles that are run."""

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
        plain = crew_text(arm=host().is_arm, linux=sys.platform == "linux", spins=100)
        text, found = _CLOCK.subn(asked, plain)
        assert found == 1
        self.code = compile_text(text.replace("define internal void @bar(", "define void @bar("), vectorize=False)
        self.count = compile_text(COUNT)
        self._memory = np.zeros(block_bytes(1) + 64, np.uint8)
        self.block = (self._memory.ctypes.data + 63) // 64 * 64
        self.tiles = np.zeros(1, np.int64)

    def word(self, name: int) -> Any:
        """A word of the worker's line."""
        return ctypes.c_int64.from_address(self.block + OWN + name)

    def half(self, at: int) -> Any:
        """The gate, or whether all are to go home."""
        return ctypes.c_int32.from_address(self.block + at)

    @property
    def kept_away(self) -> tuple[int, int, int]:
        return self.word(FOR).value, self.word(UNTIL).value, self.word(BARRED).value

    def bar(self, waited: int) -> None:
        kind: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
        kind(self.code.address("bar"))(self.block + OWN, waited)

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
    bench.bar(500)
    assert bench.kept_away == (500, 10_500, 10_500)


def test_twice_as_long_if_it_is_late_again_soon_after(bench: Bench) -> None:
    bench.clock = lambda: 10_000
    bench.bar(500)
    bench.clock = lambda: 10_500 + 499
    bench.bar(20)
    assert bench.kept_away == (1000, 11_999, 11_999)
    bench.clock = lambda: 11_999 + 1000
    bench.bar(20)
    assert bench.kept_away == (20, 13_019, 13_019), "that was not soon any more"


def test_never_longer_than_the_longest(bench: Bench) -> None:
    now = 0
    bench.clock = lambda: now
    lengths: list[int] = []
    for _ in range(40):
        bench.bar(PATIENCE)
        lengths.append(bench.word(FOR).value)
        now = bench.word(UNTIL).value + 1
    assert lengths[:3] == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE]
    assert lengths[-1] == max(lengths) == LONGEST


@pytest.mark.parametrize(("waits", "late"), [(PATIENCE, False), (PATIENCE + 100 + 1, True)])
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
    assert bench.kept_away == ((waits, 1100 + 2 * waits, 1100 + 2 * waits) if late else (0, 0, 0))


@pytest.mark.parametrize(("time", "comes"), [(4999, False), (5000, True)])
def test_a_worker_that_is_barred_leaves_jobs_alone_until_its_time_is_over(bench: Bench, time: int, comes: bool) -> None:
    bench.clock = lambda: 0
    bench.lead(workers=1)
    assert bench.tiles[0] == TILES
    # The job once more, with all of its tiles in the range of the worker, and the gate open.
    ranges = (ctypes.c_int64 * 2).from_address(bench.block + OWN + 64)
    ranges[1] = TILES << 32
    bench.half(0).value += 1
    bench.word(BARRED).value = 5000

    def clock() -> int:
        bench.half(STOP).value = 1
        return time

    bench.clock = clock
    bench.work()
    assert bench.tiles[0] == (2 * TILES if comes else TILES)
    assert bench.word(BARRED).value == (0 if comes else 5000)
    assert bench.half(OWN + INSIDE).value == 0, "it is not inside"
