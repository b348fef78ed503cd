"""Sums of parts that the kernel after them adds up: it computes each element where it would load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.analysis import everything, pointers_in
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllReduce,
    Barrier,
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    add,
    mul,
    sizes_in,
)

_TAKING = (Set, Loop, When, Store, Alloc, AllReduce, Barrier)
"""The statements of a kernel whose loads may become sums."""


@dataclass(frozen=True, slots=True)
class Sum:
    """An element of a matrix as a kernel computes it on its own: a value at a row and a column."""

    row: str
    column: str
    value: Expr
    pitch: int
    """Bytes from row to row of the matrix that it would be stored in."""
    item: int

    def at(self, load: Load, pointers: Mapping[str, str]) -> Expr:
        """The element that a load would find, with pointers under other names."""
        row: Expr = ZERO
        for index, stride in zip(load.at[:-1], load.tensor.strides[:-1], strict=True):
            assert isinstance(stride, int), "it was checked"
            row = add(row, mul(index, Extent(stride // self.pitch)))
        names = {self.row: row, self.column: load.at[-1]}
        return _Placed(names, pointers).of(self.value, {})

    def covers(self, tensor: Tensor) -> bool:
        """Whether the index of a tensor says which row and column of the matrix it means."""
        *others, last = tensor.strides
        whole = all([isinstance(s, int) and s % self.pitch == 0 for s in others])
        return whole and last == self.item and tensor.offset == 0


def sum_of(kernel: Kernel) -> Sum | None:
    """The sum that a kernel stores in a dense matrix; None where it stores several, or has more axes."""
    stores = [s for s in everything(kernel.body) if isinstance(s, Store)]
    if len(stores) != 1 or len(stores[0].at) != 2:
        return None
    (store,) = stores
    row, column = store.at
    pitch, item = store.tensor.strides
    if not isinstance(row, Name) or not isinstance(column, Name) or not isinstance(pitch, int) or item == 0:
        return None
    return Sum(row.name, column.name, store.value, pitch, store.tensor.dtype.itemsize) if pitch else None


def takes_sum(kernel: Kernel, read: str, of: Sum) -> bool:
    """Whether a scheduled kernel only loads single elements of the matrix through a pointer."""
    if kernel.maps or kernel.early or read in kernel.written or kernel.launch is None:
        return False
    body = list(everything(kernel.body))
    loads = [load for s in body for load in _loads_of(s) if load.tensor.pointer == read]
    return all([isinstance(s, _TAKING) for s in body]) and all([of.covers(load.tensor) for load in loads])


def with_sum(kernel: Kernel, read: str, of: Sum, pointers: Mapping[str, str]) -> Kernel:
    """A kernel that computes what it would load through the pointer `read`; `pointers` has the names of the sum's own
    in the whole kernel."""
    body = tuple([_Computed(read, of, pointers).statement(s, {}) for s in kernel.body])
    used = pointers_in(body)
    others = [name for name in (*kernel.pointers, *pointers.values()) if name not in kernel.written]
    every = (*[name for name in dict.fromkeys(others) if name in used], *kernel.written)
    return replace(kernel, pointers=every, body=body, sizes=sizes_in(body))


@dataclass(frozen=True, slots=True)
class _Placed:
    """An expression at another index."""

    names: Mapping[str, Expr]
    pointers: Mapping[str, str]

    def of(self, expr: Expr, known: dict[int, Expr]) -> Expr:
        found = known.get(id(expr))
        if found is None:
            found = known[id(expr)] = self._made(expr, known)
        return found

    def _made(self, expr: Expr, known: dict[int, Expr]) -> Expr:
        match expr:
            case Name():
                return self.names.get(expr.name, expr)
            case Call():
                return replace(expr, operands=tuple([self.of(x, known) for x in expr.operands]))
            case Load():
                tensor = replace(expr.tensor, pointer=self.pointers[expr.tensor.pointer])
                return Load(tensor, tuple([self.of(x, known) for x in expr.at]))
            case _:
                return expr


@dataclass(frozen=True, slots=True)
class _Computed:
    """Statements whose loads through a pointer are sums. What an expression uses twice stays one object."""

    read: str
    sum: Sum
    pointers: Mapping[str, str]

    def statement(self, s: Statement, known: dict[int, Expr]) -> Statement:
        match s:
            case Loop() | When():
                return replace(s, body=tuple([self.statement(x, known) for x in s.body]))
            case Set() | Store():
                return replace(s, value=self.expr(s.value, known))
            case _:
                return s

    def expr(self, expr: Expr, known: dict[int, Expr]) -> Expr:
        found = known.get(id(expr))
        if found is None:
            found = expr
            if isinstance(expr, Load) and expr.tensor.pointer == self.read:
                found = self.sum.at(expr, self.pointers)
            elif isinstance(expr, Call):
                found = replace(expr, operands=tuple([self.expr(x, known) for x in expr.operands]))
            known[id(expr)] = found
        return found


def _loads_of(s: Statement) -> list[Load]:
    """The loads in the value of a statement."""
    found: dict[int, Load] = {}
    todo: list[Expr] = [s.value] if isinstance(s, (Set, Store)) else []
    seen: set[int] = set()
    while todo:
        expr = todo.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        if isinstance(expr, Load):
            found[id(expr)] = expr
        if isinstance(expr, Call):
            todo += expr.operands
    return list(found.values())


__all__ = ["Sum", "sum_of", "takes_sum", "with_sum"]
