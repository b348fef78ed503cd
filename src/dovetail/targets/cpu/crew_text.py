"""The crew of worker threads as LLVM's text: how steps are run one after the other, and their tiles side by side.

`run` goes through a table of steps. A step with more than one chunk of tiles is opened to the workers, who claim
chunks by an atomic counter; whoever comes late or not at all is not waited for, so that a loaded machine slows a run
down and never stops it. What a tile computes does not depend on who claims it.

The gate of the crew is a number: even while a job is open, odd while it is closed. A worker enters, looks at the gate
again, and leaves if it moved; the leader closes the gate and waits until nobody is inside before it writes a new job.
"""

from __future__ import annotations

STEP_WORDS = 6
"""Words of a step in the table: function, arguments, tiles, tiles in a chunk, kind, and the word that it may set to
have the host look at it again, or 0."""
KIND_COMPILED, KIND_HOST = 0, 1

GATE, INSIDE, ASLEEP, STOP, NEXT, JOB, ALONE = 0, 64, 128, 192, 256, 320, 384
"""Where things lie in the crew's block, each on a cache line of its own; a job is six words.
`ALONE` is how many steps the leader still runs by itself, after it had to wait long for a worker."""
BLOCK_BYTES = 448

POLITE = 500
"""Turns after which who waits lets others have the processor: whom it waits for may have none."""
PATIENCE, PENALTY = 1_000_000, 128
"""Nanoseconds beyond its own work after which the leader misses a worker; so many steps then go without it."""

_PAUSE = {True: "call void @llvm.aarch64.hint(i32 1)", False: "call void @llvm.x86.sse2.pause()"}
_PAUSE_DECLARED = {
    True: "declare void @llvm.aarch64.hint(i32)",
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
    """`worker(crew, number)` and `run(crew, table, first, count, scratch, stride, workers)`."""
    at = {"inside": INSIDE, "asleep": ASLEEP, "stop": STOP, "next": NEXT, "job": JOB, "by_itself": ALONE}
    places = "\n".join(f"  %{name} = getelementptr i8, ptr %crew, i64 {offset}" for name, offset in at.items())
    return f"""
declare i64 @syscall(i64, ...)
declare i32 @usleep(i32)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
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

; The chunks that nobody has claimed yet, one after the other.
define internal void @claim(ptr %crew, ptr %job, i64 %number) nounwind {{
entry:
  %next = getelementptr i8, ptr %crew, i64 {NEXT}
  %function = load ptr, ptr %job
  %p1 = getelementptr i8, ptr %job, i64 8
  %arguments = load ptr, ptr %p1
  %p2 = getelementptr i8, ptr %job, i64 16
  %tiles = load i64, ptr %p2
  %p3 = getelementptr i8, ptr %job, i64 24
  %chunk = load i64, ptr %p3
  %p4 = getelementptr i8, ptr %job, i64 32
  %scratch = load ptr, ptr %p4
  %p5 = getelementptr i8, ptr %job, i64 40
  %stride = load i64, ptr %p5
  %far = mul i64 %number, %stride
  %own = getelementptr i8, ptr %scratch, i64 %far
  br label %again
again:
  %begin = atomicrmw add ptr %next, i64 %chunk monotonic
  %left = icmp slt i64 %begin, %tiles
  br i1 %left, label %some, label %none
some:
  %open = add i64 %begin, %chunk
  %fits = icmp slt i64 %open, %tiles
  %end = select i1 %fits, i64 %open, i64 %tiles
  call void %function(ptr %arguments, i64 %begin, i64 %end, ptr %own)
  br label %again
none:
  ret void
}}

define void @worker(ptr %crew, i64 %number) nounwind {{
entry:
{places}
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
  atomicrmw add ptr %inside, i32 1 seq_cst
  %again = load atomic i32, ptr %crew seq_cst, align 4
  %valid = icmp eq i32 %again, %seen
  br i1 %valid, label %work, label %moved.out
work:
  call void @claim(ptr %crew, ptr %job, i64 %number)
  atomicrmw sub ptr %inside, i32 1 seq_cst
  br label %done
done:
  br label %wait
moved.out:
  atomicrmw sub ptr %inside, i32 1 seq_cst
  br label %moved
moved:
  br label %wait
leave:
  ret void
}}

; Steps from %first on; gives the number of the step where the host has to go on, or %count. A step that sets its word
; has run, and the host decides.
define i64 @run(ptr %crew, ptr %table, i64 %first, i64 %count, ptr %scratch, i64 %stride, i64 %workers) nounwind {{
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
  %one = icmp sle i64 %tiles, %chunk
  %lonely = icmp eq i64 %workers, 0
  %few = or i1 %one, %lonely
  %penalty = load i64, ptr %by_itself
  %punished = icmp sgt i64 %penalty, 0
  %alone = or i1 %few, %punished
  br i1 %alone, label %direct, label %shared
direct:
  %served = sub i64 %penalty, 1
  %left = select i1 %punished, i64 %served, i64 %penalty
  store i64 %left, ptr %by_itself
  call void %function(ptr %arguments, i64 0, i64 %tiles, ptr %scratch)
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
  store atomic i64 0, ptr %next seq_cst, align 8
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
  %held = phi i32 [ 0, %lead ], [ %holding, %again ]
  %busy = load atomic i32, ptr %inside seq_cst, align 4
  %empty = icmp eq i32 %busy, 0
  br i1 %empty, label %stepped, label %hold
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
  %price = select i1 %missed, i64 {PENALTY}, i64 0
  store i64 %price, ptr %by_itself
  call i32 @sched_yield()
  br label %again
again:
  br label %drain
stepped:
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
"""
