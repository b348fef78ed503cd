"""What the machine can do at most: multiply-adds a second, and bytes read a second, measured by compiled loops."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.errors import OptionError
from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.jit import Compiled, compile_text

_TURNS = 1 << 21
_READERS = ((1, 4), (4, 2), (8, 2), (16, 1))
"""Places that a thread reads from in turn, and vectors from each. Some machines are fastest with one place, others are
a third faster with sixteen: more pages are being fetched at once."""
_LEAST_BYTES, _MOST_BYTES = 1 << 28, 1 << 30
_STRIDE = 4096
_ROUNDS = 3
_LOOPS = 4
"""Loops of multiply-adds in a measurement, one after the other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Floating-point operations and bytes from main memory, both in a second, for so many threads."""

    threads: int
    flops: float
    bytes: float

    def seconds(self, flops: float, bytes: float) -> float:
        """What no program can stay below: the slower of computing and of reading everything once."""
        return max(flops / self.flops, bytes / self.bytes)


@cache
def limits(threads: int) -> Limits:
    """The limits of this machine; the best of several short measurements."""
    meter = Meter(threads)
    for _ in range(_ROUNDS):
        meter.measure()
    return meter.best


class Meter:
    """Measures the limits for so many threads, as often as it is asked.

    `best` is the most that the machine has shown so far, if only for a moment. `last` is what it showed the last time
    for as long as a model runs: who shares a core takes it away and gives it back many times in a second.
    """

    def __init__(self, threads: int) -> None:
        if not 1 <= threads <= 1024:
            raise OptionError(f"{threads} threads", hint="use 1 to 1024")
        self._scratch = np.zeros(_STRIDE * threads, np.uint8)
        share = _buffer_bytes() // threads // _STRIDE * _STRIDE
        self._memory = np.ones(share * threads, np.uint8)
        self._words = np.array([self._memory.ctypes.data, share], np.int64)
        self.best = self.last = Limits(threads, 0.0, 0.0)

    def measure(self) -> Limits:
        """Measure once more, for about a fifth of a second; the best so far."""
        threads = self.best.threads
        loops = [_entry("multiply")] * _LOOPS + [_entry(f"read{places}") for places, _ in _READERS]
        seconds = self._together(loops)
        work = threads * _TURNS * _sums() * host().lanes * 2
        read = self._memory.size / min(seconds[_LOOPS:])
        self.last = Limits(threads, _LOOPS * work / sum(seconds[:_LOOPS]), read)
        self.best = Limits(threads, max(self.best.flops, work / min(seconds[:_LOOPS])), max(self.best.bytes, read))
        return self.best

    def _together(self, loops: Sequence[Any]) -> list[float]:
        """The seconds of each loop from the first thread's start to the last one's end; every thread has a core."""
        threads = self.best.threads
        times = np.zeros((2, threads, len(loops)))
        gate = threading.Barrier(threads)

        def work(number: int) -> None:
            pin(number)
            for index, loop in enumerate(loops):
                gate.wait()
                times[0, number, index] = time.perf_counter()
                loop(self._words.ctypes.data, number, number + 1, self._scratch.ctypes.data + _STRIDE * number)
                times[1, number, index] = time.perf_counter()

        team = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        return [float(s) for s in times[1].max(0) - times[0].min(0)]


def pin(number: int) -> None:
    """Give the calling thread one of the cores that it may use, where the system can: two on one core measure half."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


def _buffer_bytes() -> int:
    """Twice the largest cache, so that little of the buffer is still there when it is read again."""
    caches = [_number(path) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return min(max(_LEAST_BYTES, 2 * max(caches, default=0)), _MOST_BYTES)


def _number(path: Path) -> int:
    """Bytes as the kernel spells them: 2048K."""
    try:
        text = path.read_text(encoding="ascii").strip()
        return int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1:], 0)
    except (OSError, ValueError):
        return 0


def _sums() -> int:
    """Chains of multiply-adds that hide each other's latency and fit the registers."""
    return 24 if host().vector_registers >= 32 else 12


@cache
def _entry(name: str) -> Any:
    words = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return ctypes.CFUNCTYPE(None, *words)(_code().address(name))


@cache
def _code() -> Compiled:
    return compile_text("\n".join([_multiply_text(), *(_read_text(*reader) for reader in _READERS)]), vectorize=False)


def _multiply_text() -> str:
    lanes, sums = host().lanes, _sums()
    kind = f"<{lanes} x float>"
    suffix = f"v{lanes}f32"
    fma = f"call {kind} @llvm.fma.{suffix}({kind} %x, {kind} %y, {kind}"
    chains = "\n".join(f"  %s{i} = phi {kind} [ %x, %entry ], [ %n{i}, %loop ]" for i in range(sums))
    steps = "\n".join(f"  %n{i} = {fma} %s{i})" for i in range(sums))
    return f"""
declare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})
define void @multiply(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {{
entry:
  %x = load {kind}, ptr %scratch, align 4
  %y = load {kind}, ptr %scratch, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{chains}
{steps}
  %next = add nuw nsw i64 %i, 1
  %more = icmp ult i64 %next, {_TURNS}
  br i1 %more, label %loop, label %done
done:
{_total_text(kind, sums)}
}}
"""


def _read_text(places: int, vectors: int) -> str:
    """Reads its share of memory from so many places in turn, so many vectors from each."""
    lanes, sums = host().lanes, places * vectors
    kind = f"<{lanes} x float>"
    chains = "\n".join(f"  %s{i} = phi {kind} [ zeroinitializer, %entry ], [ %n{i}, %loop ]" for i in range(sums))
    loads: list[str] = []
    for place in range(places):
        loads += [f"  %o{place} = mul i64 %part, {place}", f"  %j{place} = add i64 %o{place}, %i"]
        for i in range(place * vectors, (place + 1) * vectors):
            loads += [
                f"  %k{i} = add i64 %j{place}, {(i - place * vectors) * 4 * lanes}",
                f"  %p{i} = getelementptr i8, ptr %first, i64 %k{i}",
                f"  %l{i} = load {kind}, ptr %p{i}, align 4",
                f"  %n{i} = fadd {kind} %s{i}, %l{i}",
            ]
    listed = "\n".join(loads)
    return f"""
define void @read{places}(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {{
entry:
  %memory = load ptr, ptr %a
  %q = getelementptr i8, ptr %a, i64 8
  %size = load i64, ptr %q
  %part = udiv i64 %size, {places}
  %start = mul i64 %begin, %size
  %first = getelementptr i8, ptr %memory, i64 %start
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{chains}
{listed}
  %next = add nuw nsw i64 %i, {4 * lanes * vectors}
  %more = icmp ult i64 %next, %part
  br i1 %more, label %loop, label %done
done:
{_total_text(kind, sums)}
}}
"""


def _total_text(kind: str, sums: int) -> str:
    """Stores the sum of all chains, so that none is left out."""
    adds = [f"  %t{i} = fadd {kind} %{f't{i - 1}' if i > 1 else 'n0'}, %n{i}" for i in range(1, sums)]
    return "\n".join([*adds, f"  store {kind} %t{sums - 1}, ptr %scratch, align 4", "  ret void"])


__all__ = ["Limits", "Meter", "limits"]
