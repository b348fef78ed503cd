"""Steps that several kernels compute one after the other, and what their kernels are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bool_, i64
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
    ThreadIndex,
    When,
    add,
    mul,
    sizes_in,
)
from dovetail.kernels.loops.tiling import Flat
from dovetail.kernels.spec import Binding, Job, Tiles


@dataclass(frozen=True, slots=True)
class Passes(Job):
    """A step as several kernels on one workspace. `kernel` is the first of them."""

    passes: tuple[tuple[Kernel, Size], ...] = ()
    """In the order in which they run. One without a launch shape is scheduled by its tiles."""
    workspace: Mapping[str, Size] = field(default_factory=dict[str, Size])
    """Bytes of each array that a kernel leaves to another."""


def in_passes(
    kernels: Sequence[tuple[Kernel, Size]], bindings: Mapping[str, Binding], workspace: Mapping[str, Size]
) -> Passes:
    """The job of kernels that run one after the other."""
    first, tiles = kernels[0]
    return Passes(first, bindings, Tiles(tiles, 1), passes=tuple(kernels), workspace=workspace)


def for_each(
    name: str,
    shape: tuple[Size, ...],
    pointers: Sequence[str],
    written: Sequence[str],
    body: Sequence[Statement],
    width: int = 1,
) -> tuple[Kernel, Size]:
    """A kernel that runs a body at every index of a shape, under `j0`, `j1` and so on, in any order.

    A thread takes `width` neighbours along the last axis.
    """
    boxes = Flat(shape, width, THREADS)
    statements = (*boxes.head(Name("tile")), *boxes.nest(body))
    kernel = Kernel(name, tuple(pointers), tuple(written), "tile", statements, sizes=sizes_in(statements))
    return kernel, boxes.tiles


def flat_index(shape: tuple[Size, ...], at: Sequence[Expr]) -> Expr:
    """The number of the element at an index, the last axis fastest."""
    number: Expr = ZERO
    for a, index in enumerate(at):
        number = add(number, mul(index, Extent(product(shape[a + 1 :]))))
    return number


THREADS = 256
"""Threads of a block that share the indices of a shape."""


def whole(op: str, *operands: Expr) -> Expr:
    """A primitive of i64."""
    return Call(op, operands, i64)


def holds(op: str, *operands: Expr) -> Expr:
    """A primitive that gives bool."""
    return Call(op, operands, bool_)


def choose(condition: Expr, x: Expr, y: Expr) -> Expr:
    """x where a condition holds, else y."""
    return Call("where", (condition, x, y), x.dtype)


def any_of_block(name: str, threads: int, lanes: int) -> tuple[Statement, ...]:
    """Whether a bool holds in any thread of a block, under its name in all of them."""
    flags = Tensor("flags", bool_, (1,), space="shared")
    kept = Name(name, bool_)
    more = Set(name, Call("bit_or", (kept, Load(flags, (Name("w"),))), bool_))
    return (
        AllReduce(name, "bit_or", bool_),
        Alloc("flags", bool_, lanes, "shared"),
        When(holds("equal", ThreadIndex("lane"), ZERO), (Store(flags, (ThreadIndex("warp"),), kept),)),
        Barrier(),
        Loop("w", Extent(threads // lanes), (more,)),
        Barrier(),
    )


__all__ = ["THREADS", "Passes", "any_of_block", "choose", "flat_index", "for_each", "holds", "in_passes", "whole"]
