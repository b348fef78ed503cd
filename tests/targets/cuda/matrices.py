"""Tensor cores in NumPy: matrices in the registers of warps, and in shared memory as descriptors find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.ir import (
    Expr,
    Kernel,
    LoadMatrices,
    MultiplyMatrices,
    MultiplyShared,
    NarrowMatrices,
    ScaleMatrices,
    Tensor,
)
from dovetail.kernels.matrix_instruction import LinearLayout
from tests.targets.cuda.places import gathered
from tests.targets.cuda.threads import Threads, assert_whole_warps

CHUNK = 8
"""Bytes of half of an asynchronous copy, for bounds."""


class Matrices(Threads):
    """Threads that load and multiply matrices together."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, tuple[Array, int]], sizes: Mapping[str, int]) -> None:
        super().__init__(kernel, buffers, sizes)
        self.products: list[Callable[[], None]] = []
        """Products by warpgroups that have started: they read shared memory as late as they may."""

    def multiplied(self) -> None:
        """The products that have started are done."""
        while self.products:
            self.products.pop(0)()

    def groups_of(self, mask: Array) -> list[int]:
        """The first thread of each warpgroup that takes part."""
        groups = mask.reshape(-1, 4 * LANES)
        assert (groups.all(1) | ~groups.any(1)).all(), "whole warpgroups multiply"
        return [int(g) * 4 * LANES for g in np.nonzero(groups.all(1))[0]]

    def load_matrices(self, statement: LoadMatrices, mask: Array) -> None:
        assert_whole_warps(mask, self.lanes)
        at = self.address(statement.source, statement.source_at, mask, CHUNK)
        assert not (at % 16).any(), "rows of matrices are aligned"
        rows = gathered(self.buffers[statement.source.pointer][0], at, 16).view(np.uint16)
        order = _TRANSPOSED if statement.transposed else _LOADED
        found = rows.reshape(-1, LANES * 8).take(order, 1).reshape(self.block, 8)
        self.keep(statement.target, statement.target_at, found, mask)

    def multiply(self, statement: MultiplyMatrices, mask: Array) -> None:
        assert_whole_warps(mask, self.lanes)
        by, start = statement.by, statement
        assert by.left is not None and by.right is not None and by.lanes == self.lanes, "a warp multiplies"
        left = self.factor(start.left, start.left_at, by.left, (by.m, by.k), mask)
        right = self.factor(start.right, start.right_at, by.right, (by.k, by.n), mask)
        kind = by.totals.numpy
        sums = self.kept(start.sums, start.sums_at, by.sums.count * kind.itemsize, mask).view(kind)
        total = (left @ right).astype(kind).reshape(-1, by.m * by.n)
        added = total.take(places_of(by.sums, by.n), 1).reshape(self.block, -1)
        self.scatter(start.sums, start.sums_at, (sums + added).view(np.uint8), mask)

    def factor(
        self, tensor: Tensor, at: Sequence[Expr], layout: LinearLayout, shape: tuple[int, int], mask: Array
    ) -> Array:
        """The matrices whose elements lanes have, one of each warp."""
        kind = tensor.dtype.numpy
        held = self.kept(tensor, at, layout.count * kind.itemsize, mask).view(kind).astype(np.float32)
        held = held.reshape(-1, self.lanes * layout.count)
        found, places = np.full((len(held), shape[0] * shape[1]), np.nan, np.float32), places_of(layout, shape[1])
        found[:, places] = held
        assert np.array_equal(found[:, places], held, equal_nan=True), "copies of an element are equal"
        return found.reshape(-1, *shape)

    def scale(self, statement: ScaleMatrices, mask: Array) -> None:
        kind = statement.target.dtype.numpy
        each = (statement.target, statement.target_at), (statement.source, statement.source_at)
        x, y = (self.kept(tensor, at, 16, mask).view(kind).astype(np.float32) for tensor, at in each)
        self.keep(statement.target, statement.target_at, (x * y).astype(kind).view(np.uint16), mask)

    def narrow(self, statement: NarrowMatrices, mask: Array) -> None:
        wide = self.kept(statement.source, statement.source_at, 32, mask).view(np.float32)
        narrow = wide.astype(statement.target.dtype.numpy)
        self.keep(statement.target, statement.target_at, narrow.view(np.uint16), mask)

    def matrices(self, statement: MultiplyShared, mask: Array) -> list[tuple[int, int, int]]:
        """The first thread of each warpgroup, and where its factors start."""
        left = self.address(statement.left, statement.left_at, mask)
        right = self.address(statement.right, statement.right_at, mask)
        return [(first, int(left[first]), int(right[first])) for first in self.groups_of(mask)]

    def multiply_shared(self, statement: MultiplyShared, starts: list[tuple[int, int, int]]) -> None:
        buffer, each = self.buffers[statement.sums.pointer]
        sums = buffer.view(np.float32).reshape(self.block, each // 4)
        parts = range(statement.depth // 64)
        apart = statement.panel_bytes if statement.right_along_k else 64 * 128
        assert statement.left.space == "private" or len(parts) == 1, "the left factor of a deep product is in registers"
        for first, left_start, right_start, part in [(*start, part) for start in starts for part in parts]:
            left_at, right_at = left_start + 64 * part, right_start + apart * part
            if statement.left.space == "private":
                left = self.registers(statement.left, left_at)
            else:
                left = self.matrix(statement, statement.left, left_at, 64, statement.left_along_k)
            right = self.matrix(statement, statement.right, right_at, statement.columns, statement.right_along_k)
            made = (left @ right.T).reshape(4, 16, -1, 8).swapaxes(1, 2).reshape(4, -1, 16 * 8)
            each_lane = made.take(_SUMS, -1).reshape(4, -1, LANES, 4).swapaxes(1, 2)
            sums[first : first + 4 * LANES, : statement.columns // 2] += each_lane.reshape(4 * LANES, -1)

    def registers(self, tensor: Tensor, start: int) -> Array:
        """64 rows along 64 of k, as the threads of a warpgroup have them; `start` is where those of the first are."""
        raw, each = self.buffers[tensor.pointer]
        at = start + each * np.arange(4 * LANES)
        lanes = gathered(raw, at, 64).view(tensor.dtype.numpy).astype(np.float32)
        steps = lanes.reshape(4, LANES, 4, 8).swapaxes(1, 2).reshape(4, 4, LANES * 8).take(_LEFT, -1)
        return steps.reshape(4, 4, 16, 16).swapaxes(1, 2).reshape(64, 64)

    def matrix(self, statement: MultiplyShared, tensor: Tensor, start: int, rows: int, along_k: bool) -> Array:
        """Rows along 64 of k, as tensor cores find them in shared memory by a descriptor."""
        assert start % 1024 == 0, "tiles start where the swizzle begins"
        raw = self.buffers[tensor.pointer][0]
        words = raw.view(np.uint16)[start // 2 + _swizzled(rows, along_k, statement.panel_bytes)]
        return words.view(tensor.dtype.numpy).astype(np.float32)

    def keep(self, tensor: Tensor, at: Sequence[Expr], words: Array, mask: Array) -> None:
        self.scatter(tensor, at, words.view(np.uint8), mask)


@cache
def places_of(layout: LinearLayout, columns: int) -> Array:
    """Where the registers of all lanes are in a matrix, row by row."""
    found = [layout.place(lane, e) for lane in range(1 << len(layout.lanes)) for e in range(layout.count)]
    return np.array([row * columns + column for row, column in found])


@cache
def _swizzled(rows: int, along_k: bool, panel_bytes: int) -> Array:
    """Where elements are after the first one, in words of two bytes."""
    row, k = np.meshgrid(np.arange(rows), np.arange(64), indexing="ij")
    line, along = (row, k) if along_k else (k, row % 64)
    panel = 0 if along_k else row // 64 * panel_bytes
    return (panel + 128 * line + 16 * ((along // 8) ^ (line % 8)) + 2 * (along % 8)) // 2


_ROW, _COLUMN = np.arange(LANES)[:, None] // 4, 2 * (np.arange(LANES)[:, None] % 4)
"""Where a lane's registers begin in a matrix."""


def _left_places() -> Array:
    e = np.arange(8)
    return (_ROW + 8 * (e // 2 % 2)) * 16 + _COLUMN + e % 2 + 8 * (e // 4)


def _sum_places() -> Array:
    e = np.arange(4)
    return (_ROW + 8 * (e // 2)) * 8 + _COLUMN + e % 2


def _loaded_places(transposed: bool) -> Array:
    """Of the elements of four matrices of eight rows, a lane gets two of each."""
    matrices = np.arange(LANES * 8).reshape(4, 8, 8)
    matrices = matrices.swapaxes(1, 2) if transposed else matrices
    return matrices.reshape(4, LANES, 2).swapaxes(0, 1)


# Registers of lanes in the order of a matrix, and elements of a matrix in the order of registers.
_LEFT = np.argsort(_left_places().reshape(-1))
_SUMS, _LOADED, _TRANSPOSED = (
    places.reshape(-1) for places in (_sum_places(), _loaded_places(False), _loaded_places(True))
)


__all__ = ["CHUNK", "Matrices", "places_of"]
