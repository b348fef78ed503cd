"""How the threads of a crew share the tiles of a step, as LLVM's text.

Each thread has a range of neighbouring tiles, the same share in every step, so that it finds in its own cache what it
wrote before. It claims chunks from the front of it; who has none left takes half of another's from the back.
"""

from __future__ import annotations

MOST_TILES = 2**31 - 1
"""Tiles of a step that is shared: half a word counts them."""
_LOW = 2**32 - 1


def claim_text(own: int) -> str:
    """`share(crew, tiles, workers)` and `claim(crew, job, number)`; workers have their lines from byte `own` on."""
    return f"""
define internal ptr @line_of(ptr %crew, i64 %number) nounwind alwaysinline {{
entry:
  %index = sub i64 %number, 1
  %far = mul i64 %index, 64
  %first = getelementptr i8, ptr %crew, i64 {own}
  %line = getelementptr i8, ptr %first, i64 %far
  ret ptr %line
}}

define internal ptr @ranges_of(ptr %crew, i64 %workers) nounwind alwaysinline {{
entry:
  %behind = add i64 %workers, 1
  %ranges = call ptr @line_of(ptr %crew, i64 %behind)
  ret ptr %ranges
}}

define internal i64 @range(i64 %begin, i64 %end) nounwind alwaysinline {{
entry:
  %high = shl i64 %end, 32
  %both = or i64 %high, %begin
  ret i64 %both
}}

; Give each thread its share of the tiles.
define internal void @share(ptr %crew, i64 %tiles, i64 %workers) nounwind {{
entry:
  %threads = add i64 %workers, 1
  %ranges = call ptr @ranges_of(ptr %crew, i64 %workers)
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
}}

; The thread's own tiles, then what others have not come to.
define internal void @claim(ptr %crew, ptr %job, i64 %number) nounwind {{
entry:
  %function = load ptr, ptr %job
  %p1 = getelementptr i8, ptr %job, i64 8
  %arguments = load ptr, ptr %p1
  %p3 = getelementptr i8, ptr %job, i64 24
  %chunk = load i64, ptr %p3
  %p4 = getelementptr i8, ptr %job, i64 32
  %scratch = load ptr, ptr %p4
  %p5 = getelementptr i8, ptr %job, i64 40
  %stride = load i64, ptr %p5
  %far = mul i64 %number, %stride
  %own = getelementptr i8, ptr %scratch, i64 %far
  %p6 = getelementptr i8, ptr %job, i64 48
  %row = load ptr, ptr %p6
  %p7 = getelementptr i8, ptr %job, i64 56
  %workers = load i64, ptr %p7
  %begun = call i64 @begin(ptr %row)
  call void @forget(ptr %own, i64 %stride)
  %ranges = call ptr @ranges_of(ptr %crew, i64 %workers)
  %mine = getelementptr i64, ptr %ranges, i64 %number
  br label %again
again:
  %told = phi ptr [ null, %entry ], [ %row, %some ], [ %told, %took ], [ %told, %left ]
  %held = load atomic i64, ptr %mine monotonic, align 8
  %begin = and i64 %held, {_LOW}
  %last = lshr i64 %held, 32
  %any = icmp slt i64 %begin, %last
  br i1 %any, label %left, label %look
left:
  %open = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %open, i64 %last)
  %kept = call i64 @range(i64 %end, i64 %last)
  %pair = cmpxchg ptr %mine, i64 %held, i64 %kept monotonic monotonic, align 8
  %done = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %done, label %some, label %again
some:
  call void %function(ptr %arguments, i64 %begin, i64 %end, ptr %own)
  br label %again
look:
  %turn = phi i64 [ 1, %again ], [ %turned, %passed ]
  %more = icmp sle i64 %turn, %workers
  br i1 %more, label %other, label %none
other:
  %onward = add i64 %number, %turn
  %threads = add i64 %workers, 1
  %victim = urem i64 %onward, %threads
  %theirs = getelementptr i64, ptr %ranges, i64 %victim
  br label %ask
ask:
  %seen = load atomic i64, ptr %theirs monotonic, align 8
  %from = and i64 %seen, {_LOW}
  %to = lshr i64 %seen, 32
  %count = sub i64 %to, %from
  %there = icmp sgt i64 %count, 0
  br i1 %there, label %take, label %passed
take:
  %half = lshr i64 %count, 1
  %least = call i64 @llvm.smin.i64(i64 %chunk, i64 %count)
  %part = call i64 @llvm.smax.i64(i64 %half, i64 %least)
  %cut = sub i64 %to, %part
  %rest = call i64 @range(i64 %from, i64 %cut)
  %try = cmpxchg ptr %theirs, i64 %seen, i64 %rest monotonic monotonic, align 8
  %given = extractvalue {{ i64, i1 }} %try, 1
  br i1 %given, label %took, label %ask
took:
  %new = call i64 @range(i64 %cut, i64 %to)
  store atomic i64 %new, ptr %mine monotonic, align 8
  br label %again
passed:
  %turned = add i64 %turn, 1
  br label %look
none:
  %who = add i64 %number, 1
  call void @mark(ptr %told, i64 %who, i64 %begun)
  ret void
}}

; Nothing that a kernel left in scratch is of use to the next step.
define internal void @forget(ptr %scratch, i64 %stride) nounwind alwaysinline {{
entry:
  %some = icmp sgt i64 %stride, 0
  br i1 %some, label %clear, label %done
clear:
  store i64 -1, ptr %scratch
  %second = getelementptr i64, ptr %scratch, i64 1
  store i64 -1, ptr %second
  br label %done
done:
  ret void
}}
"""
