"""What the machine can do at most: multiply-adds a second, and bytes read a second, measured by compiled loops."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dovetail.targets.cpu.crew import crew
from dovetail.targets.cpu.jit import compile_text, host

_TURNS = 1 << 20
_BYTES = 1 << 28


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
    code = compile_text(_text(), vectorize=False)
    team = crew(threads)
    lanes = host().lanes
    sums = _sums()
    work = _best(team, code.address("multiply"), np.zeros(1, np.int64), threads, 9)
    memory = np.ones(_BYTES, np.uint8)
    words = np.array([memory.ctypes.data, _BYTES // threads], np.int64)
    read = _best(team, code.address("read"), words, threads, 7)
    return Limits(threads, threads * _TURNS * sums * lanes * 2 / work, _BYTES / read)


def _best(team: Any, entry: int, words: Any, threads: int, repeats: int) -> float:
    table = np.array([[entry, words.ctypes.data, threads, 1, 0, 0]], np.int64)
    scratch = np.zeros(4096 * threads, np.uint8)
    times: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        team.run(table.ctypes.data, 0, 1, scratch.ctypes.data, 4096)
        times.append(time.perf_counter() - started)
    return min(times)


def _sums() -> int:
    """Chains of multiply-adds that hide each other's latency and fit the registers."""
    return 24 if host().vector_registers >= 32 else 12


def _text() -> str:
    lanes, sums = host().lanes, _sums()
    kind = f"<{lanes} x float>"
    suffix = f"v{lanes}f32"
    fma = f"call {kind} @llvm.fma.{suffix}({kind} %x, {kind} %y, {kind}"
    chains = "\n".join(f"  %s{i} = phi {kind} [ %x, %entry ], [ %n{i}, %loop ]" for i in range(sums))
    steps = "\n".join(f"  %n{i} = {fma} %s{i})" for i in range(sums))
    total = "\n".join(f"  %t{i} = fadd {kind} %{f't{i - 1}' if i > 1 else 'n0'}, %n{i}" for i in range(1, sums))
    loads = "\n".join(
        f"  %p{i} = getelementptr i8, ptr %p, i64 {i * 4 * lanes}\n"
        f"  %l{i} = load {kind}, ptr %p{i}, align 4\n  %n{i} = fadd {kind} %s{i}, %l{i}"
        for i in range(4)
    )
    zeros = "\n".join(f"  %s{i} = phi {kind} [ zeroinitializer, %entry ], [ %n{i}, %loop ]" for i in range(4))
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
{total}
  store {kind} %t{sums - 1}, ptr %scratch, align 4
  ret void
}}
define void @read(ptr %a, i64 %begin, i64 %end, ptr %scratch) nounwind {{
entry:
  %memory = load ptr, ptr %a
  %q = getelementptr i8, ptr %a, i64 8
  %size = load i64, ptr %q
  %start = mul i64 %begin, %size
  %first = getelementptr i8, ptr %memory, i64 %start
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{zeros}
  %p = getelementptr i8, ptr %first, i64 %i
{loads}
  %next = add nuw nsw i64 %i, {16 * lanes}
  %more = icmp ult i64 %next, %size
  br i1 %more, label %loop, label %done
done:
  %u = fadd {kind} %n0, %n1
  %v = fadd {kind} %n2, %n3
  %w = fadd {kind} %u, %v
  store {kind} %w, ptr %scratch, align 4
  ret void
}}
"""


__all__ = ["Limits", "limits"]
