"""Branches and loops as LLVM text: rows of a launch table whose work is other tables.

A loop runs its tables once in each trip. Between trips the launch arguments move: to the next slice, or from one of two
buffers to the other, where a trip reads what the trip before wrote.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.ops.control import MOST_TRIPS
from dovetail.targets.cpu.threads.fields import RecordLayout
from dovetail.targets.runtime.control.records import ASKS_HOST, BRANCH_RECORD, ENDLESS, LOOP_RECORD, MOVE_RECORD

_RUN = "ptr %scratch, i64 %stride, i64 %workers, ptr null"
_PARAMETERS = "ptr %pool, ptr %record, ptr %scratch, i64 %stride, i64 %workers"


def _record(names: Iterable[str]) -> RecordLayout:
    """The fields by their names as LLVM values: `trip#` is %trip.count, `trip@` is %trip.table."""
    kinds = {n: "ptr" if n[-1] == "@" or n in ("flag", "status", "argument") else "i64" for n in names}
    return RecordLayout({n.replace("#", ".count").replace("@", ".table"): kind for n, kind in kinds.items()})


_LOOP, _BRANCH, _MOVE = _record(LOOP_RECORD), _record(BRANCH_RECORD), _record(MOVE_RECORD)


def _table(name: str) -> str:
    return f"call i64 @run(ptr %pool, ptr %{name}.table, i64 0, i64 %{name}.count, {_RUN})"


def control_text() -> str:
    """`loop(pool, record, scratch, stride, workers)` and `branch` of the same; they run tables by `run`."""
    return "\n".join([_move(), _loop(), _branch()])


def _move() -> str:
    return f"""
; Set the launch arguments of a trip.
define internal void @move(ptr %moves, i64 %count, i64 %trip) nounwind {{
entry:
  %odd.bit = and i64 %trip, 1
  %is_odd = icmp ne i64 %odd.bit, 0
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %following, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %next, label %done
next:
  %far = mul i64 %i, {_MOVE.bytes}
  %at = getelementptr i8, ptr %moves, i64 %far
{_MOVE.load("%at")}
  %start = select i1 %is_odd, i64 %odd, i64 %even
  %moved = mul i64 %step, %trip
  %new = add i64 %start, %moved
  store i64 %new, ptr %argument
  %following = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


def _loop() -> str:
    return f"""
; A table that stops has set the status already.
define internal void @loop({_PARAMETERS}) nounwind noinline {{
entry:
{_LOOP.load("%record")}
  %began = {_table("before")}
  %has_condition = icmp ne ptr %flag, null
  %ready = icmp eq i64 %began, %before.count
  br i1 %ready, label %head, label %leave
head:
  %trip = phi i64 [ 0, %entry ], [ %following, %tripped ]
  call void @move(ptr %moves.table, i64 %moves.count, i64 %trip)
  br i1 %has_condition, label %condition, label %compare
condition:
  %answered = {_table("condition")}
  %answer = icmp eq i64 %answered, %condition.count
  br i1 %answer, label %test, label %leave
test:
  %value = load i8, ptr %flag
  %holds = icmp ne i8 %value, 0
  br i1 %holds, label %compare, label %ends
compare:
  %more = icmp slt i64 %trip, %limit
  br i1 %more, label %check, label %ends
check:
  %exceeded = icmp sge i64 %trip, {MOST_TRIPS}
  br i1 %exceeded, label %refuse, label %body
refuse:
  store i64 {ENDLESS}, ptr %status
  ret void
body:
  %ran = {_table("trip")}
  %complete = icmp eq i64 %ran, %trip.count
  br i1 %complete, label %tripped, label %leave
tripped:
  %following = add i64 %trip, 1
  br label %head
ends:
  %odd.bit = and i64 %trip, 1
  %odd = icmp ne i64 %odd.bit, 0
  br i1 %odd, label %copy, label %leave
copy:
  %ended = {_table("end")}
  ret void
leave:
  ret void
}}
"""


def _branch() -> str:
    return f"""
define internal void @branch({_PARAMETERS}) nounwind noinline {{
entry:
{_BRANCH.load("%record")}
  %value = load i8, ptr %flag
  %holds = icmp ne i8 %value, 0
  %count = select i1 %holds, i64 %then.count, i64 %otherwise.count
  %table = select i1 %holds, ptr %then.table, ptr %otherwise.table
  %compiled = icmp sge i64 %count, 0
  br i1 %compiled, label %body, label %refuse
body:
  %ran = call i64 @run(ptr %pool, ptr %table, i64 0, i64 %count, {_RUN})
  ret void
refuse:
  store i64 {ASKS_HOST}, ptr %status
  ret void
}}
"""
