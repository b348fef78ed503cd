"""Exchanges between threads of a GPU as LLVM's text: shuffles of the lanes of a warp, and atomic updates."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.gpu.machine import Machine
from dovetail.errors import GraphError
from dovetail.ir.dtype import DType, bool_
from dovetail.kernels.loops.ir import AllReduce


def from_partner(machine: Machine, text: Builder, x: str, dtype: DType, distance: int) -> str:
    """The scalar of the lane whose number differs in one bit."""
    return _moved(text, x, dtype, lambda word: machine.from_partner(text, word, distance))


def from_lane(machine: Machine, text: Builder, x: str, dtype: DType, lane: str) -> str:
    """The scalar of a lane, whose number is an i64."""
    number = text.let(f"trunc i64 {lane} to i32")
    return _moved(text, x, dtype, lambda word: machine.from_lane(text, word, number))


def all_reduce(machine: Machine, text: Builder, slot: str, statement: AllReduce, flags: str) -> None:
    """A butterfly: after a few exchanges every lane has combined all of its group, in the same order."""
    dtype, kind = statement.dtype, scalar.spelled(statement.dtype)
    held = text.let(f"load {kind}, ptr {slot}")
    distance = (statement.group or machine.lanes) // 2
    while distance:
        other = from_partner(machine, text, held, dtype, distance)
        held = scalar.apply(text, statement.op, [held, other], [dtype, dtype], dtype, flags)
        distance //= 2
    text.emit(f"store {kind} {held}, ptr {slot}")


def _moved(text: Builder, x: str, dtype: DType, shuffle: Callable[[str], str]) -> str:
    """A scalar of any width, moved as words of 32 bits."""
    if dtype is bool_:
        moved = shuffle(text.let(f"zext i1 {x} to i32"))
        return text.let(f"trunc i32 {moved} to i1")
    bits, kind = dtype.bits, scalar.spelled(dtype)
    raw = x if kind == f"i{bits}" else text.let(f"bitcast {kind} {x} to i{bits}")
    if bits == 64:
        low = shuffle(text.let(f"trunc i64 {raw} to i32"))
        shifted = text.let(f"lshr i64 {raw}, 32")
        high = shuffle(text.let(f"trunc i64 {shifted} to i32"))
        upper = text.let(f"shl i64 {text.let(f'zext i32 {high} to i64')}, 32")
        value = text.let(f"or i64 {upper}, {text.let(f'zext i32 {low} to i64')}")
    elif bits == 32:
        value = shuffle(raw)
    else:
        moved = shuffle(text.let(f"zext i{bits} {raw} to i32"))
        value = text.let(f"trunc i32 {moved} to i{bits}")
    return value if kind == f"i{bits}" else text.let(f"bitcast i{bits} {value} to {kind}")


def atomic_update(
    machine: Machine, text: Builder, op: str, pointer: str, address: str, value: str, dtype: DType
) -> None:
    """Combine an integer in memory with a value; nothing is ordered by it."""
    if not dtype.is_integer or dtype.bits not in (32, 64):
        raise GraphError(f"an atomic update of {dtype.name}", hint="update integers of 32 or 64 bits")
    name = {"add": "add", "maximum": "max", "minimum": "min"}[op]
    name = f"u{name}" if dtype.kind == "uint" and op != "add" else name
    text.let(f"atomicrmw {name} {pointer} {address}, i{dtype.bits} {value} {machine.scope}monotonic")


__all__ = ["all_reduce", "atomic_update", "from_lane", "from_partner"]
