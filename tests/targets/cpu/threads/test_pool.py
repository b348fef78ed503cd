"""The thread pool: every tile runs once, for any number of threads, and no run waits for a worker that never comes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from dovetail.errors import OptionError
from dovetail.targets.cpu.cores import available_threads
from dovetail.targets.cpu.jit import Compiled, compile_text
from dovetail.targets.cpu.threads.pool import ThreadPool, thread_pool
from dovetail.targets.runtime.calls.launch_table import KIND_COMPILED, KIND_HOST, STEP, empty_table

pytestmark = pytest.mark.serial  # it starts pools of several threads

COUNTS = """
define void @count(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %counts = load ptr, ptr %a
  %place = getelementptr i32, ptr %counts, i64 %i
  %old = load i32, ptr %place
  %new = add i32 %old, 1
  store i32 %new, ptr %place
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


@pytest.fixture(scope="module")
def code() -> Compiled:
    return compile_text(COUNTS)


class Counted:
    """A table of steps that count how often each tile was run."""

    def __init__(self, code: Compiled, steps: int, tiles: int, chunk: int) -> None:
        self.counts = np.zeros(max(1, tiles), np.int32)
        self.words = np.array([self.counts.ctypes.data], np.int64)
        self.table = empty_table(steps)
        self.table[:] = (code.address("count"), self.words.ctypes.data, tiles, chunk, KIND_COMPILED, 0)

    def run(self, pool: ThreadPool, first: int = 0) -> int:
        return pool.run(self.table.ctypes.data, first, len(self.table), 0, 0)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("tiles", "chunk"), [(1, 1), (2, 1), (7, 3), (1000, 1), (1000, 999), (5, 100)])
def test_every_tile_is_run_once(code: Compiled, threads: int, tiles: int, chunk: int) -> None:
    pool = ThreadPool(threads - 1)
    table = Counted(code, 200, tiles, chunk)
    assert table.run(pool) == 200
    assert (table.counts == 200).all()
    pool.stop()


NOTES = """
define void @note(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {
entry:
  %notes = load ptr, ptr %a
  %old = load i64, ptr %scratch
  %second = getelementptr i64, ptr %scratch, i64 1
  %other = load i64, ptr %second
  %far = mul i64 %begin, 2
  %place = getelementptr i64, ptr %notes, i64 %far
  store i64 %old, ptr %place
  %behind = getelementptr i64, ptr %place, i64 1
  store i64 %other, ptr %behind
  store i64 %begin, ptr %scratch
  store i64 %end, ptr %second
  ret void
}
"""


@pytest.mark.parametrize("threads", [2, 3])
def test_a_kernel_finds_what_it_left_in_scratch_within_a_step_alone(threads: int) -> None:
    """For each tile the words that the call before it, on the same thread, left."""
    tiles, code = 12, compile_text(NOTES)
    notes = np.zeros((tiles, 2), np.int64)
    words = np.array([notes.ctypes.data], np.int64)
    table = empty_table(50)
    table[:] = (code.address("note"), words.ctypes.data, tiles, 1, KIND_COMPILED, 0)
    scratch = np.zeros(8 * threads, np.int64)
    pool = ThreadPool(threads - 1)
    assert pool.run(table.ctypes.data, 0, 50, scratch.ctypes.data, 64) == 50
    firsts = notes[:, 0] == -1
    assert 1 <= firsts.sum() <= threads, "a thread begins a step once"
    assert (notes[firsts] == -1).all()
    later = notes[~firsts]
    assert (later[:, 1] == later[:, 0] + 1).all()
    assert len(set(later[:, 0].tolist())) == len(later), "calls of one thread follow each other"
    pool.stop()


def test_a_step_of_the_host_comes_back_to_it(code: Compiled) -> None:
    table = Counted(code, 3, 4, 1)
    table.table["kind"][1] = KIND_HOST
    pool = thread_pool(2)
    assert table.run(pool) == 1
    assert table.run(pool, 2) == 3
    assert (table.counts == 2).all()
    assert STEP.itemsize == 8 * len(STEP.fields or {}), "64-bit fields without gaps"


def test_many_threads_share_one_pool(code: Compiled) -> None:
    pool = thread_pool(2)
    tables = [Counted(code, 300, 64, 1) for _ in range(8)]
    threads = [threading.Thread(target=t.run, args=(pool,)) for t in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert all((t.counts == 300).all() for t in tables)


def test_workers_that_sleep_wake_again(code: Compiled) -> None:
    pool = ThreadPool(2)
    table = Counted(code, 1, 64, 1)
    for _ in range(5):
        table.run(pool)
        threading.Event().wait(0.05)  # long enough for all workers to fall asleep
    assert (table.counts == 5).all()
    pool.stop()


def test_a_pool_that_stopped_starts_again(code: Compiled) -> None:
    pool = ThreadPool(1)
    table = Counted(code, 1, 64, 1)
    for _ in range(3):
        table.run(pool)
        pool.stop()
    assert (table.counts == 3).all()


@pytest.mark.slow
def test_a_process_with_a_pool_ends(code: Compiled) -> None:
    script = "from dovetail.targets.cpu.threads.pool import thread_pool; c = thread_pool(3); c._start()"
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_has_a_pool_of_its_own(code: Compiled) -> None:
    Counted(code, 1, 64, 1).run(thread_pool(2))
    script = (
        "import os\n"
        "from dovetail.targets.cpu.threads.pool import thread_pool\n"
        "thread_pool(2)._start()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    thread_pool(2)._start()\n"
        "    threads = thread_pool(2)._threads\n"
        "    os._exit(0 if len(threads) == 1 and threads[0].is_alive() else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60, check=False)
    assert done.returncode == 0


def test_the_number_of_threads_is_what_the_machine_lends(monkeypatch: pytest.MonkeyPatch) -> None:
    quota: Any = "dovetail.targets.cpu.cores._quota"
    monkeypatch.setattr(quota, lambda: 1)
    assert available_threads() == 1
    monkeypatch.setattr(quota, lambda: None)
    assert available_threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_odd_numbers_of_threads_are_refused(threads: int) -> None:
    with pytest.raises(OptionError, match="threads"):
        thread_pool(threads)
