"""The job of a GEMM or convolution of bytes: its operands, exact sums, and the epilogue on these."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.ir import leaf
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import DType, i8, i32, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.map import elementwise
from dovetail.kernels.loops.body import cast_to, is_number, overwritten_operands
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
    sizes_in,
    stretched,
)
from dovetail.kernels.problems.bytes import ByteProduct
from dovetail.kernels.spec import Packed
from dovetail.targets.cpu.gemm.driver import LIVE
from dovetail.targets.cpu.gemm.int8.tile import ByteTile
from dovetail.targets.cpu.gemm.policy import INT8


class ByteJob:
    """The job of one product or convolution of bytes while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], contraction: ByteProduct, tile: ByteTile) -> None:
        self.of, self.contraction, self.tile = of, contraction, tile
        overwritten = overwritten_operands(of.step, of.locations)
        apart = [v for v in contraction.operands if contraction.operand(v) not in overwritten]
        self.beside = {v: f"e{i}" for i, v in enumerate(apart)}
        """The pointers of what the epilogue reads, but for what the result is written over."""
        self.bindings: dict[str, Value | Packed] = {}
        self.spread: dict[str, tuple[Size, ...]] = {}
        """Strides of what the epilogue reads and writes, along the axes of the result."""
        self.sizes: dict[str, Size] = {}

    def bind_epilogue(self) -> Refused | None:
        """Bind the zero point where it is a tensor, what the epilogue reads, and the result; or why it cannot."""
        contraction, value = self.contraction, self.of.value
        views, zero = contraction.body.views, contraction.factor.zero
        if zero is not None and not is_number(zero):
            self.bindings["z"] = contraction.operand(zero)
        for view, name in self.beside.items():
            if views[view].offset != 0:
                return Refused("epilogue_reads_operands_from_their_start", str(view.type))
            self.bindings[name] = contraction.operand(view)
            self.spread[name] = stretched(views[view].strides, view.shape, contraction.result.shape)
        self.bindings["y"] = value
        self.spread["y"] = stretched(self.of.locations(value).strides, value.shape, contraction.result.shape)
        return None

    def epilogue(self, exact: Callable[[Expr, Expr], Expr], sums: str) -> Kernel:
        """The elementwise steps on exact sums at a row and a column, as a kernel; `sums` names those of the factor."""
        contraction, bindings, beside, sizes = self.contraction, self.bindings, self.beside, self.sizes
        lanes = self.tile.shape.lanes

        def tensor(name: str, dtype: DType) -> Tensor:
            named = (f"{name}_row", f"{name}_column")
            return Tensor(name, dtype, tuple(size if isinstance(size := sizes[n], int) else symbol(n) for n in named))

        target = tensor("y", contraction.result.dtype)

        def columns(first: Expr, count: Expr, lanes: int) -> Loop:
            at = (Name("row"), add(first, Name("column")))
            leaves = {contraction.product: exact(*at)}
            for view in contraction.operands:
                name = beside.get(view)
                leaves[view] = Load(target if name is None else tensor(name, view.dtype), at)
            (result,) = elementwise([contraction.result], leaves)
            return Loop("column", count, (Store(target, at, result),), lanes=lanes)

        # Several vectors at once hide the latency of a long chain of steps, and fill a vector of bytes.
        wide = lanes * INT8.vectors
        whole = Call("sub", (Extent(LIVE), Call("rem", (Extent(LIVE), Extent(wide)), i64)), i64)
        left = Call("sub", (Extent(LIVE), Name("whole")), i64)
        body = (Set("whole", whole), columns(Extent(0), Name("whole"), wide), columns(Name("whole"), left, lanes))
        zero = ("z",) if "z" in bindings else ()
        pointers = ("sums", sums, "c", *zero, *beside.values(), "y")
        return Kernel("epilogue", pointers, ("y",), "row", body, sizes=sizes_in(body))

    def exact_sums(self, sums: Expr, totals: Expr, offsets: Expr | None) -> Expr:
        """Exact sums: those of the tile, plus offsets, minus the zero point times the sum of the weights."""
        contraction, tile = self.contraction, self.tile
        if offsets is not None:
            sums = Call("add", (sums, offsets), i32)
        zero, signed = contraction.factor.zero, contraction.factor.dtype is i8
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


__all__ = ["ByteJob"]
