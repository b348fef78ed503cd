"""Sums of parts that the kernel after them adds up: it computes each element where it would load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.analysis import everything, pointers_in
from dovetail.kernels.loops.ir import (
    ZERO,
    Expr,
    Extent,
    Kernel,
    Load,
    Name,
    Store,
    Tensor,
    add,
    mul,
    needs,
    reads,
    rewrite,
    sizes_in,
)

_TAKING = frozenset(["threads", "lanes", "barriers"])
"""What is in a kernel whose loads may become sums."""


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

        def placed(part: Any) -> Any:
            if isinstance(part, Name):
                return names.get(part.name, part)
            return replace(part, pointer=pointers[part.pointer]) if isinstance(part, Tensor) else None

        return rewrite(self.value, placed)

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
    read_there = [tensor for tensor, _ in reads(kernel.body) if tensor.pointer == read]
    return needs(kernel.body) <= _TAKING and all([of.covers(tensor) for tensor in read_there])


def with_sum(kernel: Kernel, read: str, of: Sum, pointers: Mapping[str, str]) -> Kernel:
    """A kernel that computes what it would load through the pointer `read`; `pointers` has the names of the sum's own
    in the whole kernel."""

    def computed(part: Any) -> Any:
        return of.at(part, pointers) if isinstance(part, Load) and part.tensor.pointer == read else None

    body = rewrite(kernel.body, computed)
    used = pointers_in(body)
    others = [name for name in (*kernel.pointers, *pointers.values()) if name not in kernel.written]
    every = (*[name for name in dict.fromkeys(others) if name in used], *kernel.written)
    return replace(kernel, pointers=every, body=body, sizes=sizes_in(body))


__all__ = ["Sum", "sum_of", "takes_sum", "with_sum"]
