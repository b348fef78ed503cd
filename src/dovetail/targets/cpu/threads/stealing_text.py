"""Work stealing as LLVM text: how the threads of a pool partition the tiles of a step.

Each thread owns a range of neighbouring tiles, the same part in every step, so that its cache holds what it wrote
before. It takes chunks from the head of its range; an idle thread steals half of a victim's range from the tail.
"""

from __future__ import annotations

from dovetail.targets.cpu.threads.fields import LAUNCH

MOST_TILES = 2**31 - 1
"""Tiles of a step that is shared: a range is two halves of a 64-bit word."""
_LOW = 2**32 - 1


def stealing_text(workers: int) -> str:
    """`partition(pool, tiles, workers)` and `work_and_steal(pool, launch, number)`; the lines of workers start at byte
    `workers` of the pool's block."""
    return "\n".join([_ranges(workers), _partition(), _work_and_steal(), _invalidate()])


def _ranges(workers: int) -> str:
    """The cache line of a worker; the ranges, after the last line; a range as one word."""
    return f"""
define internal ptr @line_of(ptr %pool, i64 %number) nounwind alwaysinline {{
entry:
  %index = sub i64 %number, 1
  %far = mul i64 %index, 64
  %first = getelementptr i8, ptr %pool, i64 {workers}
  %line = getelementptr i8, ptr %first, i64 %far
  ret ptr %line
}}

define internal ptr @ranges_of(ptr %pool, i64 %workers) nounwind alwaysinline {{
entry:
  %after = add i64 %workers, 1
  %ranges = call ptr @line_of(ptr %pool, i64 %after)
  ret ptr %ranges
}}

define internal i64 @range(i64 %begin, i64 %end) nounwind alwaysinline {{
entry:
  %high = shl i64 %end, 32
  %both = or i64 %high, %begin
  ret i64 %both
}}
"""


def _partition() -> str:
    return """
; Give each thread its range of the tiles.
define internal void @partition(ptr %pool, i64 %tiles, i64 %workers) nounwind {
entry:
  %threads = add i64 %workers, 1
  %ranges = call ptr @ranges_of(ptr %pool, i64 %workers)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %following, %next ]
  %begin = phi i64 [ 0, %entry ], [ %end, %next ]
  %following = add i64 %i, 1
  %all = mul i64 %tiles, %following
  %end = udiv i64 %all, %threads
  %both = call i64 @range(i64 %begin, i64 %end)
  %at = getelementptr i64, ptr %ranges, i64 %i
  store atomic i64 %both, ptr %at monotonic, align 8
  %more = icmp slt i64 %i, %workers
  br i1 %more, label %next, label %done
done:
  ret void
}
"""


def _work_and_steal() -> str:
    return f"""
; Run the thread's own tiles, then steal from the others.
define internal void @work_and_steal(ptr %pool, ptr %launch, i64 %number) nounwind {{
entry:
{LAUNCH.load("%launch", "function", "arguments", "chunk", "scratch", "stride", "trace", "workers")}
  %far = mul i64 %number, %stride
  %workspace = getelementptr i8, ptr %scratch, i64 %far
  %begun = call i64 @begin(ptr %trace)
  call void @invalidate(ptr %workspace, i64 %stride)
  %ranges = call ptr @ranges_of(ptr %pool, i64 %workers)
  %mine = getelementptr i64, ptr %ranges, i64 %number
  br label %again
again:
  ; A thread that ran no tile leaves no mark.
  %marked = phi ptr [ null, %entry ], [ %trace, %run ], [ %marked, %stolen ], [ %marked, %take ]
  %held = load atomic i64, ptr %mine monotonic, align 8
  %begin = and i64 %held, {_LOW}
  %last = lshr i64 %held, 32
  %any = icmp slt i64 %begin, %last
  br i1 %any, label %take, label %idle
take:
  %open = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %open, i64 %last)
  %left = call i64 @range(i64 %end, i64 %last)
  %pair = cmpxchg ptr %mine, i64 %held, i64 %left monotonic monotonic, align 8
  %done = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %done, label %run, label %again
run:
  call void %function(ptr %arguments, i64 %begin, i64 %end, ptr %workspace)
  br label %again
idle:
  %distance = phi i64 [ 1, %again ], [ %farther, %next ]
  %more = icmp sle i64 %distance, %workers
  br i1 %more, label %choose, label %finished
choose:
  %onward = add i64 %number, %distance
  %threads = add i64 %workers, 1
  %victim = urem i64 %onward, %threads
  %theirs = getelementptr i64, ptr %ranges, i64 %victim
  br label %look
look:
  %seen = load atomic i64, ptr %theirs monotonic, align 8
  %from = and i64 %seen, {_LOW}
  %to = lshr i64 %seen, 32
  %count = sub i64 %to, %from
  %there = icmp sgt i64 %count, 0
  br i1 %there, label %steal, label %next
steal:
  %half = lshr i64 %count, 1
  %least = call i64 @llvm.smin.i64(i64 %chunk, i64 %count)
  %part = call i64 @llvm.smax.i64(i64 %half, i64 %least)
  %cut = sub i64 %to, %part
  %rest = call i64 @range(i64 %from, i64 %cut)
  %try = cmpxchg ptr %theirs, i64 %seen, i64 %rest monotonic monotonic, align 8
  %given = extractvalue {{ i64, i1 }} %try, 1
  br i1 %given, label %stolen, label %look
stolen:
  %new = call i64 @range(i64 %cut, i64 %to)
  store atomic i64 %new, ptr %mine monotonic, align 8
  br label %again
next:
  %farther = add i64 %distance, 1
  br label %idle
finished:
  %row = add i64 %number, 1
  call void @mark(ptr %marked, i64 %row, i64 %begun)
  ret void
}}
"""


def _invalidate() -> str:
    return """
; Nothing that a kernel left in its workspace is valid in the next step: its first two words become -1.
define internal void @invalidate(ptr %workspace, i64 %stride) nounwind alwaysinline {
entry:
  %some = icmp sgt i64 %stride, 0
  br i1 %some, label %clear, label %done
clear:
  store i64 -1, ptr %workspace
  %second = getelementptr i64, ptr %workspace, i64 1
  store i64 -1, ptr %second
  br label %done
done:
  ret void
}
"""
