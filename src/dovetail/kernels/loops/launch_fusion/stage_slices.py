"""Stages that a block runs for itself compute only what that block reads, such as the rows of its own head.

A kernel reads a tensor at an index that the number of the block decides; stages that write this tensor then only run
where their index along that axis is the same, and so do the stages before them that write what these read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.loops.analysis import results
from dovetail.kernels.loops.ir import (
    Access,
    Expr,
    Extent,
    Name,
    Tensor,
    reads,
)
from dovetail.kernels.loops.launch_fusion.stage_narrowing import Body, Index, narrowed
from dovetail.kernels.loops.uniform import Uniform, at_block
from dovetail.ops.view import quotient


@dataclass(frozen=True, slots=True)
class Slice:
    """One of several equal parts of a tensor: bytes of a part, and which of them a block reads."""

    nbytes: Size
    index: Expr


def indices_of(stages: Sequence[Body], kernel: Body, blocks: int, same: Mapping[str, str]) -> list[Index | None]:
    """The index of each stage of a kernel along what its block reads; None where a block needs all of a stage.

    `same` says which tensors of memory the kernel reads under another name than the stages write them.
    """
    slices: dict[str, Slice | None] = _slices(kernel)
    for name, other in same.items():
        slices[name] = slices.get(other)
    indices: list[Index | None] = []
    for body in reversed(stages):
        guard = _guard(body, slices, blocks)
        indices.append(guard)
        _add_reads(slices, body, guard)
    return [*reversed(indices)]


def sliced(stages: Sequence[Body], indices: Sequence[Index | None]) -> list[Body]:
    """Stages, each only for what its block reads."""
    return [b if index is None else narrowed(b, index) for b, index in zip(stages, indices, strict=True)]


def _slices(body: Body) -> dict[str, Slice | None]:
    """The slice of each tensor that a kernel reads; None where it reads more than one."""
    own = Uniform(body)
    every: dict[str, list[Access]] = {}
    for tensor, at in reads(body):
        every.setdefault(tensor.pointer, []).append((tensor, at))
    return {pointer: _slice(accesses, own) for pointer, accesses in every.items()}


def _slice(accesses: Sequence[Access], own: Uniform) -> Slice | None:
    """The last of the first axes along which all reads of a block are at one index."""
    tensor, at = accesses[0]
    best: Slice | None = None
    if any(not place or other.strides != tensor.strides or other.offset != 0 for other, place in accesses):
        return None
    for axis, stride in enumerate(tensor.strides):
        index = own.of(at[axis])
        if index is None or any(own.of(other[axis]) != index for _, other in accesses):
            break
        if not isinstance(index, Extent):
            best = Slice(stride, index)
    return best


def _guard(body: Body, slices: Mapping[str, Slice | None], blocks: int) -> Index | None:
    """The index along the slices that a stage writes; None where it writes more than one."""
    indices: set[Index] = set()
    for s in results(body):
        slice_ = slices.get(s.tensor.pointer)
        if slice_ is None:
            return None
        axis = _axis(s.tensor, slice_.nbytes)
        if axis is None or not isinstance(s.at[axis[0]], Name):
            return None
        if s.tensor.space == "global" and not _covers(s.tensor, axis[0], slice_.index, blocks):
            return None
        name = s.at[axis[0]]
        assert isinstance(name, Name), "it was checked"
        indices.add(Index(name.name, axis[1], slice_.index))
    return indices.pop() if len(indices) == 1 else None


def _axis(tensor: Tensor, nbytes: Size) -> tuple[int, int] | None:
    """The axis along which a tensor is cut into parts of some bytes, and how many of its indices a part has."""
    for axis, stride in enumerate(tensor.strides):
        if stride == nbytes:
            return axis, 1
        parts = nbytes // stride if isinstance(stride, int) and isinstance(nbytes, int) and stride > 0 else 0
        if parts and isinstance(stride, int) and nbytes == parts * stride:
            return axis, parts
    return None


def _covers(tensor: Tensor, axis: int, index: Expr, blocks: int) -> bool:
    """Whether the blocks of a kernel have all indices along an axis: what stages write must be whole."""
    count = quotient(tensor.strides[axis - 1], tensor.strides[axis]) if axis else None
    values = {at_block(index, block) for block in range(blocks)}
    return isinstance(count, int) and values == {*range(count)}


def _add_reads(slices: dict[str, Slice | None], body: Body, guard: Index | None) -> None:
    """What a stage reads: the same slice where it reads at the index at which it writes, and otherwise all."""
    for tensor, at in reads(body):
        own: Slice | None = None
        if guard is not None:
            axes = [i for i, x in enumerate(at) if isinstance(x, Name) and x.name == guard.name]
            stride = tensor.strides[axes[0]] if len(axes) == 1 else 0
            own = Slice(stride * guard.count, guard.slice) if stride != 0 else None
        known = tensor.pointer in slices
        slices[tensor.pointer] = own if not known or slices[tensor.pointer] == own else None


__all__ = ["Slice", "indices_of", "sliced"]
