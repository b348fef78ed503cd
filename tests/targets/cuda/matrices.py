"""Tensor cores in NumPy: matrices in the registers of warps, and in shared memory as descriptors find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.ir.dtype import c64
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Expr, Kernel, LoadMatrices, MultiplyMatrices, MultiplyShared, Tensor
from tests.targets.cuda.threads import LANES, Threads, assert_whole_warps

CHUNK = c64
"""A dtype of half of an asynchronous copy, for bounds."""


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
        assert_whole_warps(mask)
        at = self.address(replace(statement.source, dtype=CHUNK), statement.source_at, mask)
        assert not (at % 16).any(), "rows of matrices are aligned"
        rows = self.buffers[statement.source.pointer][0][at[:, None] + np.arange(16)].view(np.uint16)
        matrices = rows.reshape(-1, 4, 8, 8)
        if statement.transposed:
            matrices = matrices.swapaxes(-1, -2)
        found = matrices.reshape(-1, 4, LANES, 2).swapaxes(1, 2).reshape(self.block, 8)
        self.keep(statement.target, statement.target_at, np.ascontiguousarray(found), mask)

    def multiply(self, statement: MultiplyMatrices, mask: Array) -> None:
        assert_whole_warps(mask)
        kind = statement.left.dtype.numpy
        left = self.kept(statement.left, statement.left_at, 16, mask).view(kind).astype(np.float32)
        right = self.kept(statement.right, statement.right_at, 8, mask).view(kind).astype(np.float32)
        sums = self.kept(statement.sums, statement.sums_at, 16, mask).view(np.float32)
        r, c = np.arange(LANES) // 4, 2 * (np.arange(LANES) % 4)
        a, b = np.zeros((self.block // LANES, 16, 16), np.float32), np.zeros((self.block // LANES, 16, 8), np.float32)
        for e in range(8):
            a[:, r + 8 * (e // 2 % 2), c + e % 2 + 8 * (e // 4)] = left[:, e].reshape(-1, LANES)
        for e in range(4):
            b[:, c + e % 2 + 8 * (e // 2), r] = right[:, e].reshape(-1, LANES)
        made = a @ b
        total = np.stack([made[:, r + 8 * (e // 2), c + e % 2].reshape(-1) for e in range(4)], -1)
        self.keep(statement.sums, statement.sums_at, np.ascontiguousarray(sums + total).view(np.uint16), mask)

    def matrices(self, statement: MultiplyShared, mask: Array) -> list[tuple[int, int, int]]:
        """The first thread of each warpgroup, and where its factors start."""
        left = self.address(statement.left, statement.left_at, mask)
        right = self.address(statement.right, statement.right_at, mask)
        return [(first, int(left[first]), int(right[first])) for first in self.groups_of(mask)]

    def multiply_shared(self, statement: MultiplyShared, starts: list[tuple[int, int, int]]) -> None:
        r, c = np.arange(LANES) // 4, 2 * (np.arange(LANES) % 4)
        buffer, each = self.buffers[statement.sums.pointer]
        sums = buffer.view(np.float32).reshape(self.block, each // 4)
        for first, left_at, right_at in starts:
            left = self.matrix(statement, statement.left, left_at, 64, statement.left_along_k)
            right = self.matrix(statement, statement.right, right_at, statement.columns, statement.right_along_k)
            made = left @ right.T
            for warp in range(4):
                lanes = slice(first + warp * LANES, first + (warp + 1) * LANES)
                for j in range(statement.columns // 8):
                    for e in range(4):
                        sums[lanes, 4 * j + e] += made[16 * warp + r + 8 * (e // 2), 8 * j + c + e % 2]

    def matrix(self, statement: MultiplyShared, tensor: Tensor, start: int, rows: int, along_k: bool) -> Array:
        """Rows along 64 of k, as tensor cores find them in shared memory by a descriptor."""
        assert start % 1024 == 0, "tiles start where the swizzle begins"
        row, k = np.meshgrid(np.arange(rows), np.arange(64), indexing="ij")
        line, along = (row, k) if along_k else (k, row % 64)
        panel = 0 if along_k else row // 64 * statement.panel_bytes
        place = start + panel + 128 * line + 16 * ((along // 8) ^ (line % 8)) + 2 * (along % 8)
        raw = self.buffers[tensor.pointer][0]
        words = np.stack([raw[place], raw[place + 1]], -1)
        return np.ascontiguousarray(words).view(tensor.dtype.numpy)[..., 0].astype(np.float32)

    def kept(self, tensor: Tensor, at: Sequence[Expr], count: int, mask: Array) -> Array:
        """Bytes of a private tensor, of each thread."""
        first = self.address(tensor, at, mask)
        bytes_of = self.buffers[tensor.pointer][0]
        return np.stack([bytes_of[first + i] for i in range(count)], -1)

    def keep(self, tensor: Tensor, at: Sequence[Expr], words: Array, mask: Array) -> None:
        raw = words.view(np.uint8)[mask]
        first = self.address(tensor, at, mask)[mask]
        for i in range(raw.shape[-1]):
            self.buffers[tensor.pointer][0][first + i] = raw[:, i]


__all__ = ["CHUNK", "Matrices"]
