"""The thread pool as LLVM text: `run` runs the steps of a launch table in order, and the tiles of a step in parallel.

`run` opens a step with more than one chunk to the workers, which share its tiles by work stealing (`stealing_text`). It
does not wait for a worker that comes late: a loaded machine slows a run down and never stops it. What a tile computes
does not depend on the thread that runs it. A thread's workspace begins with two words that are -1 at the start of a
step, for what a kernel keeps there from chunk to chunk.

The epoch of the pool is a number: even while a step is open, odd while none is. A worker enters, reads the epoch again,
and leaves if it moved; the leader closes the epoch and waits until no worker is inside before it writes the next step.
"""

from __future__ import annotations

from dovetail.targets.cpu.threads.control_text import control_text
from dovetail.targets.cpu.threads.fields import LAUNCH, RecordLayout
from dovetail.targets.cpu.threads.futex import FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, WAKE_ALL, futex_number
from dovetail.targets.cpu.threads.stealing_text import MOST_TILES, stealing_text
from dovetail.targets.cpu.threads.trace_text import clock_text, trace_text
from dovetail.targets.runtime.calls.launch_table import KIND_BRANCH, KIND_HOST, KIND_LOOP, OFFSETS, STEP

EPOCH, ASLEEP, STOP, OPEN_STEP, WORKERS = 0, 64, 128, 192, 256
"""Offsets in the pool's block, each on a cache line of its own: the epoch, the number of sleeping workers, whether
workers stop, and the open step. From `WORKERS` on each worker has a line; after the lines each thread has a word for
its range of tiles, the leader first: the first tile in the low half, the end in the high half."""
INSIDE, QUARANTINED_UNTIL, QUARANTINE_NS, LAST_QUARANTINE_END = 0, 8, 16, 24
"""A worker's line: whether it works on the open step; the time until which it stays away, or 0; the length and the end
of its last quarantine. All times are nanoseconds."""

SPINS_BEFORE_YIELD = 500
"""Spins before `sched_yield`: the thread that we wait for may be descheduled."""
STRAGGLER_NS = 1_000_000
"""Straggler timeout, beyond the leader's own work. A worker that exceeds it has lost its core: it is quarantined for as
long as the leader waited, with exponential back-off if it is late again soon after."""
MAX_QUARANTINE_NS = 64_000_000

_ROW = RecordLayout({name: "ptr" if name in ("function", "arguments", "status") else "i64" for name in OFFSETS})
"""A row of the launch table."""

# `yield` on aarch64 takes no time on most cores; an instruction barrier waits as long as `pause` does on x86.
_PAUSE = {True: "call void @llvm.aarch64.isb(i32 15)", False: "call void @llvm.x86.sse2.pause()"}
_PAUSE_DECLARED = {
    True: "declare void @llvm.aarch64.isb(i32)",
    False: "declare void @llvm.x86.sse2.pause()",
}
_LOCATED = "\n".join(
    f"  %{name} = getelementptr i8, ptr %pool, i64 {offset}"
    for name, offset in {"asleep": ASLEEP, "stop": STOP, "open": OPEN_STEP}.items()
)


def block_bytes(workers: int) -> int:
    """The size of the pool's block."""
    return WORKERS + 64 * workers + 8 * (workers + 1)


def pool_text(*, arm: bool, linux: bool, spins: int) -> str:
    """`worker(pool, number)` and `run(pool, table, first, count, scratch, stride, workers, trace)`."""
    assert STEP.itemsize == _ROW.bytes, "rows are 64-bit fields"
    return "\n".join(
        [
            _declarations(arm),
            clock_text(),
            trace_text(),
            _quarantine(),
            stealing_text(WORKERS),
            _worker(arm, linux, spins),
            _run(arm, linux),
            control_text(),
        ]
    )


def _declarations(arm: bool) -> str:
    return f"""
declare i64 @syscall(i64, ...)
declare i32 @usleep(i32)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
{_PAUSE_DECLARED[arm]}
"""


def _futex(arm: bool, operation: int, value: str) -> str:
    """The system call on the epoch."""
    return (
        f"  call i64 (i64, ...) @syscall(i64 {futex_number(arm=arm)}, ptr %pool, i64 {operation}, i32 {value}, "
        f"ptr null, ptr null, i64 0)"
    )


def _sleep(arm: bool, linux: bool) -> str:
    """Sleep while the epoch is the one that was seen."""
    return _futex(arm, FUTEX_WAIT_PRIVATE, "%seen") if linux else "  call i32 @usleep(i32 50)"


def _wake(arm: bool, linux: bool) -> str:
    return _futex(arm, FUTEX_WAKE_PRIVATE, str(WAKE_ALL)) if linux else ""


def _quarantine() -> str:
    """Quarantine a straggler, with exponential back-off if the last quarantine ended less than its length ago."""
    return f"""
define internal void @quarantine(ptr %line, i64 %waited) nounwind {{
entry:
  %length.at = getelementptr i8, ptr %line, i64 {QUARANTINE_NS}
  %end.at = getelementptr i8, ptr %line, i64 {LAST_QUARANTINE_END}
  %before = load i64, ptr %length.at
  %ended = load i64, ptr %end.at
  %time = call i64 @now()
  %since = sub i64 %time, %ended
  %soon = icmp slt i64 %since, %before
  %twice = shl i64 %before, 1
  %back_off = select i1 %soon, i64 %twice, i64 0
  %longer = call i64 @llvm.smax.i64(i64 %back_off, i64 %waited)
  %length = call i64 @llvm.smin.i64(i64 %longer, i64 {MAX_QUARANTINE_NS})
  %end = add i64 %time, %length
  store i64 %length, ptr %length.at
  store i64 %end, ptr %end.at
  %until = getelementptr i8, ptr %line, i64 {QUARANTINED_UNTIL}
  store atomic i64 %end, ptr %until release, align 8
  ret void
}}
"""


def _worker(arm: bool, linux: bool, spins: int) -> str:
    """A worker: wait for a new epoch, spinning first, then asleep; enter the open step unless in quarantine."""
    return f"""
define void @worker(ptr %pool, i64 %number) nounwind {{
entry:
{_LOCATED}
  %line = call ptr @line_of(ptr %pool, i64 %number)
  %until.at = getelementptr i8, ptr %line, i64 {QUARANTINED_UNTIL}
  br label %wait
wait:
  %last = phi i32 [ 1, %entry ], [ %seen, %done ], [ %last, %slept ], [ %last, %moved ]
  br label %spin
spin:
  %spins = phi i32 [ 0, %wait ], [ %spun, %counted ]
  %seen = load atomic i32, ptr %pool acquire, align 4
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
  %spun = add i32 %spins, 1
  %long = icmp sgt i32 %spun, {SPINS_BEFORE_YIELD}
  br i1 %long, label %yield, label %counted
yield:
  call i32 @sched_yield()
  br label %counted
counted:
  %spinning = icmp slt i32 %spun, {spins}
  br i1 %spinning, label %spin, label %rest
rest:
  atomicrmw add ptr %asleep, i32 1 seq_cst
  %still = load atomic i32, ptr %pool seq_cst, align 4
  %same = icmp eq i32 %still, %seen
  br i1 %same, label %sleep, label %wakes
sleep:
{_sleep(arm, linux)}
  br label %wakes
wakes:
  atomicrmw sub ptr %asleep, i32 1 seq_cst
  br label %slept
slept:
  br label %wait
go:
  %until = load atomic i64, ptr %until.at acquire, align 8
  %free = icmp eq i64 %until, 0
  br i1 %free, label %enters, label %quarantined
quarantined:
  %time = call i64 @now()
  %served = icmp sge i64 %time, %until
  br i1 %served, label %release, label %done
release:
  store atomic i64 0, ptr %until.at release, align 8
  br label %enters
enters:
  store atomic i32 1, ptr %line seq_cst, align 4
  %again = load atomic i32, ptr %pool seq_cst, align 4
  %valid = icmp eq i32 %again, %seen
  br i1 %valid, label %work, label %moved.out
work:
  call void @work_and_steal(ptr %pool, ptr %open, i64 %number)
  store atomic i32 0, ptr %line release, align 4
  br label %done
done:
  br label %wait
moved.out:
  store atomic i32 0, ptr %line release, align 4
  br label %moved
moved:
  br label %wait
leave:
  ret void
}}
"""


def _run(arm: bool, linux: bool) -> str:
    """The leader: run the steps from %first on; gives the index of the step that the host must run, or %count.

    A step that sets its error flag has run, and the host decides.
    """
    return f"""
define i64 @run(ptr %pool, ptr %table, i64 %first, i64 %count, ptr %scratch, i64 %stride, i64 %workers,
                ptr %trace) nounwind {{
entry:
{_LOCATED}
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %following, %passed ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %step, label %finished
finished:
  ret i64 %count
{_dispatch()}
{_share(arm, linux)}
{_await_workers(arm)}
{_check_status()}
passed:
  %following = add nuw nsw i64 %i, 1
  br label %head
}}
"""


def _dispatch() -> str:
    """One row of the table: a host step ends the run, control flow runs its own tables, a small kernel runs at once."""
    return f"""step:
  %far = mul i64 %i, {_ROW.bytes}
  %row = getelementptr i8, ptr %table, i64 %far
{_ROW.load("%row", "function", "arguments", "tiles", "chunk", "kind")}
  %host = icmp eq i64 %kind, {KIND_HOST}
  br i1 %host, label %stops, label %compiled
stops:
  ret i64 %i
compiled:
  %marks = call ptr @marks_of(ptr %trace, i64 %i)
  %begun = call i64 @begin(ptr %marks)
  switch i64 %kind, label %kernel [ i64 {KIND_LOOP}, label %loops
                                    i64 {KIND_BRANCH}, label %branches ]
loops:
  call void @loop(ptr %pool, ptr %arguments, ptr %scratch, i64 %stride, i64 %workers)
  br label %stepped
branches:
  call void @branch(ptr %pool, ptr %arguments, ptr %scratch, i64 %stride, i64 %workers)
  br label %stepped
kernel:
  %one = icmp sle i64 %tiles, %chunk
  %lonely = icmp eq i64 %workers, 0
  %few = or i1 %one, %lonely
  %many = icmp sgt i64 %tiles, {MOST_TILES}
  %alone = or i1 %few, %many
  br i1 %alone, label %direct, label %shared
direct:
  call void @invalidate(ptr %scratch, i64 %stride)
  call void %function(ptr %arguments, i64 0, i64 %tiles, ptr %scratch)
  call void @mark(ptr %marks, i64 1, i64 %begun)
  br label %stepped"""


def _share(arm: bool, linux: bool) -> str:
    """Open a step to the workers: partition its tiles, advance the epoch, wake sleepers, work, close the epoch."""
    fields = {name: f"%{name}" for name in LAUNCH.kinds} | {"trace": "%marks"}
    return f"""shared:
{LAUNCH.store("%open", fields)}
  call void @partition(ptr %pool, i64 %tiles, i64 %workers)
  atomicrmw add ptr %pool, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %asleep seq_cst, align 4
  %some = icmp ne i32 %sleepers, 0
  br i1 %some, label %wake, label %lead
wake:
{_wake(arm, linux)}
  br label %lead
lead:
  %started = call i64 @now()
  call void @work_and_steal(ptr %pool, ptr %open, i64 0)
  %ended = call i64 @now()
  atomicrmw add ptr %pool, i32 1 seq_cst
  br label %drain"""


def _await_workers(arm: bool) -> str:
    """Wait until each worker is out of the step, and quarantine those that exceed the straggler timeout."""
    return f"""drain:
  %worker = phi i64 [ 1, %lead ], [ %other, %arrived ]
  %all = icmp sgt i64 %worker, %workers
  br i1 %all, label %stepped, label %await
await:
  %line = call ptr @line_of(ptr %pool, i64 %worker)
  br label %watch
watch:
  %spins = phi i32 [ 0, %await ], [ %spun, %again ]
  %late = phi i64 [ 0, %await ], [ %later, %again ]
  %inside = load atomic i32, ptr %line seq_cst, align 4
  %empty = icmp eq i32 %inside, 0
  br i1 %empty, label %arrives, label %pause
pause:
  {_PAUSE[arm]}
  %spun = add i32 %spins, 1
  %long = icmp sgt i32 %spun, {SPINS_BEFORE_YIELD}
  br i1 %long, label %yield, label %again
yield:
  %here = call i64 @now()
  %waited = sub i64 %here, %ended
  %worked = sub i64 %ended, %started
  %timeout = add i64 %worked, {STRAGGLER_NS}
  %exceeded = icmp sgt i64 %waited, %timeout
  %lateness = select i1 %exceeded, i64 %waited, i64 %late
  call i32 @sched_yield()
  br label %again
again:
  %later = phi i64 [ %late, %pause ], [ %lateness, %yield ]
  br label %watch
arrives:
  %in_time = icmp eq i64 %late, 0
  br i1 %in_time, label %arrived, label %straggler
straggler:
  call void @quarantine(ptr %line, i64 %late)
  br label %arrived
arrived:
  %other = add i64 %worker, 1
  br label %drain"""


def _check_status() -> str:
    """The step is done: mark it, and stop where it set its error flag."""
    return f"""stepped:
  call void @mark(ptr %marks, i64 0, i64 %begun)
{_ROW.load("%row", "status")}
  %unchecked = icmp eq ptr %status, null
  br i1 %unchecked, label %passed, label %check
check:
  %flag = load i64, ptr %status
  %fine = icmp eq i64 %flag, 0
  br i1 %fine, label %passed, label %stops"""
