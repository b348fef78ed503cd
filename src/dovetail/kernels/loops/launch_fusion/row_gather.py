"""Rows of a table as what a kernel of rows reads: it finds them by their indices, and no kernel copies them before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    Done,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Number,
    Rewriting,
    Set,
    Store,
    Tensor,
    When,
    reads,
)
from dovetail.kernels.loops.launch_fusion.composed import Renaming
from dovetail.kernels.loops.launch_fusion.row_prologue import RowKernel


@dataclass(frozen=True, slots=True)
class RowGather:
    """A kernel whose results are rows of a table, each at an index of its own."""

    sets: tuple[Set, ...]
    """What the place in the table and `bad` are computed by, of the row alone."""
    row: str
    column: str
    source: Load
    """An element of the table."""
    bad: str
    told: tuple[Store, ...]
    """What is stored where an index is no row of the table."""
    pointers: tuple[str, ...]
    written: tuple[str, ...]
    result: str

    @staticmethod
    def of(kernel: Kernel, width: int) -> RowGather | None:
        """A scheduled kernel with dense results, `width` elements in a row; None where it does anything else."""
        loops = [s for s in everything(kernel.body) if isinstance(s, Loop) and s.kind == "thread"]
        if len(loops) != 1 or len(loops[0].body) < 3:
            return None
        first, second, *sets, store = loops[0].body
        names = [s.name for s in (first, second) if isinstance(s, Set) and _is_place(s, width)]
        if len(names) != 2 or not isinstance(store, Store) or not isinstance(store.value, Load):
            return None
        row, column = names
        plain = [s for s in sets if isinstance(s, Set)]
        item = store.tensor.dtype.itemsize
        is_dense = store.tensor.strides == (width * item, item) and store.tensor.offset == 0
        told = [s for s in everything(kernel.body) if isinstance(s, Store) and s is not store]
        told = [s for s in told if s.tensor.pointer in kernel.written]
        flags = {s.name for s in plain if isinstance(s.value, Call) and s.value.dtype is bool_}
        if len(plain) < len(sets) or not is_dense or store.at != (Name(row), Name(column)) or len(flags) != 1:
            return None
        if any([not _is_of_row(tensor, at, column) for tensor, at in reads(plain)]):
            return None
        if any([not isinstance(s.value, Number) or s.at for s in told]):
            return None
        (bad,) = flags
        return RowGather(
            tuple(plain),
            row,
            column,
            store.value,
            bad,
            tuple(told),
            kernel.pointers,
            kernel.written,
            store.tensor.pointer,
        )


def _is_place(s: Set, width: int) -> bool:
    """Whether a scalar is the row or the column of an element."""
    match s.value:
        case Call("div" | "rem", (_, Extent(size))):
            return size == width
        case _:
            return False


def _is_of_row(tensor: Tensor, at: Sequence[Any], column: str) -> bool:
    """Whether what is loaded is the same for all columns."""
    return all([x != Name(column) or stride == 0 for x, stride in zip(at, tensor.strides, strict=True)])


def with_gathered_rows(rows: RowKernel, gather: RowGather, read: str, pointers: Mapping[str, str]) -> RowKernel:
    """A kernel of rows that takes from a table what it read through the pointer `read`; `pointers` says what those of
    the gather are called."""
    local = Renaming(lambda n: f"{n}_gathered", pointers)
    bad = f"{gather.bad}_gathered"
    start = (
        Set(f"{gather.row}_gathered", Name(rows.row)),
        Set(f"{gather.column}_gathered", ZERO),
        Set(bad, Number(False, bool_)),
        *local.body(gather.sets),
    )
    source = local.of(gather.source)
    body = _Gathered(read, source, f"{gather.row}_gathered", f"{gather.column}_gathered").body(rows.body)
    end = tuple([When(Name(bad, bool_), (s,)) for s in local.body(gather.told)])
    own = [pointers[n] for n in gather.pointers if n != gather.result]
    written = (*rows.written, *(pointers[n] for n in gather.written if n != gather.result))
    every = (*(n for n in rows.pointers if n != read), *own)
    return replace(rows, body=(*start, *body, *end), pointers=every, written=written)


@dataclass(frozen=True, slots=True)
class _Gathered(Rewriting):
    """A body that loads elements of a table."""

    read: str
    source: Load
    row: str
    column: str
    done: Done = field(default_factory=dict[int, tuple[Any, Any]])

    def changed(self, part: Any) -> Any:
        if isinstance(part, Load) and part.tensor.pointer == self.read:
            _, column = part.at
            at = tuple([column if x == Name(self.column) else x for x in self.source.at])
            return Load(replace(self.source.tensor, dtype=part.tensor.dtype), at)
        return self.inside(part)


__all__ = ["RowGather", "with_gathered_rows"]
