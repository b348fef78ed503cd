"""Short measurements of the host by compiled loops: how fast each level of memory is read, how fast tensors pass from
step to step, and what a step costs.

What is measured is what kernels meet: all threads of a crew at once, each with memory of its own.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.jit import Compiled, compile_text
from dovetail.targets.cpu.measure.peak import pin
from dovetail.targets.cpu.threads.pool import crew
from dovetail.targets.cpu.threads.pool_text import STEP_WORDS

_STREAMS = 8
"""Sums that hide each other's latency, so that loads are what takes the time."""
_STEPS = 64
_BYTES = 1 << 25
"""What a thread reads at least in one measurement, to be longer than the clock and the start."""
_ROUNDS = 5
_STRIDE = 4096


class Gauge:
    """Measures with so many threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.scratch = np.zeros(_STRIDE * threads, np.uint8)

    def read(self, bytes: int) -> float:
        """Bytes a second that all threads read together, each from so many bytes of its own, again and again."""
        step = 4 * host().lanes * _STREAMS
        size = max(step, bytes // step * step)
        turns = max(1, _BYTES // size)
        memory = np.ones(size * self.threads, np.uint8)
        words = np.array([memory.ctypes.data, size, turns], np.int64)
        times = np.ones((_ROUNDS, self.threads))
        gate = threading.Barrier(self.threads)

        def work(number: int) -> None:
            pin(number)
            sweep = _sweep()
            for turn in range(_ROUNDS):
                gate.wait()
                started = time.perf_counter()
                sweep(words.ctypes.data, number, number + 1, self.scratch.ctypes.data + _STRIDE * number)
                times[turn, number] = time.perf_counter() - started

        team = [threading.Thread(target=work, args=(number,)) for number in range(self.threads)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        return float((size * turns / times).sum(1).max())

    def passed(self, bytes: int) -> float:
        """Bytes a second that steps read and write which copy to and fro; each thread reads what another one wrote."""
        step = 4 * host().lanes
        size = max(step, bytes // (2 * self.threads) // step * step)
        moved = 2 * size * self.threads
        memory = np.ones(moved, np.uint8)
        here, there = memory.ctypes.data, memory.ctypes.data + moved // 2
        words = np.array([[here, there, size, self.threads], [there, here, size, self.threads]], np.int64)
        steps = _STEPS if moved * _STEPS < _BYTES else max(2, _BYTES // moved)
        times = self._steps("pass", [words[i % 2].ctypes.data for i in range(steps)], _ROUNDS)
        # What a step costs that does nothing is counted apart, as far as it can be told.
        return moved / max(min(times) / steps - self.dispatch(), min(times) / steps / 4)

    def dispatch(self) -> float:
        """Seconds between two steps that do nothing and have a tile for each thread."""
        words = np.zeros(1, np.int64)
        return statistics.median(self._steps("nothing", [words.ctypes.data] * _STEPS, 4 * _ROUNDS)) / _STEPS

    def _steps(self, name: str, words: Sequence[int], rounds: int) -> list[float]:
        """The seconds of a table of steps that call one function, a tile for each thread, with these words."""
        team = crew(self.threads)
        table = np.zeros((len(words), STEP_WORDS), np.int64)
        table[:, 0], table[:, 1], table[:, 2], table[:, 3] = _code().address(name), words, self.threads, 1
        times: list[float] = []
        for _ in range(rounds):
            started = time.perf_counter()
            team.run(table.ctypes.data, 0, len(words), self.scratch.ctypes.data, _STRIDE)
            times.append(time.perf_counter() - started)
        return times


@cache
def _code() -> Compiled:
    return compile_text(_text(host().lanes), vectorize=False)


@cache
def _sweep() -> Any:
    words = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return ctypes.CFUNCTYPE(None, *words)(_code().address("sweep"))


def cache_sizes(root: Path = Path("/")) -> tuple[int, ...]:
    """Bytes of the caches for data, the nearest to a core first, as the system tells; empty if it does not."""
    found: dict[int, int] = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                found[int(level)] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return tuple(found[level] for level in sorted(found))


def _text(lanes: int) -> str:
    kind = f"<{lanes} x float>"
    each = range(_STREAMS)
    sums = "\n".join(f"  %s{i} = phi {kind} [ zeroinitializer, %outer ], [ %n{i}, %inner ]" for i in each)
    loads = "\n".join(
        f"  %p{i} = getelementptr i8, ptr %p, i64 {i * 4 * lanes}\n"
        f"  %l{i} = load volatile {kind}, ptr %p{i}, align 4\n  %n{i} = fadd {kind} %s{i}, %l{i}"
        for i in each
    )
    total = "\n".join(f"  %t{i} = fadd {kind} %{f't{i - 1}' if i > 1 else 'n0'}, %n{i}" for i in each[1:])
    return f"""
define void @nothing(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {{
  ret void
}}

define void @pass(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {{
entry:
  %from = load ptr, ptr %a
  %a1 = getelementptr i8, ptr %a, i64 8
  %to = load ptr, ptr %a1
  %a2 = getelementptr i8, ptr %a, i64 16
  %size = load i64, ptr %a2
  %a3 = getelementptr i8, ptr %a, i64 24
  %tiles = load i64, ptr %a3
  br label %outer
outer:
  %tile = phi i64 [ %begin, %entry ], [ %tiled, %copied ]
  %tiled = add nuw nsw i64 %tile, 1
  %other = urem i64 %tiled, %tiles
  %behind = mul i64 %other, %size
  %start = mul i64 %tile, %size
  %source = getelementptr i8, ptr %from, i64 %behind
  %target = getelementptr i8, ptr %to, i64 %start
  br label %inner
inner:
  %i = phi i64 [ 0, %outer ], [ %next, %inner ]
  %p = getelementptr i8, ptr %source, i64 %i
  %q = getelementptr i8, ptr %target, i64 %i
  %x = load volatile {kind}, ptr %p, align 4
  store volatile {kind} %x, ptr %q, align 4
  %next = add nuw nsw i64 %i, {4 * lanes}
  %more = icmp ult i64 %next, %size
  br i1 %more, label %inner, label %copied
copied:
  %again = icmp ult i64 %tiled, %end
  br i1 %again, label %outer, label %done
done:
  ret void
}}

define void @sweep(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {{
entry:
  %memory = load ptr, ptr %a
  %a1 = getelementptr i8, ptr %a, i64 8
  %size = load i64, ptr %a1
  %a2 = getelementptr i8, ptr %a, i64 16
  %turns = load i64, ptr %a2
  %start = mul i64 %begin, %size
  %first = getelementptr i8, ptr %memory, i64 %start
  br label %outer
outer:
  %turn = phi i64 [ 0, %entry ], [ %turned, %swept ]
  br label %inner
inner:
  %i = phi i64 [ 0, %outer ], [ %next, %inner ]
{sums}
  %p = getelementptr i8, ptr %first, i64 %i
{loads}
  %next = add nuw nsw i64 %i, {4 * lanes * _STREAMS}
  %more = icmp ult i64 %next, %size
  br i1 %more, label %inner, label %swept
swept:
{total}
  store volatile {kind} %t{_STREAMS - 1}, ptr %scratch, align 4
  %turned = add nuw nsw i64 %turn, 1
  %again = icmp ult i64 %turned, %turns
  br i1 %again, label %outer, label %done
done:
  ret void
}}
"""


__all__ = ["Gauge", "cache_sizes"]
