"""The peak of the machine, measured by compiled loops: multiply-adds of f32 and of bytes, and memory bandwidth."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.targets.cpu.cores import cache_sizes
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_of
from dovetail.targets.cpu.gemm.policy import Int8Tile
from dovetail.targets.cpu.isa import host, host_device
from dovetail.targets.cpu.jit import Compiled, compile_text
from dovetail.targets.cpu.measure.threads import Times, pinned_times

_ITERATIONS = 1 << 21
_READERS = ((1, 4), (4, 2), (8, 2), (16, 1))
"""Streams that a thread reads, and vectors of each per iteration. Some machines are fastest with one stream, others are
a third faster with sixteen: they fetch more pages concurrently."""
_LEAST_BYTES, _MOST_BYTES = 1 << 28, 1 << 30
_STRIDE = 4096
_ROUNDS = 3
_LOOPS = 4
"""Loops of multiply-adds in a measurement."""
_DOTS = 2
"""Loops of dot products of bytes in it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """FLOP/s and bytes of main memory read in a second, by a number of threads."""

    threads: int
    flops: float
    bytes: float
    int8: float = 0.0
    """Multiplications and additions of bytes; 0 where no instruction multiplies them, or nothing measured it."""

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
    runs: other tenants of a core take it many times in a second. `clear` is the last one between interruptions: the
    best loop of each thread; `lost` is the share of the time that other processes had.
    """

    def __init__(self, threads: int) -> None:
        if not 1 <= threads <= 1024:
            raise OptionError(f"{threads} threads", hint="use 1 to 1024")
        self._scratch = np.zeros(_STRIDE * threads, np.uint8)
        share = _buffer_bytes() // threads // _STRIDE * _STRIDE
        self._memory = np.ones(share * threads, np.uint8)
        self._args = np.array([self._memory.ctypes.data, share], np.int64)
        self.best = self.last = self.clear = Limits(threads, 0.0, 0.0)
        self.lost = 0.0

    def measure(self) -> Limits:
        """Measure once more, for about a fifth of a second; the best so far."""
        threads = self.best.threads
        dots = _DOTS if _dot_tile() is not None else 0
        computing = [_entry("multiply")] * _LOOPS + [_entry("dot") for _ in range(dots)]
        times = self._times([*computing, *(_entry(f"read{streams}") for streams, _ in _READERS)])
        products, reading = times.of(slice(0, _LOOPS)), times.of(slice(_LOOPS + dots, None))
        seconds, each = products.together(), _ITERATIONS * _sums() * host().lanes * 2
        work, read = threads * each, self._memory.size / float(reading.together().min())
        int8 = _rate(times.of(slice(_LOOPS, _LOOPS + dots)), _ITERATIONS * _sums() * _dot_ops()) if dots else 0.0
        self.last = Limits(threads, _LOOPS * work / float(seconds.sum()), read, int8)
        flops = max(self.best.flops, work / float(seconds.min()))
        self.best = Limits(threads, flops, max(self.best.bytes, read), max(self.best.int8, int8))
        self.clear = Limits(threads, _rate(products, each), read, int8)
        self.lost = times.lost()
        return self.best

    def _times(self, loops: Sequence[Any]) -> Times:
        """The times of each loop in each thread."""

        def bound(loop: Any) -> Callable[[int], None]:
            at = (self._args.ctypes.data, self._scratch.ctypes.data)
            return lambda number: loop(at[0], number, number + 1, at[1] + _STRIDE * number)

        return pinned_times(self.best.threads, [bound(loop) for loop in loops])


def _rate(times: Times, work: float) -> float:
    """Return the work that all threads do in a second, each at its best: arithmetic of one does not slow another."""
    return float((work / times.alone().min(1)).sum())


def _buffer_bytes() -> int:
    """Twice the largest cache, so that little of the buffer is cached when it is read again."""
    return min(max(_LEAST_BYTES, 2 * max(cache_sizes(), default=0)), _MOST_BYTES)


def _sums() -> int:
    """Accumulators that hide the latency of multiply-adds and fit the registers."""
    return 24 if host().vector_registers >= 32 else 12


@cache
def _entry(name: str) -> Any:
    parameters = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return ctypes.CFUNCTYPE(None, *parameters)(_code().address(name))


@cache
def _code() -> Compiled:
    tile = _dot_tile()
    dots = [] if tile is None else [_dot_text(tile)]
    texts = [_multiply_text(), *dots, *(_read_text(*reader) for reader in _READERS)]
    return compile_text("\n".join(texts), vectorize=False)


def _dot_tile() -> Int8Tile | None:
    """The dot instruction of bytes, where the processor has one."""
    tile = byte_tile_of(host_device())
    return None if tile is None or tile.emulated else tile.shape


def _dot_ops() -> int:
    """Multiplications and additions of a dot instruction: four of each for every lane."""
    tile = _dot_tile()
    return 0 if tile is None else 2 * 4 * tile.lanes


def _multiply_text() -> str:
    kind, suffix = f"<{host().lanes} x float>", f"v{host().lanes}f32"
    called = f"{kind} @llvm.fma.{suffix}"
    steps = [f"  %n{i} = call {called}({kind} %x, {kind} %y, {kind} %s{i})" for i in range(_sums())]
    return _loop_text("multiply", kind, kind, f"declare {called}({kind}, {kind}, {kind})", steps)


def _dot_text(tile: Int8Tile) -> str:
    kind, raw = f"<{tile.lanes} x i32>", f"<{4 * tile.lanes} x i8>"
    called = f"{kind} @{tile.intrinsic}"
    steps = [f"  %n{i} = call {called}({kind} %s{i}, {raw} %x, {raw} %y)" for i in range(_sums())]
    return _loop_text("dot", kind, raw, f"declare {called}({kind}, {raw}, {raw})", steps)


def _loop_text(name: str, kind: str, factor: str, declared: str, steps: Sequence[str]) -> str:
    """A loop of independent steps from %s to %n, which multiply %x by %y."""
    chains = "\n".join(f"  %s{i} = phi {kind} [ %first, %entry ], [ %n{i}, %loop ]" for i in range(len(steps)))
    inner = "\n".join(steps)
    return f"""
{declared}
define void @{name}(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {{
entry:
  %first = load {kind}, ptr %scratch, align 4
  %x = load {factor}, ptr %scratch, align 4
  %y = load {factor}, ptr %scratch, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{chains}
{inner}
  %next = add nuw nsw i64 %i, 1
  %more = icmp ult i64 %next, {_ITERATIONS}
  br i1 %more, label %loop, label %done
done:
{_total_text(kind, len(steps))}
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
    add = "fadd" if kind.endswith("float>") else "add"
    adds = [f"  %t{i} = {add} {kind} %{f't{i - 1}' if i > 1 else 'n0'}, %n{i}" for i in range(1, sums)]
    return "\n".join([*adds, f"  store {kind} %t{sums - 1}, ptr %scratch, align 4", "  ret void"])


__all__ = ["Limits", "Meter", "limits"]
