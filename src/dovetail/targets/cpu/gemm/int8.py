"""Contraction of what was quantised to bytes: whole numbers are multiplied, which is exact and four times as fast.

The left operand comes as floats, each of which stands for a byte; the right one is known before a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail import library, ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, f32, i8, i32, u8
from dovetail.ir.literal import Array
from dovetail.ir.type import TupleType
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.map import elementwise
from dovetail.kernels.loops.body import cast_to, lying_beneath
from dovetail.kernels.loops.ir import Call, Expr, Extent, Kernel, Load, Loop, Name, Store, Tensor, stretched
from dovetail.kernels.spec import Job, Packed, TensorLocations, Tiles
from dovetail.ops.region import region
from dovetail.plan.alias import is_dense
from dovetail.targets.cpu.gemm.driver import LIVE
from dovetail.targets.cpu.gemm.int8_kernel import Bytes, int8_code
from dovetail.targets.cpu.gemm.policy import INT8
from dovetail.targets.cpu.gemm.variant import Contraction, find_contraction

SERVED = (ops.matmul, library.linear, library.matmul_add, region)


@dataclass(frozen=True, slots=True)
class Quantised:
    """For each part of the columns the weights [k, n] as bytes, their scales and zero points; then the scale and the
    zero point of what they are multiplied with."""

    parts: int
    signed: bool
    """Whether the left operand is: its bytes are then moved by 128."""

    def columns(self, given: tuple[Array, ...]) -> tuple[Array, Array, Array]:
        """Signed bytes [k, n], their zero points [n] and scales [n]."""
        found: list[tuple[Array, Array, Array]] = []
        for part in range(self.parts):
            q, scale, zero = given[3 * part : 3 * part + 3]
            moved = 128 if q.dtype == np.uint8 else 0
            n = q.shape[1]
            zeros = np.broadcast_to(zero.astype(np.int64) - moved, (n,))
            found.append((q.astype(np.int64) - moved, zeros, np.broadcast_to(scale.astype(np.float64), (n,))))
        q, zeros, scales = (np.concatenate(arrays, axis=-1) for arrays in zip(*found, strict=True))
        return q, zeros, scales

    def left(self, given: tuple[Array, ...]) -> tuple[float, int]:
        """The scale and the zero point of the left operand, as bytes without sign."""
        scale, zero = given[-2:]
        return float(scale), int(zero) + (128 if self.signed else 0)


@dataclass(frozen=True, slots=True)
class BytePanels(Quantised):
    """Bytes in the order in which they are multiplied: [panel][k / 4][column][4]."""

    def __call__(self, *given: Array) -> Array:
        q, _, _ = self.columns(given)
        k, n = q.shape
        panels, fours = -(-n // INT8.nr), -(-k // 4)
        raw = np.zeros(panels * fours * 4 * INT8.nr + 64, np.int8)
        start = -raw.ctypes.data % 64
        packed = raw[start : raw.size - 64 + start].reshape(panels, fours, INT8.nr, 4)
        whole = np.zeros((4 * fours, panels * INT8.nr), np.int8)
        whole[:k, :n] = q
        packed[:] = whole.reshape(fours, 4, panels, INT8.nr).transpose(2, 0, 3, 1)
        return packed


@dataclass(frozen=True, slots=True)
class ByteColumns(Quantised):
    """For each column what is added to its sum, its zero point, and the scale of the result."""

    def __call__(self, *given: Array) -> Array:
        q, zeros, scales = self.columns(given)
        scale, zero = self.left(given)
        k, n = q.shape
        packed = np.zeros((3, -(-n // INT8.nr) * INT8.nr), np.int32)
        packed[0, :n] = k * zero * zeros - zero * q.sum(axis=0)
        packed[1, :n] = zeros
        packed[2, :n] = (scale * scales).astype(np.float32).view(np.int32)
        return packed


@dataclass(frozen=True, slots=True)
class ByteSteps(Quantised):
    """What brings a float of the left operand back to its byte: a factor and a summand."""

    def __call__(self, *given: Array) -> Array:
        scale, zero = self.left(given)
        return np.array([1.0 / scale if scale else 0.0, zero], np.float32)


def offer_int8(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a product of two tensors that were bytes."""
    locations = of.locations
    if not of.device.has("vnni"):
        return Refused("device_has_vnni", "no 4-way dot products of bytes")
    if of.value.op not in SERVED or isinstance(of.value.type, TupleType):
        return Refused("op_is_one_product", of.value.op.name)
    found = of.once(find_contraction)
    if isinstance(found, Refused):
        return found
    if found.parts != 1 or len(found.products) != 1:
        return Refused("op_is_one_product", f"{len(found.products)} products in {found.parts} parts", "1")
    left, right = (found.body.arguments.get(v) for v in found.products[0].operands)
    if left is None or right is None or not _is_of_bytes(left, locations) or left.attrs["axis"] is not None:
        return Refused("left_operand_was_bytes", "floats", "dequantised bytes with one scale")
    parts = right.operands if right.op is ops.concat and right.attrs["axis"] == -1 else (right,)
    if not all(
        part.rank == 2 and _is_of_bytes(part, locations) and locations.is_bound(part.operands[0]) for part in parts
    ):
        return Refused("right_operand_was_bytes", "floats, or bytes of a run", "dequantised bytes that are bound")
    scale = leaf.scalar_of(left.operands[1])
    if (
        not isinstance(scale, float)
        or not 1e-30 < scale < 1e30
        or any(p.attrs["axis"] not in (None, -1) for p in parts)
    ):
        return Refused("scales_are_known", "a scale of a run, out of range, or along another axis")
    return _checked(of, found, left, parts)


def _is_of_bytes(value: Value, locations: TensorLocations) -> bool:
    """Whether floats stand for bytes, with a scale and a zero point that are known."""
    if value.op is not ops.dequantise or value.dtype is not f32:
        return False
    q, *beside = value.operands
    return q.dtype in (i8, u8) and beside[0].dtype is f32 and all(map(locations.is_bound, beside))


def _checked(of: StepProblem[CpuDevice], found: Contraction, left: Value, parts: tuple[Value, ...]) -> Offer | Refused:
    """The offer, if sizes and strides are as the kernel needs them."""
    value, locations = of.value, of.locations
    deep, columns = left.shape[-1], value.shape[-1]
    if not isinstance(deep, int) or not isinstance(columns, int) or not 0 < deep <= INT8.deepest:
        return Refused("sums_fit_32_bits", f"{deep} by {columns}", f"at most {INT8.deepest} products")
    views = found.body.views
    if value.dtype is not f32 or not is_dense(left.tensor, locations(left).strides):
        return Refused("rows_are_dense_f32", value.dtype.name)
    operands: dict[Value, tuple[str, bool]] = {}
    beneath = lying_beneath(of.step, locations)
    for view in found.operands:
        strides = stretched(views[view].strides, view.shape, value.shape)
        has_rows = is_dense(value.tensor, strides)
        if view.dtype is not f32 or views[view].offset != 0 or not (has_rows or _is_a_row(strides)):
            return Refused("epilogue_reads_dense_f32", str(view.type), "one row, or a row for each of the result's")
        if found.operand(view) in beneath:
            continue
        operands[view] = (f"e{len(operands)}", has_rows)
    return Offer(lambda: _job(value, found, left, parts, operands, (deep, columns)))


def _job(
    value: Value,
    found: Contraction,
    left: Value,
    parts: tuple[Value, ...],
    operands: dict[Value, tuple[str, bool]],
    sizes: tuple[int, int],
) -> Job:
    deep, columns = sizes
    bindings: dict[str, Value | Packed] = {"a": left}
    signed, count = left.operands[0].dtype is i8, len(parts)
    given = [v for part in parts for v in part.operands] + list(left.operands[1:])
    for name, pack in (
        ("w", BytePanels(count, signed)),
        ("c", ByteColumns(count, signed)),
        ("g", ByteSteps(count, signed)),
    ):
        bindings[name] = Packed(given[0], f"bytes {name} {count} {signed}", pack, tuple(given[1:]))
    bindings |= {name: found.operand(view) for view, (name, _) in operands.items()}
    shape = Bytes(deep, columns, tuple(operands.values()), (*bindings, "y"))
    epilogue = _epilogue(shape, found, {view: name for view, (name, _) in operands.items()})
    rows = product(value.shape[:-1])
    scratch = shape.layout(epilogue)["end"]
    template = int8_code(shape, epilogue).template(shape.pointers, (rows,), scratch)
    tiles = (rows + (INT8.block - 1)) // INT8.block * shape.panels
    return Job(template, {**bindings, "y": value}, Tiles(tiles, INT8.block * deep * INT8.nr // 4))


def _is_a_row(strides: tuple[Size, ...]) -> bool:
    """Whether one row serves all."""
    return strides[-1] == f32.itemsize and not any(strides[:-1])


def _epilogue(shape: Bytes, found: Contraction, operands: dict[Value, str]) -> Kernel:
    """Sums as floats, and the elementwise work on them."""
    row, column = Name("row"), Name("column")
    pitch = 4 * shape.panels * INT8.nr

    def beside(number: int, dtype: DType) -> Expr:
        return Load(Tensor("c", dtype, (4,), number * pitch), (column,))

    sums = Load(Tensor("sums", i32, (4 * INT8.nr, 4)), (row, column))
    of_row = Load(Tensor("rowsums", i32, (4,)), (row,))
    whole = Call("add", (sums, beside(0, i32)), i32)
    whole = Call("sub", (whole, Call("mul", (beside(1, i32), of_row), i32)), i32)
    leaves: dict[Value, Expr] = {found.products[0]: Call("mul", (cast_to(whole, f32), beside(2, f32)), f32)}
    has_rows = dict(shape.operands)
    target = Tensor("y", f32, (4 * shape.columns, 4))
    for view in found.operands:
        name = operands.get(view)
        of = target if name is None else Tensor(name, f32, (4 * shape.columns if has_rows[name] else 0, 4))
        leaves[view] = Load(of, (row, column))
    (result,) = elementwise([found.result], leaves)
    store = Store(target, (row, column), result)
    body = (Loop("column", Extent(LIVE), (store,), lanes=16),)
    return Kernel("epilogue", ("sums", "rowsums", "c", *operands.values(), "y"), ("y",), "row", body, sizes=(LIVE,))
