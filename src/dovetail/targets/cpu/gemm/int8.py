"""Matrix products of bytes with weights that are known: exact in 32 bits, with the elementwise steps as an epilogue."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import product
from dovetail.ir.dtype import i8, i32
from dovetail.ir.literal import Array
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Kernel,
    Load,
    Tensor,
    collapsed,
    stretched,
)
from dovetail.kernels.problems.bytes import BytePacking, ByteProduct, find_byte_product
from dovetail.kernels.spec import Job, Tiles
from dovetail.targets.cpu.gemm.byte_tile import ByteTile, byte_tile_of
from dovetail.targets.cpu.gemm.byte_writer import ByteWriter
from dovetail.targets.cpu.gemm.int8_kernel import Bytes, int8_code, words_of
from dovetail.targets.cpu.gemm.policy import INT8
from dovetail.targets.runtime.arrays.aligned import aligned

NO_DOT = Refused("device_has_int8_dot", "no 4-way dot products of bytes", "VNNI, or the dot product of NEON")


@dataclass(frozen=True, slots=True)
class BytePanels(BytePacking):
    """Weights [k, n] as signed bytes in the order in which they are multiplied, [panel][k / 4][column][4]; then a panel
    of ones, which sums up rows."""

    nr: int
    is_transposed: bool

    def __call__(self, weights: Array, *zero: Array) -> Array:
        q, _, _ = self.signed(weights if self.is_transposed else weights.T, *zero)
        n, k = q.shape
        panels, steps = -(-n // self.nr), -(-k // 4)
        whole = np.zeros(((panels + 1) * self.nr, 4 * steps), np.int8)
        whole[:n, :k] = q
        whole[panels * self.nr :, :k] = 1
        packed = aligned((panels + 1, steps, self.nr, 4), np.int8)
        packed[...] = whole.reshape(panels + 1, self.nr, steps, 4).transpose(0, 2, 1, 3)
        return packed


@dataclass(frozen=True, slots=True)
class ByteColumns(BytePacking):
    """For each column the sum of its weights, and the offset that was taken from them."""

    nr: int
    is_transposed: bool

    def __call__(self, weights: Array, *zero: Array) -> Array:
        _, offsets, sums = self.signed(weights if self.is_transposed else weights.T, *zero)
        packed = np.zeros((2, -(-sums.size // self.nr) * self.nr), np.int32)
        packed[:, : sums.size] = sums, offsets
        return packed


def offer_int8(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of one matrix product of bytes."""
    tile = byte_tile_of(of.device)
    if tile is None:
        return NO_DOT
    found = of.once(find_byte_product)
    if isinstance(found, Refused):
        return found
    if found.product.op is not ops.matmul:
        return Refused("op_is_one_product", found.product.op.name)
    deep, columns = found.product.operands[0].shape[-1], found.result.shape[-1]
    if found.weights.value.rank != 2 or not isinstance(deep, int) or not isinstance(columns, int) or deep == 0:
        return Refused("weights_are_one_matrix", str(found.weights.value.type), "two axes of known sizes")
    return Offer(lambda: _Writer(of, found, tile, deep, columns).job(), lambda: found.cost(of.value))


class _Writer(ByteWriter):
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], found: ByteProduct, tile: ByteTile, deep: int, columns: int) -> None:
        super().__init__(of, found, tile)
        self.deep, self.columns = deep, columns

    def job(self) -> Job | Refused:
        found, views = self.found, self.found.body.views
        factor = found.factor
        strides = views[factor.bytes].strides
        if views[factor.bytes].offset != 0:
            return Refused("rows_start_at_an_operand", "a view within an operand")
        self.bindings["a"] = found.operand(factor.bytes)
        front = stretched(strides[:-1], factor.bytes.shape[:-1], found.result.shape[:-1])
        self.sizes["a_k"] = strides[-1]
        weights = found.weights
        for name, pack in (("w", BytePanels), ("c", ByteColumns)):
            layout = f"bytes {name} {self.tile.nr} {weights.is_transposed}"
            made = pack(weights.number, self.tile.nr, weights.is_transposed)
            self.bindings[name] = weights.packed(layout, made)
        refused = self.bind_epilogue()
        if refused is not None:
            return refused
        pointed = {"a": front, **{name: spread[:-1] for name, spread in self.spread.items()}}
        self.sizes |= {f"{name}_column": spread[-1] for name, spread in self.spread.items()}
        shape, fronts = collapsed(found.result.shape[:-1], list(pointed.values()))
        if len(shape) > 1:
            return Refused("axes_in_front_are_rows", f"{len(shape)} axes", "axes that are dense in every operand")
        for name, front in zip(pointed, fronts, strict=True):
            self.sizes[f"{name}_row"] = front[0] if front else 0
        self.sizes["count"] = product(shape)
        return self._finished()

    def _finished(self) -> Job:
        found, factor = self.found, self.found.factor
        kernel = Bytes(
            self.tile,
            self.deep,
            self.columns,
            factor.dtype is i8,
            found.weights.has_offsets,
            tuple(self.beside.values()),
            tuple(self.bindings),
            self.sizes,
        )
        epilogue = self._epilogue(kernel)
        template = int8_code(kernel, epilogue).template(
            self.bindings, tuple(words_of(self.sizes).values()), kernel.layout(epilogue)["end"]
        )
        blocks = (self.sizes["count"] + (INT8.block - 1)) // INT8.block
        work = INT8.block * self.deep * self.tile.nr // 4
        return Job(template, self.bindings, Tiles(blocks * kernel.panels, work))

    def _epilogue(self, kernel: Bytes) -> Kernel:
        """Exact sums of the products, and the elementwise steps on them."""
        pitch = 4 * kernel.panels * self.tile.nr

        def exact(row: Expr, column: Expr) -> Expr:
            sums: Expr = Load(Tensor("sums", i32, (4 * self.tile.nr, 4)), (row, column))
            totals = Load(Tensor("c", i32, (4,)), (column,))
            offsets: Expr | None = None
            if kernel.has_offsets:
                of_row = Load(Tensor("rowsums", i32, (4 * self.tile.nr,)), (row,))
                offsets = Call("mul", (Load(Tensor("c", i32, (4,), pitch), (column,)), of_row), i32)
            return self.exact_sums(sums, totals, offsets)

        return self.epilogue(exact, "rowsums")
