"""Results of a row in registers until all of a group of neighbours are known.

A loop over neighbours that stores each of them as it is computed keeps loads of the next ones after that store, and a
later loop over the same row loads from memory what this thread has just stored. Here a group is stored at once, in one
vector, and later loops find it in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    Alloc,
    Done,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Rewriting,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    add,
    mul,
    uses,
    with_bodies,
)

_TURN = "turn"
"""Which of a thread's groups a loop is at."""


def in_registers(body: tuple[Statement, ...], turns: int) -> tuple[Statement, ...]:
    """What a thread does for its share of a row, at most `turns` groups of neighbours, with stores of whole groups."""
    if any([isinstance(s, Loop) and s.kind != "unrolled" for s in everything(body)]):
        return body
    registers = _Registers(turns)
    rewritten = registers.body_of(body)
    return (*registers.allocations.values(), *rewritten) if registers.allocations else body


@dataclass(slots=True)
class _Registers:
    turns: int
    allocations: dict[str, Alloc] = field(default_factory=dict[str, Alloc])
    kept: dict[tuple[Any, ...], Tensor] = field(default_factory=dict[tuple[Any, ...], Tensor])
    """Results by the tensor and the index that they were stored at."""

    def body_of(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        for s in body:
            if isinstance(s, Loop) and (count := _count(s)) is not None:
                statements += self._group(s, count)
            else:
                statements.append(with_bodies(s, self.body_of))
        return tuple(statements)

    def _group(self, loop: Loop, count: int) -> list[Statement]:
        """A loop over neighbours, and then the stores of all of them."""
        own = add(mul(Name(_TURN), Extent(count)), Name(loop.variable))
        inside, stores, sets = list[Statement](), list[tuple[Expr | None, Store]](), list[Statement]()
        for s in _Loaded(self.kept, own).body(loop.body):
            condition, store = (s.condition, s.body[0]) if isinstance(s, When) else (None, s)
            if not isinstance(store, Store) or store.tensor.space != "global":
                inside.append(s)
                sets += [s] if isinstance(s, Set) and not stores else []
                continue
            room = self._room(store.tensor, count)
            self.kept[store.tensor, store.at] = room
            inside.append(Store(room, (own,), store.value))
            stores.append((condition, replace(store, value=Load(room, (own,)))))
        statements: list[Statement] = [replace(loop, body=tuple(inside))]
        for condition, store in stores:
            each = Loop(loop.variable, loop.extent, (*_needed(sets, store.at), store), kind="unrolled")
            statements.append(each if condition is None else When(condition, (each,)))
        return statements

    def _room(self, tensor: Tensor, count: int) -> Tensor:
        name = f"kept_{tensor.pointer}"
        self.allocations[name] = Alloc(name, tensor.dtype, self.turns * count, "private")
        return Tensor(name, tensor.dtype, (tensor.dtype.itemsize,), space="private")


def _count(loop: Loop) -> int | None:
    """Neighbours of a group, where a loop goes over one and does nothing but store and compute."""
    plain = [isinstance(s, (Set, Store)) or (isinstance(s, When) and _is_store(s)) for s in loop.body]
    known = isinstance(loop.extent, Extent) and isinstance(loop.extent.size, int)
    if loop.kind != "unrolled" or loop.variable == _TURN or not known or not all(plain):
        return None
    return cast(int, cast(Extent, loop.extent).size)


def _is_store(s: When) -> bool:
    return len(s.body) == 1 and isinstance(s.body[0], Store)


def _needed(sets: Sequence[Statement], at: tuple[Expr, ...]) -> list[Statement]:
    """The indices that a store needs."""
    names = uses(at)
    return [s for s in sets if isinstance(s, Set) and s.name in names]


@dataclass(frozen=True, slots=True)
class _Loaded(Rewriting):
    """A body that finds results in registers."""

    kept: dict[tuple[Any, ...], Tensor]
    own: Expr
    done: Done = field(default_factory=dict[int, tuple[Any, Any]])

    def changed(self, part: Any) -> Any:
        if isinstance(part, Load) and (part.tensor, part.at) in self.kept:
            return Load(self.kept[part.tensor, part.at], (self.own,))
        return self.inside(part)


__all__ = ["in_registers"]
