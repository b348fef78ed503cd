"""Groups of rows that have matrices of their own: which rows a block has, and how their matrices are packed.

Blocks are counted over the groups that have rows, so that no cell is empty in a token: the groups of its rows are few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dovetail.codegen.llvm.arguments import NamedArguments
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I1, I64, Ptr
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, i64
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.targets.runtime.arrays.huge_pages import HUGE_PAGES


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows that are sorted by group."""

    count: int
    ends: DType
    """Of the numbers that say where groups end."""
    rows: int
    """Of a block, at most: it has rows of one group."""


@dataclass(frozen=True, slots=True)
class GroupBlock:
    """The rows of a block."""

    group: I64
    first: I64
    count: I64
    """0 for a number after that of the last block."""
    has_matrix: I1
    """Whether the rows are of a group, not after the last one."""


def find_block(t: Builder, arguments: NamedArguments, of: Groups, number: I64, at: Ptr) -> GroupBlock:
    """The block of a number; four words remember the last one, of which the first is -1 where there is none."""
    words = [t.ptr_add(at, 8 * i) for i in range(4)]
    with t.when(t.icmp("ne", number, t.load_i64(words[0]))):
        t.store_i64(number, words[0])
        _search(t, arguments, of, number, words[1:])
    group, first, count = map(t.load_i64, words[1:])
    return GroupBlock(group, first, count, t.icmp("slt", group, of.count))


def _search(t: Builder, words: NamedArguments, of: Groups, number: I64, block: Sequence[Ptr]) -> None:
    """Write group, first row and rows of a block. Rows after the last group are those of one more."""
    rows, ends = words.sizes["rows"], words.pointers["ends"]
    passed, start = t.alloca("i64"), t.alloca("i64")
    for word, slot in ((of.count, block[0]), (0, block[1]), (0, block[2]), (0, passed), (0, start)):
        t.store_i64(word, slot)
    with t.loop(0, of.count + 1) as group:
        is_group = t.icmp("slt", group, of.count)
        there = t.ptr_add(ends, t.mul(t.select_int(is_group, group, 0), words.sizes["ends_step"]))
        first = t.load_i64(start)
        # Ends that fall, or pass the last row, name no rows that there are not.
        end = t.smax(first, t.smin(t.select_int(is_group, _loaded(t, of.ends, there), rows), rows))
        before = t.load_i64(passed)
        blocks = t.udiv(t.add(t.sub(end, first), of.rows - 1), of.rows)
        own = t.sub(number, before)
        with t.when(t.icmp("ult", own, blocks)):
            row = t.add(first, t.mul(own, of.rows))
            for word, slot in zip((group, row, t.smin(of.rows, t.sub(end, row))), block, strict=True):
                t.store_i64(word, slot)
        t.store_i64(t.add(before, blocks), passed)
        t.store_i64(end, start)


def _loaded(t: Builder, dtype: DType, there: Ptr) -> I64:
    if dtype is i64:
        return t.load_i64(there)
    return I64(t.let(f"sext i32 {t.let(f'load i32, ptr {there}, align 4')} to i64"))


class Pack(Protocol):
    """Packs matrices [columns, …] as panels."""

    @property
    def layout(self) -> str: ...
    @property
    def dtype(self) -> type[Any]: ...
    def __call__(self, *weights: Array) -> Array: ...
    def room(self, deep: int) -> tuple[int, ...]: ...
    def write(self, packed: Array, *weights: Array) -> None: ...


@runtime_checkable
class _Reversible(Protocol):
    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool: ...
    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]: ...


@dataclass(frozen=True, slots=True)
class Stacked:
    """Matrices of groups [group, columns, k], each packed by itself, one after the other."""

    pack: Pack
    count: int

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"stacked {self.count} {self.pack.layout}"

    def __call__(self, *weights: Array) -> Array:
        """The packed matrices [group, …]."""
        (stack,) = weights
        whole = HUGE_PAGES.array((len(stack), *self.pack.room(stack.shape[2])), self.pack.dtype)
        for packed, matrix in zip(whole, stack, strict=True):
            self.pack.write(packed, matrix)
        return whole

    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether the panels hold all of stacks of these shapes, in a form that can be undone."""
        return isinstance(self.pack, _Reversible) and self.pack.holds([shape[1:] for shape in shapes])

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """The stack that was packed."""
        (shape,) = shapes
        assert isinstance(self.pack, _Reversible), "it was asked before"
        return (np.stack([matrix for one in packed for matrix in self.pack.unpack(one, [shape[1:]])]),)


def stacked(
    pack: Callable[[tuple[tuple[int, int], ...], int, tuple[int, ...]], Pack], ends: Value | None
) -> Callable[[tuple[tuple[int, int], ...], int, tuple[int, ...]], Pack | Stacked]:
    """Return a pack of the matrices of groups by the pack of one matrix, which it is without groups."""
    if ends is None:
        return pack
    count = group_count(ends)
    return lambda streams, size, counts: Stacked(pack(streams, size, counts), count)


def group_count(ends: Value) -> int:
    """How many groups there are."""
    (count,) = ends.shape
    assert isinstance(count, int), "the number of groups is known"
    return count


__all__ = ["Groups", "Stacked", "find_block", "group_count", "stacked"]
