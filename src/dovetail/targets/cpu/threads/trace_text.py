"""The clock and the trace of a run as LLVM text: when each step began and ended, and which threads worked on it."""

from __future__ import annotations

import time

_MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 1)
"""The number of the clock, which each system chooses."""
MARK_FIELDS = ("begin", "end")
"""A mark in a trace buffer, in nanoseconds. A step has one for itself, then one for each thread. The buffer begins with
the bytes of a step's marks."""


def clock_text() -> str:
    """`now()`: nanoseconds of the monotonic clock."""
    return f"""
define internal i64 @now() nounwind {{
entry:
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 {_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %p = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %p
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %rest
  ret i64 %all
}}
"""


def trace_text() -> str:
    """The marks of a step, the time at which something begins, and a mark; without a trace buffer they do nothing."""
    return f"""
define internal ptr @marks_of(ptr %trace, i64 %i) nounwind alwaysinline {{
entry:
  %off = icmp eq ptr %trace, null
  br i1 %off, label %without, label %with
without:
  ret ptr null
with:
  %bytes = load i64, ptr %trace
  %far = mul i64 %i, %bytes
  %first = getelementptr i8, ptr %trace, i64 8
  %marks = getelementptr i8, ptr %first, i64 %far
  ret ptr %marks
}}

define internal i64 @begin(ptr %marks) nounwind alwaysinline {{
entry:
  %off = icmp eq ptr %marks, null
  br i1 %off, label %without, label %with
without:
  ret i64 0
with:
  %time = call i64 @now()
  ret i64 %time
}}

define internal void @mark(ptr %marks, i64 %row, i64 %begun) nounwind alwaysinline {{
entry:
  %off = icmp eq ptr %marks, null
  br i1 %off, label %done, label %with
with:
  %far = mul i64 %row, {8 * len(MARK_FIELDS)}
  %at = getelementptr i8, ptr %marks, i64 %far
  store i64 %begun, ptr %at
  %time = call i64 @now()
  %end = getelementptr i8, ptr %at, i64 8
  store i64 %time, ptr %end
  br label %done
done:
  ret void
}}
"""
