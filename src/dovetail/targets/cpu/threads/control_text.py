"""Branches and loops as LLVM's text: rows of a table whose work is other tables.

A loop's tables are run again and again. Between trips the words that its kernels are given move on: to the next slice,
or from one of two places to the other, where a trip reads what the one before wrote.
"""

from __future__ import annotations

from dovetail.ops.control import MOST_TRIPS

LOOP_WORDS = ("limit", "flag", "status", *(f"{t}{w}" for t in ("before", "asks", "trip", "end", "moves") for w in "#@"))
"""Words of a loop's record: how many trips at most; where its condition is found, or 0; where to say that the host has
to look; and how long each of its tables is, and where. `asks` computes the condition, `end` runs after trips 1, 3, 5…
and brings what they carried on to where it is wanted."""
BRANCH_WORDS = ("flag", "status", "then#", "then@", "otherwise#", "otherwise@")
"""Words of a branch's record. A table of -1 rows is not compiled: the host runs the step."""
MOVE_WORDS = 4
"""Words of a move: where the word is, what it is in trips 0, 2, 4…, what in the others, and what a trip adds."""

ASKS_HOST, ENDLESS = 1, 2
"""What the status says: the host runs the step by its meaning, or a loop does not end."""

_RUN = "ptr %scratch, i64 %stride, i64 %workers, ptr null"
_GIVEN = "ptr %crew, ptr %record, ptr %scratch, i64 %stride, i64 %workers"


def _loaded(names: tuple[str, ...]) -> str:
    lines: list[str] = []
    for index, name in enumerate(names):
        kind = "ptr" if name[-1] == "@" or name in ("flag", "status") else "i64"
        plain = name.replace("#", ".count").replace("@", ".at")
        lines.append(f"  %p.{plain} = getelementptr i8, ptr %record, i64 {8 * index}")
        lines.append(f"  %{plain} = load {kind}, ptr %p.{plain}")
    return "\n".join(lines)


def _ran(name: str) -> str:
    return f"call i64 @run(ptr %crew, ptr %{name}.at, i64 0, i64 %{name}.count, {_RUN})"


def control_text() -> str:
    """`loop(crew, record, scratch, stride, workers)` and `branch` of the same; they run tables by `run`."""
    return f"""
; The words as they are in a trip.
define internal void @move(ptr %moves, i64 %count, i64 %trip) nounwind {{
entry:
  %odd.bit = and i64 %trip, 1
  %odd = icmp ne i64 %odd.bit, 0
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %following, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %next, label %done
next:
  %far = mul i64 %i, {8 * MOVE_WORDS}
  %at = getelementptr i8, ptr %moves, i64 %far
  %word = load ptr, ptr %at
  %p1 = getelementptr i8, ptr %at, i64 8
  %one = load i64, ptr %p1
  %p2 = getelementptr i8, ptr %at, i64 16
  %other = load i64, ptr %p2
  %p3 = getelementptr i8, ptr %at, i64 24
  %step = load i64, ptr %p3
  %start = select i1 %odd, i64 %other, i64 %one
  %moved = mul i64 %step, %trip
  %new = add i64 %start, %moved
  store i64 %new, ptr %word
  %following = add i64 %i, 1
  br label %head
done:
  ret void
}}

; A table that stops has set the status already.
define internal void @loop({_GIVEN}) nounwind noinline {{
entry:
{_loaded(LOOP_WORDS)}
  %began = {_ran("before")}
  %asked = icmp ne ptr %flag, null
  %ready = icmp eq i64 %began, %before.count
  br i1 %ready, label %head, label %leave
head:
  %trip = phi i64 [ 0, %entry ], [ %following, %tripped ]
  call void @move(ptr %moves.at, i64 %moves.count, i64 %trip)
  br i1 %asked, label %ask, label %compare
ask:
  %answered = {_ran("asks")}
  %answer = icmp eq i64 %answered, %asks.count
  br i1 %answer, label %look, label %leave
look:
  %said = load i8, ptr %flag
  %holds = icmp ne i8 %said, 0
  br i1 %holds, label %compare, label %ends
compare:
  %more = icmp slt i64 %trip, %limit
  br i1 %more, label %check, label %ends
check:
  %endless = icmp sge i64 %trip, {MOST_TRIPS}
  br i1 %endless, label %refuse, label %goes
refuse:
  store i64 {ENDLESS}, ptr %status
  ret void
goes:
  %ran = {_ran("trip")}
  %whole = icmp eq i64 %ran, %trip.count
  br i1 %whole, label %tripped, label %leave
tripped:
  %following = add i64 %trip, 1
  br label %head
ends:
  %odd.bit = and i64 %trip, 1
  %odd = icmp ne i64 %odd.bit, 0
  br i1 %odd, label %brings, label %leave
brings:
  %ended = {_ran("end")}
  ret void
leave:
  ret void
}}

define internal void @branch({_GIVEN}) nounwind noinline {{
entry:
{_loaded(BRANCH_WORDS)}
  %said = load i8, ptr %flag
  %holds = icmp ne i8 %said, 0
  %count = select i1 %holds, i64 %then.count, i64 %otherwise.count
  %table = select i1 %holds, ptr %then.at, ptr %otherwise.at
  %compiled = icmp sge i64 %count, 0
  br i1 %compiled, label %goes, label %refuse
goes:
  %ran = call i64 @run(ptr %crew, ptr %table, i64 0, i64 %count, {_RUN})
  ret void
refuse:
  store i64 {ASKS_HOST}, ptr %status
  ret void
}}
"""
