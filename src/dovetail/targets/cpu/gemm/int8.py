"""Matrix products of bytes with weights that are known: exact in 32 bits, with the elementwise steps as an epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size, product, symbol
from dovetail.ir.dtype import DType, i8, i32, i64
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.map import elementwise
from dovetail.kernels.loops.body import cast_to, is_number, lying_beneath
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Store,
    Tensor,
    add,
    collapsed,
    sizes_in,
    stretched,
)
from dovetail.kernels.problems.bytes import BytePacking, ByteProduct, find_byte_product
from dovetail.kernels.spec import Job, Packed, Tiles
from dovetail.targets.cpu.gemm.byte_tile import ByteTile, byte_tile_of
from dovetail.targets.cpu.gemm.driver import LIVE
from dovetail.targets.cpu.gemm.int8_kernel import Bytes, int8_code, words_of
from dovetail.targets.cpu.gemm.policy import INT8
from dovetail.targets.runtime.aligned import aligned

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


class _Writer:
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], found: ByteProduct, tile: ByteTile, deep: int, columns: int) -> None:
        self.of, self.found, self.tile, self.deep, self.columns = of, found, tile, deep, columns
        beneath = lying_beneath(of.step, of.locations)
        self.beneath = {v for v in found.operands if found.operand(v) in beneath}
        self.beside = {v: f"e{i}" for i, v in enumerate(v for v in found.operands if v not in self.beneath)}
        self.bindings: dict[str, Value | Packed] = {}
        self.fronts: dict[str, tuple[Size, ...]] = {}
        """Strides of each pointer along the axes of the result but the last."""
        self.sizes: dict[str, Size] = {}

    def job(self) -> Job | Refused:
        found, views = self.found, self.found.body.views
        factor = found.factor
        strides = views[factor.bytes].strides
        if views[factor.bytes].offset != 0:
            return Refused("rows_start_at_an_operand", "a view within an operand")
        self.bindings["a"] = found.operand(factor.bytes)
        self.fronts["a"] = stretched(strides[:-1], factor.bytes.shape[:-1], found.result.shape[:-1])
        self.sizes["a_k"] = strides[-1]
        weights = found.weights
        for name, pack in (("w", BytePanels), ("c", ByteColumns)):
            layout = f"bytes {name} {self.tile.nr} {weights.is_transposed}"
            made = pack(weights.number, self.tile.nr, weights.is_transposed)
            self.bindings[name] = weights.packed(layout, made)
        zero_of(self.bindings, found)
        for view, name in self.beside.items():
            if views[view].offset != 0:
                return Refused("epilogue_reads_operands_from_their_start", str(view.type))
            self._point(name, found.operand(view), views[view].strides, view.shape)
        value = self.of.value
        self._point("y", value, self.of.locations(value).strides, value.shape)
        shape, fronts = collapsed(found.result.shape[:-1], list(self.fronts.values()))
        if len(shape) > 1:
            return Refused("axes_in_front_are_rows", f"{len(shape)} axes", "axes that are dense in every operand")
        for name, front in zip(self.fronts, fronts, strict=True):
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

    def _point(self, name: str, of: Value, strides: tuple[Size, ...], shape: tuple[Size, ...]) -> None:
        """A tensor that is read or written at rows and columns of the result."""
        spread = stretched(strides, shape, self.found.result.shape)
        self.bindings[name] = of
        self.fronts[name] = spread[:-1]
        self.sizes[f"{name}_column"] = spread[-1]

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
            return exact_sums(self.found, self.tile, sums, totals, offsets)

        return byte_epilogue(
            self.found, exact, "rowsums", self.bindings, self.beside, self.sizes, self.tile.shape.lanes
        )


def byte_epilogue(
    found: ByteProduct,
    exact: Callable[[Expr, Expr], Expr],
    sums: str,
    bindings: Mapping[str, Value | Packed],
    beside: Mapping[Value, str],
    sizes: Mapping[str, Size],
    lanes: int,
) -> Kernel:
    """The elementwise steps on exact sums at a row and a column, as a kernel; `sums` names those of the factor."""

    def tensor(name: str, dtype: DType) -> Tensor:
        named = (f"{name}_row", f"{name}_column")
        return Tensor(name, dtype, tuple(size if isinstance(size := sizes[n], int) else symbol(n) for n in named))

    target = tensor("y", found.result.dtype)

    def columns(first: Expr, count: Expr, lanes: int) -> Loop:
        at = (Name("row"), add(first, Name("column")))
        leaves = {found.product: exact(*at)}
        for view in found.operands:
            name = beside.get(view)
            leaves[view] = Load(target if name is None else tensor(name, view.dtype), at)
        (result,) = elementwise([found.result], leaves)
        return Loop("column", count, (Store(target, at, result),), lanes=lanes)

    # Several vectors at once hide the latency of a long chain of steps, and fill a vector of bytes.
    wide = lanes * INT8.vectors
    whole = Call("sub", (Extent(LIVE), Call("rem", (Extent(LIVE), Extent(wide)), i64)), i64)
    left = Call("sub", (Extent(LIVE), Name("whole")), i64)
    body = (Set("whole", whole), columns(Extent(0), Name("whole"), wide), columns(Name("whole"), left, lanes))
    zero = ("z",) if "z" in bindings else ()
    pointers = ("sums", sums, "c", *zero, *beside.values(), "y")
    return Kernel("epilogue", pointers, ("y",), "row", body, sizes=sizes_in(body))


def zero_of(bindings: dict[str, Value | Packed], found: ByteProduct) -> None:
    """Bind the zero point of the factor where it is a tensor."""
    zero = found.factor.zero
    if zero is not None and not is_number(zero):
        bindings["z"] = found.operand(zero)


def exact_sums(found: ByteProduct, tile: ByteTile, sums: Expr, totals: Expr, offsets: Expr | None) -> Expr:
    """What the integers sum up to: the tile's sums, plus offsets, minus the zero point times the sum of the weights."""
    if offsets is not None:
        sums = Call("add", (sums, offsets), i32)
    zero, signed = found.factor.zero, found.factor.dtype is i8
    moved = 0 if signed == tile.shape.signed else -128 if tile.shape.signed else 128
    known = 0 if zero is None else leaf.scalar_of(zero) if is_number(zero) else None
    if known is not None:
        shift = int(known.real) + moved
        return sums if shift == 0 else Call("sub", (sums, Call("mul", (totals, Number(shift, i32)), i32)), i32)
    assert zero is not None, "a zero point without a tensor is a number"
    held = cast_to(Load(Tensor("z", zero.dtype, ()), ()), i32)
    if moved:
        held = Call("add", (held, Number(moved, i32)), i32)
    return Call("sub", (sums, Call("mul", (totals, held), i32)), i32)
