"""What threads of a persistent kernel sent themselves: they find it in shared memory, and do not receive it.

A residual is such a tensor: the block that adds to some of its columns in one part adds to the same ones in a later
part. Each thread has a place of its own there, so that no other one need be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType
from dovetail.kernels.loops.ir import (
    Alloc,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    When,
    expand,
    pointers_in,
    rewrite,
)
from dovetail.kernels.loops.persistent.part import Part
from dovetail.kernels.loops.persistent.passes import IN_FIRST
from dovetail.kernels.loops.persistent.words import Received, Words

_THREAD = ThreadIndex("thread")


@dataclass(frozen=True, slots=True)
class Own:
    """A tensor of which each thread reads what it sent itself."""

    first: int
    """Its words."""
    dtype: DType
    strides: tuple[Any, ...]
    place: tuple[Expr, ...]
    """The element of a thread, by the numbers of the thread and its block."""
    guards: tuple[Expr, ...]
    """The threads that have one."""
    count: int
    """Threads of a block that may have one: the first ones."""
    part: tuple[int, int, int]
    """Blocks, threads and first block of the parts."""
    is_before: bool
    """Whether the pass before has sent it."""

    @property
    def name(self) -> str:
        return f"itself_{self.first}"

    @property
    def nbytes(self) -> int:
        return -(-self.dtype.itemsize * self.count // 16) * 16

    @property
    def tensor(self) -> Tensor:
        return Tensor(self.name, self.dtype, (self.dtype.itemsize,), space="shared")

    def alloc(self, offset: int) -> Alloc:
        return Alloc(self.name, self.dtype, self.count, "shared", offset)

    def started(self, words: Words) -> list[Statement]:
        """What the first pass finds, from where it is in memory."""
        published = [one.pointer for one in words.published if one.received.first == self.first]
        if not self.is_before or not published:
            return []
        store: Statement = Store(
            self.tensor, (_THREAD,), Load(Tensor(published[0], self.dtype, self.strides), self.place)
        )
        for guard in reversed(self.guards):
            store = When(guard, (store,))
        blocks, threads, first = self.part
        return [When(IN_FIRST, (SubGrid(blocks, threads, first, (store,)),))]


def owned(parts: Sequence[Part], runs: Sequence[range], firsts: Sequence[int], room: int) -> dict[tuple[int, str], Own]:
    """The tensors that threads sent themselves, by the parts and pointers that read them, as long as there is room, in
    bytes. `runs` has the passes of each part, and `firsts` its first block."""
    owns: dict[tuple[int, str], Own] = {}
    sent = [(i, n, s.first) for i, part in enumerate(parts) for n, s in part.sent.items()]
    for number, part in enumerate(parts):
        for name, got in part.received.items():
            writers = [(i, n) for i, n, first in sent if first == got.first]
            # A thread reads what it sent before it sends again.
            if len(writers) != 1 or not is_sent(runs[writers[0][0]], runs[number], is_before=got.is_before):
                continue
            if writers[0][0] > number if got.is_before else writers[0][0] < number:
                own = _owned(parts, firsts, writers[0], (number, name), got)
                if own is not None and sum([one.nbytes for one in (*owns.values(), own)]) <= room:
                    owns[number, name] = own
    return owns


def is_sent(sent: range, read: range, *, is_before: bool) -> bool:
    """Whether every pass that reads a tensor finds what was sent: in it, or in the pass before, if there is one."""
    return all([at in sent for at in ([n - 1 for n in read if n] if is_before else read)])


def _owned(
    parts: Sequence[Part], firsts: Sequence[int], writer: tuple[int, str], reader: tuple[int, str], got: Received
) -> Own | None:
    every = [(parts[i].blocks, parts[i].launch.block, firsts[i]) for i, _ in (writer, reader)]
    stores = _accesses(parts[writer[0]].kernel.body, writer[1], Store)
    loads = _accesses(parts[reader[0]].kernel.body, reader[1], Load)
    if every[0] != every[1] or stores is None or loads is None or len({*stores, *loads}) != 1:
        return None
    strides, place, guards = stores[0]
    bounds = [_bound(guard) for guard in guards]
    counts = [bound for bound in bounds if bound is not None]
    if not counts or min(counts) > every[0][1]:
        return None
    return Own(got.first, got.dtype, strides, place, guards, min(counts), every[0], got.is_before)


def _bound(guard: Expr) -> int | None:
    """The number that a guard bounds threads by."""
    match guard:
        case Call("less", (ThreadIndex(kind="thread"), Extent(int(size)))):
            return size
        case Call("bit_and", operands):
            return next((bound for bound in map(_bound, operands) if bound is not None), None)
        case _:
            return None


_Access = tuple[tuple[Any, ...], tuple[Expr, ...], tuple[Expr, ...]]
"""Strides, place and guards."""


def _accesses(body: Sequence[Statement], pointer: str, kind: type[Store] | type[Load]) -> list[_Access] | None:
    """Every access through a pointer by the number of a thread and its block; None where it is not known."""
    seen = _Seen(pointer, kind, [], {})
    seen.statements(body, ())
    return seen.accesses if seen.is_known and seen.accesses else None


@dataclass(slots=True)
class _Seen:
    pointer: str
    kind: type[Store] | type[Load]
    accesses: list[_Access]
    names: dict[str, Expr]
    is_known: bool = True

    def statements(self, body: Sequence[Statement], guards: tuple[Expr, ...]) -> None:
        for s in body:
            match s:
                case Set(name, value):
                    if isinstance(value, Load) and value.tensor.pointer == self.pointer and self.kind is Load:
                        self.access(value.tensor, value.at, guards)
                    elif self.kind is Load and self.pointer in pointers_in((value,)):
                        self.is_known = False
                    self.names[name] = self.resolved(value)
                case When(condition, inner):
                    self.statements(inner, (*guards, self.resolved(condition)))
                case Loop(variable=variable, body=inner, kind=kind):
                    self.names[variable] = ThreadIndex("block") if kind == "block" else Name(f"{variable} of a loop")
                    self.statements(inner, guards)
                case Store(tensor, at, value):
                    if self.kind is Load and self.pointer in pointers_in((value,)):
                        self.is_known = False
                    if self.kind is Store and tensor.pointer == self.pointer:
                        self.access(tensor, at, guards)
                case _:
                    self.is_known = self.is_known and self.pointer not in pointers_in((s,))

    def access(self, tensor: Tensor, at: Sequence[Expr], guards: tuple[Expr, ...]) -> None:
        pairs = [(stride, self.resolved(x)) for stride, x in zip(tensor.strides, at, strict=True) if stride != 0]
        self.is_known = self.is_known and tensor.offset == 0
        self.accesses.append((tuple([s for s, _ in pairs]), tuple([x for _, x in pairs]), guards))

    def resolved(self, expr: Expr) -> Expr:
        """An index by the numbers of the thread and its block; what is loaded stays."""

        def resolved(part: Any) -> Any:
            if isinstance(part, Name):
                return self.names.get(part.name, part)
            return part if isinstance(part, Load) else None

        return rewrite(expr, resolved)


def read(body: tuple[Statement, ...], owns: Mapping[str, Own]) -> tuple[Statement, ...]:
    """A body that finds what its threads sent themselves, by the pointers that read it."""

    def loaded(s: Statement) -> list[Statement] | None:
        if isinstance(s, Set) and isinstance(s.value, Load) and s.value.tensor.pointer in owns:
            return [Set(s.name, Load(owns[s.value.tensor.pointer].tensor, (_THREAD,)))]
        return None

    return expand(body, loaded)


__all__ = ["Own", "is_sent", "owned", "read"]
