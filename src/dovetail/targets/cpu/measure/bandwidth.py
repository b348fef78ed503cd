"""Short measurements by compiled loops: the read bandwidth of each memory level, the bandwidth of tensors from step to
step, and the cost of a dispatch.

All threads of a pool run at once, each with memory of its own, as kernels do.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.jit import Compiled, compile_text
from dovetail.targets.cpu.measure.threads import pinned_times
from dovetail.targets.cpu.threads.pool import thread_pool
from dovetail.targets.runtime.calls.launch_table import empty_table

_STREAMS = 8
"""Accumulators that hide the latency of additions, so that loads take the time."""
_STEPS = 64
_BYTES = 1 << 25
"""Bytes that a thread reads at least in one measurement, to outlast the clock and the start."""
_ROUNDS = 5
_STRIDE = 4096


class BandwidthMeter:
    """Measures with a number of threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.scratch = np.zeros(_STRIDE * threads, np.uint8)

    def read(self, bytes: int) -> float:
        """Bytes that all threads read in a second, each from `bytes` of its own, repeatedly."""
        step = 4 * host().lanes * _STREAMS
        size = max(step, bytes // step * step)
        iterations = max(1, _BYTES // size)
        memory = np.ones(size * self.threads, np.uint8)
        args = np.array([memory.ctypes.data, size, iterations], np.int64)
        scratch, sweep = self.scratch.ctypes.data, _sweep()

        def loop(number: int) -> None:
            sweep(args.ctypes.data, number, number + 1, scratch + _STRIDE * number)

        times = pinned_times(self.threads, [loop] * _ROUNDS)
        return float((size * iterations / times.alone()).sum(0).max())

    def passed(self, bytes: int) -> float:
        """Bytes that copying steps read and write in a second; each thread reads what another one wrote."""
        step = 4 * host().lanes
        size = max(step, bytes // (2 * self.threads) // step * step)
        moved = 2 * size * self.threads
        memory = np.ones(moved, np.uint8)
        here, there = memory.ctypes.data, memory.ctypes.data + moved // 2
        args = np.array([[here, there, size, self.threads], [there, here, size, self.threads]], np.int64)
        steps = _STEPS if moved * _STEPS < _BYTES else max(2, _BYTES // moved)
        times = self._steps("pass", [args[i % 2].ctypes.data for i in range(steps)], _ROUNDS)
        # The cost of an empty step is subtracted, as far as it can be measured.
        return moved / max(min(times) / steps - self.dispatch(), min(times) / steps / 4)

    def dispatch(self) -> float:
        """Seconds of an empty step that has a tile for each thread."""
        args = np.zeros(1, np.int64)
        return statistics.median(self._steps("nothing", [args.ctypes.data] * _STEPS, 4 * _ROUNDS)) / _STEPS

    def _steps(self, name: str, arguments: Sequence[int], rounds: int) -> list[float]:
        """The seconds of a launch table of steps that call one function, a tile for each thread."""
        pool = thread_pool(self.threads)
        table = empty_table(len(arguments))
        table["function"], table["arguments"] = _code().address(name), arguments
        table["tiles"], table["chunk"] = self.threads, 1
        times: list[float] = []
        for _ in range(rounds):
            started = time.perf_counter()
            pool.run(table.ctypes.data, 0, len(arguments), self.scratch.ctypes.data, _STRIDE)
            times.append(time.perf_counter() - started)
        return times


@cache
def _code() -> Compiled:
    return compile_text(_text(host().lanes), vectorize=False)


@cache
def _sweep() -> Any:
    parameters = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    return ctypes.CFUNCTYPE(None, *parameters)(_code().address("sweep"))


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
  %offset = mul i64 %other, %size
  %start = mul i64 %tile, %size
  %source = getelementptr i8, ptr %from, i64 %offset
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


__all__ = ["BandwidthMeter"]
