"""The crew of worker threads as LLVM's text: how steps are run one after the other, and their tiles side by side.

`run` goes through a table of steps. A step with more than one chunk of tiles is opened to the workers, who claim tiles
as `claim_text` says; whoever comes late or not at all is not waited for, so that a loaded machine slows a run down and
never stops it. What a tile computes does not depend on who claims it. A worker's scratch begins with two words
that are -1 when it begins with a step, for what a kernel keeps there from chunk to chunk.

The gate of the crew is a number: even while a job is open, odd while it is closed. A worker enters, looks at the gate
again, and leaves if it moved; the leader closes the gate and waits until nobody is inside before it writes a new job.
"""

from __future__ import annotations

from dovetail.targets.cpu.threads.control_text import control_text
from dovetail.targets.cpu.threads.stealing_text import MOST_TILES, claim_text

STEP_WORDS = 6
"""Words of a step in the table: function, arguments, tiles, tiles in a chunk, kind, and the word that it may set to
have the host look at it again, or 0."""
KIND_COMPILED, KIND_HOST, KIND_LOOP, KIND_BRANCH = 0, 1, 2, 3

GATE, ASLEEP, STOP, JOB, OWN = 0, 64, 128, 192, 256
"""Where things lie in the crew's block, each on a cache line of its own; a job is eight words.
From `OWN` on each worker has a line of its own; behind them each thread has a word for its range, the leader first: the
first tile in the low half, the end in the high."""
INSIDE, BARRED, FOR, UNTIL = 0, 8, 16, 24
"""A worker's line: whether it works on the job, until when it keeps away from jobs, in nanoseconds, or 0; and for how
long and until when it was last kept away."""


def block_bytes(workers: int) -> int:
    """The size of the crew's block."""
    return OWN + 64 * workers + 8 * (workers + 1)


MARK_WORDS = 2
"""Where times are wanted, words of a mark: when it began and ended, in nanoseconds. A step has one as a whole, then one
for each thread. What `marks` points to begins with the bytes of a step's marks."""

POLITE = 500
"""Turns after which who waits lets others have the processor: whom it waits for may have none."""
PATIENCE = 1_000_000
"""Nanoseconds beyond its own work after which the leader misses a worker: it has lost its processor to somebody else,
and is kept away for as long as it was waited for; each time that it is late again soon after, for twice as long."""
LONGEST = 64_000_000
"""Nanoseconds for which a worker is kept away at most."""

# The yield of aarch64 takes no time at all on most processors; a barrier of instructions waits as pause does.
_PAUSE = {True: "call void @llvm.aarch64.isb(i32 15)", False: "call void @llvm.x86.sse2.pause()"}
_PAUSE_DECLARED = {
    True: "declare void @llvm.aarch64.isb(i32)",
    False: "declare void @llvm.x86.sse2.pause()",
}
_FUTEX = {True: 98, False: 202}
_NOTHING_MORE = "ptr null, ptr null, i64 0"


def _sleep(arm: bool, linux: bool) -> str:
    if not linux:
        return "  call i32 @usleep(i32 50)"
    return (
        f"  call i64 (i64, ...) @syscall(i64 {_FUTEX[arm]}, ptr %crew, i64 128, i32 %seen, ptr null, ptr null, i64 0)"
    )


def _wake(arm: bool, linux: bool) -> str:
    if not linux:
        return ""
    return f"  call i64 (i64, ...) @syscall(i64 {_FUTEX[arm]}, ptr %crew, i64 129, i32 2147483647, {_NOTHING_MORE})"


def crew_text(*, arm: bool, linux: bool, spins: int) -> str:
    """`worker(crew, number)` and `run(crew, table, first, count, scratch, stride, workers, marks)`."""
    at = {"asleep": ASLEEP, "stop": STOP, "job": JOB}
    places = "\n".join(f"  %{name} = getelementptr i8, ptr %crew, i64 {offset}" for name, offset in at.items())
    return f"""
declare i64 @syscall(i64, ...)
declare i32 @usleep(i32)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
{_PAUSE_DECLARED[arm]}

define internal i64 @now() nounwind {{
entry:
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %p = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %p
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %rest
  ret i64 %all
}}

; The marks of a step, or nothing where nobody wants times.
define internal ptr @marks_of(ptr %marks, i64 %i) nounwind alwaysinline {{
entry:
  %off = icmp eq ptr %marks, null
  br i1 %off, label %none, label %some
none:
  ret ptr null
some:
  %bytes = load i64, ptr %marks
  %far = mul i64 %i, %bytes
  %first = getelementptr i8, ptr %marks, i64 8
  %mine = getelementptr i8, ptr %first, i64 %far
  ret ptr %mine
}}

define internal i64 @begin(ptr %row) nounwind alwaysinline {{
entry:
  %off = icmp eq ptr %row, null
  br i1 %off, label %none, label %some
none:
  ret i64 0
some:
  %time = call i64 @now()
  ret i64 %time
}}

define internal void @mark(ptr %row, i64 %who, i64 %begun) nounwind alwaysinline {{
entry:
  %off = icmp eq ptr %row, null
  br i1 %off, label %none, label %some
some:
  %far = mul i64 %who, {8 * MARK_WORDS}
  %at = getelementptr i8, ptr %row, i64 %far
  store i64 %begun, ptr %at
  %time = call i64 @now()
  %end = getelementptr i8, ptr %at, i64 8
  store i64 %time, ptr %end
  br label %none
none:
  ret void
}}

; Keep a worker away that was waited for.
define internal void @bar(ptr %line, i64 %waited) nounwind {{
entry:
  %for_at = getelementptr i8, ptr %line, i64 {FOR}
  %until_at = getelementptr i8, ptr %line, i64 {UNTIL}
  %before = load i64, ptr %for_at
  %until = load i64, ptr %until_at
  %time = call i64 @now()
  %since = sub i64 %time, %until
  %soon = icmp slt i64 %since, %before
  %twice = shl i64 %before, 1
  %again = select i1 %soon, i64 %twice, i64 0
  %more = call i64 @llvm.smax.i64(i64 %again, i64 %waited)
  %length = call i64 @llvm.smin.i64(i64 %more, i64 {LONGEST})
  %end = add i64 %time, %length
  store i64 %length, ptr %for_at
  store i64 %end, ptr %until_at
  %barred = getelementptr i8, ptr %line, i64 {BARRED}
  store atomic i64 %end, ptr %barred release, align 8
  ret void
}}

{claim_text(OWN)}
define void @worker(ptr %crew, i64 %number) nounwind {{
entry:
{places}
  %mine = call ptr @line_of(ptr %crew, i64 %number)
  %barred = getelementptr i8, ptr %mine, i64 {BARRED}
  br label %wait
wait:
  %last = phi i32 [ 1, %entry ], [ %seen, %done ], [ %last, %slept ], [ %last, %moved ]
  br label %spin
spin:
  %turns = phi i32 [ 0, %wait ], [ %turned, %counted ]
  %seen = load atomic i32, ptr %crew acquire, align 4
  %stopped = load atomic i32, ptr %stop acquire, align 4
  %over = icmp ne i32 %stopped, 0
  br i1 %over, label %leave, label %look
look:
  %closed = and i32 %seen, 1
  %is_open = icmp eq i32 %closed, 0
  %is_new = icmp ne i32 %seen, %last
  %enter = and i1 %is_open, %is_new
  br i1 %enter, label %go, label %pause
pause:
  {_PAUSE[arm]}
  %turned = add i32 %turns, 1
  %long = icmp sgt i32 %turned, {POLITE}
  br i1 %long, label %yield, label %counted
yield:
  call i32 @sched_yield()
  br label %counted
counted:
  %patient = icmp slt i32 %turned, {spins}
  br i1 %patient, label %spin, label %rest
rest:
  atomicrmw add ptr %asleep, i32 1 seq_cst
  %still = load atomic i32, ptr %crew seq_cst, align 4
  %same = icmp eq i32 %still, %seen
  br i1 %same, label %doze, label %wakes
doze:
{_sleep(arm, linux)}
  br label %wakes
wakes:
  atomicrmw sub ptr %asleep, i32 1 seq_cst
  br label %slept
slept:
  br label %wait
go:
  %bar = load atomic i64, ptr %barred acquire, align 8
  %welcome = icmp eq i64 %bar, 0
  br i1 %welcome, label %enters, label %asked
asked:
  %time = call i64 @now()
  %served = icmp sge i64 %time, %bar
  br i1 %served, label %back, label %done
back:
  store atomic i64 0, ptr %barred release, align 8
  br label %enters
enters:
  store atomic i32 1, ptr %mine seq_cst, align 4
  %again = load atomic i32, ptr %crew seq_cst, align 4
  %valid = icmp eq i32 %again, %seen
  br i1 %valid, label %work, label %moved.out
work:
  call void @claim(ptr %crew, ptr %job, i64 %number)
  store atomic i32 0, ptr %mine release, align 4
  br label %done
done:
  br label %wait
moved.out:
  store atomic i32 0, ptr %mine release, align 4
  br label %moved
moved:
  br label %wait
leave:
  ret void
}}

; Steps from %first on; gives the number of the step where the host has to go on, or %count. A step that sets its word
; has run, and the host decides.
define i64 @run(ptr %crew, ptr %table, i64 %first, i64 %count, ptr %scratch, i64 %stride, i64 %workers,
                ptr %marks) nounwind {{
entry:
{places}
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %following, %passed ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %step, label %finished
finished:
  ret i64 %count
step:
  %far = mul i64 %i, {8 * STEP_WORDS}
  %row = getelementptr i8, ptr %table, i64 %far
  %function = load ptr, ptr %row
  %r1 = getelementptr i8, ptr %row, i64 8
  %arguments = load ptr, ptr %r1
  %r2 = getelementptr i8, ptr %row, i64 16
  %tiles = load i64, ptr %r2
  %r3 = getelementptr i8, ptr %row, i64 24
  %chunk = load i64, ptr %r3
  %r4 = getelementptr i8, ptr %row, i64 32
  %kind = load i64, ptr %r4
  %host = icmp eq i64 %kind, {KIND_HOST}
  br i1 %host, label %stops, label %compiled
stops:
  ret i64 %i
compiled:
  %marked = call ptr @marks_of(ptr %marks, i64 %i)
  %begun = call i64 @begin(ptr %marked)
  switch i64 %kind, label %kernel [ i64 {KIND_LOOP}, label %loops
                                    i64 {KIND_BRANCH}, label %branches ]
loops:
  call void @loop(ptr %crew, ptr %arguments, ptr %scratch, i64 %stride, i64 %workers)
  br label %stepped
branches:
  call void @branch(ptr %crew, ptr %arguments, ptr %scratch, i64 %stride, i64 %workers)
  br label %stepped
kernel:
  %one = icmp sle i64 %tiles, %chunk
  %lonely = icmp eq i64 %workers, 0
  %few = or i1 %one, %lonely
  %many = icmp sgt i64 %tiles, {MOST_TILES}
  %alone = or i1 %few, %many
  br i1 %alone, label %direct, label %shared
direct:
  call void @forget(ptr %scratch, i64 %stride)
  call void %function(ptr %arguments, i64 0, i64 %tiles, ptr %scratch)
  call void @mark(ptr %marked, i64 1, i64 %begun)
  br label %stepped
shared:
  store ptr %function, ptr %job
  %j1 = getelementptr i8, ptr %job, i64 8
  store ptr %arguments, ptr %j1
  %j2 = getelementptr i8, ptr %job, i64 16
  store i64 %tiles, ptr %j2
  %j3 = getelementptr i8, ptr %job, i64 24
  store i64 %chunk, ptr %j3
  %j4 = getelementptr i8, ptr %job, i64 32
  store ptr %scratch, ptr %j4
  %j5 = getelementptr i8, ptr %job, i64 40
  store i64 %stride, ptr %j5
  %j6 = getelementptr i8, ptr %job, i64 48
  store ptr %marked, ptr %j6
  %j7 = getelementptr i8, ptr %job, i64 56
  store i64 %workers, ptr %j7
  call void @share(ptr %crew, i64 %tiles, i64 %workers)
  atomicrmw add ptr %crew, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %asleep seq_cst, align 4
  %some = icmp ne i32 %sleepers, 0
  br i1 %some, label %rouse, label %lead
rouse:
{_wake(arm, linux)}
  br label %lead
lead:
  %started = call i64 @now()
  call void @claim(ptr %crew, ptr %job, i64 0)
  %ended = call i64 @now()
  atomicrmw add ptr %crew, i32 1 seq_cst
  br label %drain
drain:
  %worker = phi i64 [ 1, %lead ], [ %other, %arrived ]
  %all = icmp sgt i64 %worker, %workers
  br i1 %all, label %stepped, label %await
await:
  %line = call ptr @line_of(ptr %crew, i64 %worker)
  br label %watch
watch:
  %held = phi i32 [ 0, %await ], [ %holding, %again ]
  %late = phi i64 [ 0, %await ], [ %later, %again ]
  %busy = load atomic i32, ptr %line seq_cst, align 4
  %empty = icmp eq i32 %busy, 0
  br i1 %empty, label %arrives, label %hold
hold:
  {_PAUSE[arm]}
  %holding = add i32 %held, 1
  %tired = icmp sgt i32 %holding, {POLITE}
  br i1 %tired, label %resign, label %again
resign:
  %here = call i64 @now()
  %waited = sub i64 %here, %ended
  %worked = sub i64 %ended, %started
  %bearable = add i64 %worked, {PATIENCE}
  %missed = icmp sgt i64 %waited, %bearable
  %missing = select i1 %missed, i64 %waited, i64 %late
  call i32 @sched_yield()
  br label %again
again:
  %later = phi i64 [ %late, %hold ], [ %missing, %resign ]
  br label %watch
arrives:
  %in_time = icmp eq i64 %late, 0
  br i1 %in_time, label %arrived, label %scold
scold:
  call void @bar(ptr %line, i64 %late)
  br label %arrived
arrived:
  %other = add i64 %worker, 1
  br label %drain
stepped:
  call void @mark(ptr %marked, i64 0, i64 %begun)
  %r5 = getelementptr i8, ptr %row, i64 40
  %word = load ptr, ptr %r5
  %silent = icmp eq ptr %word, null
  br i1 %silent, label %passed, label %ask
ask:
  %said = load i64, ptr %word
  %fine = icmp eq i64 %said, 0
  br i1 %fine, label %passed, label %stops
passed:
  %following = add nuw nsw i64 %i, 1
  br label %head
}}
{control_text()}"""
