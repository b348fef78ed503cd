"""Weights of f32 rounded to bf16 and packed as tiles, once, before a run."""

from __future__ import annotations

import numpy as np

from dovetail.codegen.llvm.amx import COLUMNS, STEPS
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bf16
from dovetail.ir.literal import Array
from dovetail.targets.cpu.gemm.amx_cuts import whole_steps
from dovetail.targets.runtime.arrays.aligned import aligned

_PAIRS = STEPS // 2


@dataclass(frozen=True, slots=True)
class Bf16Panels:
    """Columns of one or more matrices as [panel, k / 32, column / 16, 16, 16, 2]; zeros fill up columns and depth."""

    columns: int
    """Of a panel."""
    streams: tuple[tuple[int, int], ...]
    """For each stream of columns the matrix that it is in, and its first column."""
    size: int
    """Columns of each stream."""
    transposed: bool = False
    """Whether the matrices are stored [columns, k]."""

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"bf16 {self.columns} {self.streams} {self.size} {self.transposed}"

    def by_column(self, *given: Array) -> list[Array]:
        """Matrices [columns, k] of f32."""
        return [matrix if self.transposed else matrix.T for matrix in given]

    def __call__(self, *given: Array) -> Array:
        """Matrices [k, n], or [n, k] if transposed, as two bf16 in each u32."""
        matrices = self.by_column(*given)
        width, deep = self.columns // len(self.streams), whole_steps(matrices[0].shape[1])
        count, vectors = -(-self.size // width), width // COLUMNS
        shape = (count, deep // STEPS, self.columns // COLUMNS, _PAIRS, COLUMNS)
        packed = aligned(shape, np.uint32)
        for stream, (matrix, first) in enumerate(self.streams):
            part = matrices[matrix][first : first + self.size]
            rows = np.zeros((count * width, deep), bf16.numpy)
            rows[: len(part), : part.shape[1]] = part
            pairs = rows.view(np.uint32).reshape(count, vectors, COLUMNS, deep // STEPS, _PAIRS)
            packed[:, :, stream * vectors : (stream + 1) * vectors] = pairs.transpose(0, 3, 1, 4, 2)
        return packed


__all__ = ["Bf16Panels"]
