"""The peak of the machine, measured by compiled loops: FLOP/s of multiply-adds, and memory bandwidth."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dovetail.errors import OptionError
from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.jit import Compiled, compile_text
from dovetail.targets.cpu.measure.caches import cache_sizes
from dovetail.targets.cpu.measure.threads import pinned_times

_ITERATIONS = 1 << 21
_READERS = ((1, 4), (4, 2), (8, 2), (16, 1))
"""Streams that a thread reads, and vectors of each per iteration. Some machines are fastest with one stream, others are
a third faster with sixteen: they fetch more pages concurrently."""
_LEAST_BYTES, _MOST_BYTES = 1 << 28, 1 << 30
_STRIDE = 4096
_ROUNDS = 3
_LOOPS = 4
"""Loops of multiply-adds in a measurement."""


@dataclass(frozen=True, slots=True)
class Limits:
    """FLOP/s and bytes of main memory read in a second, by a number of threads."""

    threads: int
    flops: float
    bytes: float

    def seconds(self, flops: float, bytes: float) -> float:
        """The roofline: the longer of computing and of reading everything once."""
        return max(flops / self.flops, bytes / self.bytes)


@cache
def limits(threads: int) -> Limits:
    """The limits of this machine; the best of several short measurements."""
    meter = Meter(threads)
    for _ in range(_ROUNDS):
        meter.measure()
    return meter.best


class Meter:
    """Measures the limits with a number of threads, repeatedly.

    `best` is the best measurement so far, if only for a moment. `last` is the last one, over the time that a model
    runs: other tenants of a core take it many times in a second.
    """

    def __init__(self, threads: int) -> None:
        if not 1 <= threads <= 1024:
            raise OptionError(f"{threads} threads", hint="use 1 to 1024")
        self._scratch = np.zeros(_STRIDE * threads, np.uint8)
        share = _buffer_bytes() // threads // _STRIDE * _STRIDE
        self._memory = np.ones(share * threads, np.uint8)
        self._args = np.array([self._memory.ctypes.data, share], np.int64)
        self.best = self.last = Limits(threads, 0.0, 0.0)

    def measure(self) -> Limits:
        """Measure once more, for about a fifth of a second; the best so far."""
        threads = self.best.threads
        loops = [_entry("multiply")] * _LOOPS + [_entry(f"read{streams}") for streams, _ in _READERS]
        seconds = self._together(loops)
        work = threads * _ITERATIONS * _sums() * host().lanes * 2
        read = self._memory.size / min(seconds[_LOOPS:])
        self.last = Limits(threads, _LOOPS * work / sum(seconds[:_LOOPS]), read)
        self.best = Limits(threads, max(self.best.flops, work / min(seconds[:_LOOPS])), max(self.best.bytes, read))
        return self.best

    def _together(self, loops: Sequence[Any]) -> list[float]:
        """The seconds of each loop, from the start of the first thread to the end of the last."""

        def bound(loop: Any) -> Callable[[int], None]:
            at = (self._args.ctypes.data, self._scratch.ctypes.data)
            return lambda number: loop(at[0], number, number + 1, at[1] + _STRIDE * number)

        begins, ends = pinned_times(self.best.threads, [bound(loop) for loop in loops])
        return [float(s) for s in ends.max(0) - begins.min(0)]


def _buffer_bytes() -> int:
    """Twice the largest cache, so that little of the buffer is cached when it is read again."""
    return min(max(_LEAST_BYTES, 2 * max(cache_sizes(), default=0)), _MOST_BYTES)


def _sums() -> int:
    """Accumulators that hide the latency of multiply-adds and fit the registers."""
    return 24 if host().vector_registers >= 32 else 12


@cache
def _entry(name: str) -> Any:
    given = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return ctypes.CFUNCTYPE(None, *given)(_code().address(name))


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
  %more = icmp ult i64 %next, {_ITERATIONS}
  br i1 %more, label %loop, label %done
done:
{_total_text(kind, sums)}
}}
"""


def _read_text(streams: int, vectors: int) -> str:
    """Reads its part of memory as `streams` streams, `vectors` vectors of each per iteration."""
    lanes, sums = host().lanes, streams * vectors
    kind = f"<{lanes} x float>"
    chains = "\n".join(f"  %s{i} = phi {kind} [ zeroinitializer, %entry ], [ %n{i}, %loop ]" for i in range(sums))
    loads: list[str] = []
    for stream in range(streams):
        loads += [f"  %o{stream} = mul i64 %part, {stream}", f"  %j{stream} = add i64 %o{stream}, %i"]
        for i in range(stream * vectors, (stream + 1) * vectors):
            loads += [
                f"  %k{i} = add i64 %j{stream}, {(i - stream * vectors) * 4 * lanes}",
                f"  %p{i} = getelementptr i8, ptr %first, i64 %k{i}",
                f"  %l{i} = load {kind}, ptr %p{i}, align 4",
                f"  %n{i} = fadd {kind} %s{i}, %l{i}",
            ]
    listed = "\n".join(loads)
    return f"""
define void @read{streams}(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {{
entry:
  %memory = load ptr, ptr %a
  %q = getelementptr i8, ptr %a, i64 8
  %size = load i64, ptr %q
  %part = udiv i64 %size, {streams}
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
    """Stores the sum of all accumulators, so that LLVM removes none."""
    adds = [f"  %t{i} = fadd {kind} %{f't{i - 1}' if i > 1 else 'n0'}, %n{i}" for i in range(1, sums)]
    return "\n".join([*adds, f"  store {kind} %t{sums - 1}, ptr %scratch, align 4", "  ret void"])


__all__ = ["Limits", "Meter", "limits"]
