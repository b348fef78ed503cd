"""Matrix products of bytes with weights that are known: exact in 32 bits, with the elementwise steps as an epilogue.

A cell is one panel of columns for one block of rows. Rows are packed as they come, panels of weights before the run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail import ops
from dovetail.codegen.llvm.arguments import NamedArguments, store_words
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, assemble_with, inner_name
from dovetail.codegen.llvm.once import HEAD, once_for
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Dim, Size, product
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
from dovetail.targets.cpu.gemm.driver import LIVE, words_bytes
from dovetail.targets.cpu.gemm.int8.job import ByteJob
from dovetail.targets.cpu.gemm.int8.tile import ByteTile, byte_tile_function, byte_tile_of
from dovetail.targets.cpu.gemm.policy import INT8
from dovetail.targets.runtime.arrays.aligned import aligned


@dataclass(frozen=True, slots=True)
class Bytes:
    """What the code depends on."""

    tile: ByteTile
    deep: int
    columns: int
    is_signed: bool
    """Whether rows are signed bytes."""
    has_offsets: bool
    """Whether columns have offsets, so that sums of rows are needed."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads at rows and columns of the result."""
    pointers: tuple[str, ...]
    sizes: Mapping[str, Size]

    @property
    def steps(self) -> int:
        return self.tile.steps(self.deep)

    @property
    def panels(self) -> int:
        return -(-self.columns // self.tile.nr)

    def layout(self, epilogue: Kernel) -> dict[str, int]:
        """Offsets in the workspace: words of the epilogue, sums, sums of rows, packed rows, and the end."""
        room = INT8.block * self.tile.nr * 4
        sizes = {"words": words_bytes(epilogue), "sums": room, "rowsums": room if self.has_offsets else 0}
        offsets, end = dict[str, int](), HEAD
        for name, size in (*sizes.items(), ("rows", INT8.block * 4 * self.steps)):
            offsets[name], end = end, end + -(-size // 64) * 64
        return {**offsets, "end": end}


def words_of(sizes: Mapping[str, Size]) -> dict[str, Dim]:
    """The sizes that are arguments; the others are numbers in the code."""
    return {name: size for name, size in sizes.items() if not isinstance(size, int)}


def int8_code(shape: Bytes, epilogue: Kernel) -> KernelCode:
    """The kernel with its epilogue."""
    driver = _Driver(shape, epilogue)
    code = assemble_with("int8", [driver.function(DRIVER, attributes="nounwind")], [epilogue])
    parts = [byte_tile_function(shape.tile, rows) for rows in (shape.tile.mr, 1)]
    uses = (*code.uses, *(signature.declaration for _, signature in parts))
    return KernelCode(code.name, code.text, uses, tuple(part for part, _ in parts))


class _Driver(Builder):
    """The function that goes through cells."""

    def __init__(self, shape: Bytes, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.arguments = NamedArguments.load(self, WORDS, shape.pointers, tuple(words_of(shape.sizes)))
        offsets = shape.layout(epilogue)
        self.words = self.ptr_add(SCRATCH, offsets["words"])
        self.sums = self.ptr_add(SCRATCH, offsets["sums"])
        self.rowsums = self.ptr_add(SCRATCH, offsets["rowsums"])
        self.rows = self.ptr_add(SCRATCH, offsets["rows"])
        with self.loop(BEGIN, END) as cell:
            self._cell(cell)

    def size(self, name: str) -> Int:
        known = self.shape.sizes[name]
        return known if isinstance(known, int) else self.arguments.sizes[name]

    def _cell(self, cell: I64) -> None:
        shape = self.shape
        panel, block = self.urem(cell, shape.panels), self.udiv(cell, shape.panels)
        first = self.mul(block, INT8.block)
        count = self.smin(INT8.block, self.sub(self.size("count"), first))
        with self.when(once_for(self, SCRATCH, 0, block)):
            self._pack_rows(first, count)
            if shape.has_offsets:
                self._multiply(self._panel(shape.panels), count, self.rowsums)
        self._multiply(self._panel(panel), count, self.sums)
        self._epilogue_words(first, self.mul(panel, shape.tile.nr))
        self.emit(f"call void @{inner_name(self.epilogue)}(ptr {self.words}, i64 0, i64 {count}, ptr null)")

    def _panel(self, number: Int) -> Ptr:
        panel_bytes = self.shape.tile.step_bytes * self.shape.steps
        return self.ptr_add(self.arguments.pointers["w"], self.mul(number, panel_bytes))

    def _multiply(self, b: Ptr, count: I64, accumulators: Ptr) -> None:
        """All rows of the block times one panel: one row alone, others by tiles."""
        shape, tile = self.shape, self.shape.tile
        pitch = 4 * tile.nr
        alone = self.icmp("eq", count, 1)
        _, single = byte_tile_function(tile, 1)
        with self.when(alone):
            self.call(single, self.rows, b, accumulators, shape.steps, pitch)
        _, full = byte_tile_function(tile, tile.mr)
        with self.unless(alone), self.loop(0, self.udiv(self.add(count, tile.mr - 1), tile.mr)) as at:
            a = self.ptr_add(self.rows, self.mul(at, tile.row_bytes * shape.steps))
            self.call(full, a, b, self.ptr_add(accumulators, self.mul(at, tile.mr * pitch)), shape.steps, pitch)

    def _pack_rows(self, first: I64, count: I64) -> None:
        """The rows of a block as the tile reads them, zeros after k; bytes of the other sign are moved by 128."""
        shape, tile = self.shape, self.shape.tile
        dense, whole = shape.sizes["a_k"] == 1, shape.deep // 4
        with self.loop(0, count) as row:
            source = self.ptr_add(self.arguments.pointers["a"], self.mul(self.add(first, row), self.size("a_row")))
            start = self.mul(self.udiv(row, tile.mr), tile.row_bytes * shape.steps)
            target = self.ptr_add(self.rows, self.add(start, self.mul(self.urem(row, tile.mr), 4)))
            if dense:
                with self.loop(0, whole) as k:
                    four = self.let(f"load i32, ptr {self.ptr_add(source, self.mul(k, 4))}, align 1")
                    there = self.ptr_add(target, self.mul(k, tile.row_bytes))
                    self.emit(f"store i32 {self._moved(four, 'i32', -0x7F7F7F80)}, ptr {there}, align 4")
            else:
                with self.loop(0, whole) as k:
                    there = self.ptr_add(target, self.mul(k, tile.row_bytes))
                    for i in range(4):
                        self._copy_byte(source, self.add(self.mul(k, 4), i), self.ptr_add(there, i))
            if shape.deep % 4:
                last = self.ptr_add(target, whole * tile.row_bytes)
                self.emit(f"store i32 0, ptr {last}, align 4")
                for i in range(shape.deep % 4):
                    self._copy_byte(source, I64(str(4 * whole + i)), self.ptr_add(last, i))

    def _copy_byte(self, source: Ptr, k: I64, target: Ptr) -> None:
        byte = self.let(f"load i8, ptr {self.ptr_add(source, self.mul(k, self.size('a_k')))}, align 1")
        self.emit(f"store i8 {self._moved(byte, 'i8', -0x80)}, ptr {target}, align 1")

    def _moved(self, x: str, kind: str, by: int) -> str:
        """Bytes in the sign that the tile multiplies."""
        return x if self.shape.is_signed == self.shape.tile.shape.signed else self.let(f"xor {kind} {x}, {by}")

    def _epilogue_words(self, first: I64, column: I64) -> None:
        """The words of the epilogue for this cell."""
        shape = self.shape
        pointers = self.arguments.pointers
        words: list[Ptr | I64] = [self.sums, self.rowsums, self.ptr_add(pointers["c"], self.mul(column, 4))]
        if "z" in shape.pointers:
            words.append(pointers["z"])
        for name in (*shape.operands, "y"):
            row = self.ptr_add(pointers[name], self.mul(first, self.size(f"{name}_row")))
            words.append(self.ptr_add(row, self.mul(column, self.size(f"{name}_column"))))
        live = self.smin(shape.tile.nr, self.sub(shape.columns, column))
        words += [live if size == LIVE else self.arguments.sizes[str(size)] for size in self.epilogue.sizes]
        store_words(self, words, self.words)


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
        _, offsets, column_sums = self.signed(weights if self.is_transposed else weights.T, *zero)
        packed = np.zeros((2, -(-column_sums.size // self.nr) * self.nr), np.int32)
        packed[:, : column_sums.size] = column_sums, offsets
        return packed


def offer_int8(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of one matrix product of bytes."""
    tile = byte_tile_of(of.device)
    if tile is None:
        return NO_DOT
    product = of.once(find_byte_product)
    if isinstance(product, Refused):
        return product
    if product.product.op is not ops.matmul:
        return Refused("op_is_one_product", product.product.op.name)
    deep, columns = product.product.operands[0].shape[-1], product.result.shape[-1]
    if product.weights.value.rank != 2 or not isinstance(deep, int) or not isinstance(columns, int) or deep == 0:
        return Refused("weights_are_one_matrix", str(product.weights.value.type), "two axes of known sizes")
    return Offer(lambda: _Writer(of, product, tile, deep, columns).job(), lambda: product.cost(of.value))


class _Writer(ByteJob):
    """The job of one product while it is put together."""

    def __init__(
        self, of: StepProblem[CpuDevice], contraction: ByteProduct, tile: ByteTile, deep: int, columns: int
    ) -> None:
        super().__init__(of, contraction, tile)
        self.deep, self.columns = deep, columns

    def job(self) -> Job | Refused:
        contraction, views = self.contraction, self.contraction.body.views
        factor = contraction.factor
        strides = views[factor.bytes].strides
        if views[factor.bytes].offset != 0:
            return Refused("rows_start_at_an_operand", "a view within an operand")
        self.bindings["a"] = contraction.operand(factor.bytes)
        front = stretched(strides[:-1], factor.bytes.shape[:-1], contraction.result.shape[:-1])
        self.sizes["a_k"] = strides[-1]
        weights = contraction.weights
        for name, pack in (("w", BytePanels), ("c", ByteColumns)):
            layout = f"bytes {name} {self.tile.nr} {weights.is_transposed}"
            pack_weights = pack(weights.number, self.tile.nr, weights.is_transposed)
            self.bindings[name] = weights.packed(layout, pack_weights)
        refused = self.bind_epilogue()
        if refused is not None:
            return refused
        pointed = {"a": front, **{name: spread[:-1] for name, spread in self.spread.items()}}
        self.sizes |= {f"{name}_column": spread[-1] for name, spread in self.spread.items()}
        shape, fronts = collapsed(contraction.result.shape[:-1], list(pointed.values()))
        if len(shape) > 1:
            return Refused("axes_in_front_are_rows", f"{len(shape)} axes", "axes that are dense in every operand")
        for name, front in zip(pointed, fronts, strict=True):
            self.sizes[f"{name}_row"] = front[0] if front else 0
        self.sizes["count"] = product(shape)
        return self._finished()

    def _finished(self) -> Job:
        contraction, factor = self.contraction, self.contraction.factor
        kernel = Bytes(
            self.tile,
            self.deep,
            self.columns,
            factor.dtype is i8,
            contraction.weights.has_offsets,
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
            accumulators: Expr = Load(Tensor("sums", i32, (4 * self.tile.nr, 4)), (row, column))
            totals = Load(Tensor("c", i32, (4,)), (column,))
            offsets: Expr | None = None
            if kernel.has_offsets:
                of_row = Load(Tensor("rowsums", i32, (4 * self.tile.nr,)), (row,))
                offsets = Call("mul", (Load(Tensor("c", i32, (4,), pitch), (column,)), of_row), i32)
            return self.exact_sums(accumulators, totals, offsets)

        return self.epilogue(exact, "rowsums")
