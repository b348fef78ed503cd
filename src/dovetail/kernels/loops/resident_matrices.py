"""Factors of tensor cores that a part of a resident kernel loads to registers before it receives anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import (
    Alloc,
    Expr,
    Extent,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    Name,
    ScaleMatrices,
    Statement,
    Tensor,
)

ELEMENTS = 8
"""Elements of a lane of four matrices."""
MOST_WORDS = 112
"""Words of factors in the registers of a thread."""


@dataclass(frozen=True, slots=True)
class Held:
    """The products of a tile without their loads of factors that are there before the row."""

    allocations: tuple[Alloc, ...]
    loads: Loop
    rest: Loop


def held(loop: Statement, is_known: Callable[[Expr, str], bool], is_there: Callable[[Tensor], bool]) -> Held | None:
    """An unrolled loop of products in two: loads of factors to registers of their own, and the rest. None where there
    are no such loads, or registers do not hold them. `is_known` tells whether an index is known before the row, given
    the variable of the loop, and `is_there` whether shared memory is filled by then."""
    if not isinstance(loop, Loop) or loop.kind != "unrolled" or not isinstance(loop.extent, Extent):
        return None
    turns = loop.extent.size
    found: dict[str, int] = {}
    for s in loop.body:
        if isinstance(s, LoadMatrices) and is_there(s.source):
            if not all([is_known(x, loop.variable) for x in s.source_at]):
                return None
            found[s.target.pointer] = found.get(s.target.pointer, 0) + 1
    if not found or not isinstance(turns, int) or turns * sum(found.values()) * ELEMENTS // 2 > MOST_WORDS:
        return None
    step, number = Name(loop.variable), dict.fromkeys(found, -1)

    def place(tensor: Tensor, at: tuple[Expr, ...]) -> tuple[Tensor, tuple[Expr, ...]]:
        if tensor.pointer not in found:
            return tensor, at
        item = tensor.dtype.itemsize
        strides = (found[tensor.pointer] * ELEMENTS * item, ELEMENTS * item, *tensor.strides)
        own = replace(tensor, pointer=f"held_{tensor.pointer}", strides=strides)
        return own, (step, Extent(number[tensor.pointer]), *at)

    loads: list[Statement] = []
    rest: list[Statement] = []
    for s in loop.body:
        match s:
            case LoadMatrices() if s.target.pointer in found:
                number[s.target.pointer] += 1
                target, at = place(s.target, s.target_at)
                loads.append(replace(s, target=target, target_at=at))
            case MultiplyMatrices():
                left, at = place(s.left, s.left_at)
                right, right_at = place(s.right, s.right_at)
                rest.append(replace(s, left=left, left_at=at, right=right, right_at=right_at))
            case ScaleMatrices():
                source, at = place(s.source, s.source_at)
                rest.append(replace(s, source=source, source_at=at))
            case _:
                if any([pointer in str(s) for pointer in found]):
                    return None  # it reads a factor where the tile had it
                rest.append(s)
    dtypes = {s.target.pointer: s.target.dtype for s in loop.body if isinstance(s, LoadMatrices)}
    allocations = [Alloc(f"held_{p}", dtypes[p], turns * n * ELEMENTS, "private") for p, n in found.items()]
    return Held(tuple(allocations), replace(loop, body=tuple(loads)), replace(loop, body=tuple(rest)))


__all__ = ["Held", "held"]
