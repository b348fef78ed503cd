"""Statements of the loop language for tensor cores: copies to shared memory in flight, and products of matrices."""

from __future__ import annotations

from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.expr import Expr, Tensor
from dovetail.kernels.matrix_instruction import MatrixInstruction


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """Start a copy of 16 bytes or fewer from memory of the device to shared memory; zeros where a condition does not
    hold."""

    target: Tensor
    target_at: tuple[Expr, ...]
    source: Tensor
    source_at: tuple[Expr, ...]
    inside: Expr
    nbytes: int = 16
    """16, or fewer: 4 or 8."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Bring bytes of memory to the cache of the device. Others may still write them: that is where they write to."""

    source: Tensor
    source_at: tuple[Expr, ...]
    nbytes: Expr
    """A multiple of 16."""


@dataclass(frozen=True, slots=True)
class CommitCopies:
    """The copies that this thread has started since the last group are a group."""


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """Wait until at most `pending` groups of this thread's copies are left."""

    pending: int


@dataclass(frozen=True, slots=True)
class LoadMatrices:
    """Load four matrices of 8 lines of 16 bytes from shared memory into the registers of a warp.

    Lane 8·m + r gives the address of line r of matrix m. Lane 4·r + c receives word c, of four bytes, of line r of each
    matrix: as many elements of a private tensor. Where they are transposed they are matrices of 8×8 elements of 16
    bits, and the lane receives elements 2·c and 2·c + 1 of column r.
    """

    target: Tensor
    target_at: tuple[Expr, ...]
    source: Tensor
    source_at: tuple[Expr, ...]
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class MultiplyMatrices:
    """Add the product of two matrices to sums by the lanes of a warp.

    Each lane has some elements of both matrices and some sums in private tensors: those that the layouts of the
    instruction say.
    """

    sums: Tensor
    sums_at: tuple[Expr, ...]
    left: Tensor
    left_at: tuple[Expr, ...]
    right: Tensor
    right_at: tuple[Expr, ...]
    by: MatrixInstruction


@dataclass(frozen=True, slots=True)
class ScaleMatrices:
    """Multiply eight 16-bit floats of a private tensor, such as a loaded matrix has, by eight others; each product is
    rounded once."""

    target: Tensor
    target_at: tuple[Expr, ...]
    source: Tensor
    source_at: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class NarrowMatrices:
    """Round eight f32 of a private tensor to eight 16-bit floats of another, two in one instruction."""

    target: Tensor
    target_at: tuple[Expr, ...]
    source: Tensor
    source_at: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class FenceShared:
    """What this thread has stored in shared memory, or copied there, is seen by `MultiplyShared` after a barrier."""


@dataclass(frozen=True, slots=True)
class MultiplyShared:
    """Start to add the product of 64 rows and some columns of 16-bit floats in shared memory, over 64 of k, to sums.

    All such products before it are then done. The four warps of a warpgroup do it together. The factors are swizzled
    tiles with lines of 128 bytes: along k, or along rows (columns of the right factor) in panels of 64. Warp w of the
    group has rows 16·w to 16·w + 15. With r = lane / 4 and c = 2 · (lane mod 4), sum 4·j + e of a lane, in f32, is at
    row r + 8 · (e / 2) of them and at column 8·j + c + e mod 2.

    A left factor in a private tensor is in the registers of the warps instead: 32 elements of a lane, 8 for each 16 of
    k, as `mma.m16n8k16` has them. They keep their values until the product is done.
    """

    sums: Tensor
    """Private, 4 sums for every 8 columns."""
    left: Tensor
    left_at: tuple[Expr, ...]
    right: Tensor
    right_at: tuple[Expr, ...]
    columns: int
    left_along_k: bool
    right_along_k: bool
    panel_bytes: int
    """From one panel of 64 to the next: of a factor with lines along rows, or of a deep one along k."""
    depth: int = 64
    """Elements of k, a multiple of 64; more than 64 where the left factor is private. A right factor along k has each
    64 of them in a panel."""


@dataclass(frozen=True, slots=True)
class AwaitProducts:
    """Wait for all products out of shared memory; no one reads their sums before."""

    sums: Tensor
    columns: int


Matrix: TypeAlias = (
    CopyAsync
    | CommitCopies
    | AwaitCopies
    | LoadMatrices
    | MultiplyMatrices
    | ScaleMatrices
    | NarrowMatrices
    | FenceShared
    | MultiplyShared
    | AwaitProducts
    | Prefetch
)
"""What tensor cores need: copies that overlap with products, and matrices that the lanes of a warp hold together."""

__all__ = [
    "AwaitCopies", "AwaitProducts", "CommitCopies", "CopyAsync", "FenceShared", "LoadMatrices", "Matrix",
    "MultiplyMatrices", "MultiplyShared", "NarrowMatrices", "Prefetch", "ScaleMatrices",
]  # fmt: skip
