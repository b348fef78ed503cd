"""What NVIDIA GPUs are called by: NVVM's intrinsics for what any GPU has."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.gpu.approximations import Approximations, called, declared
from dovetail.codegen.llvm.gpu.machine import Machine, Register
from dovetail.codegen.llvm.nvptx import fp8, nvvm, permuted, persistent, pipeline, tensor_cores
from dovetail.errors import GraphError
from dovetail.ir.dtype import DType, u32
from dovetail.kernels.device import LANES
from dovetail.kernels.matrix_instruction import MatrixInstruction

_REGISTERS: dict[Register, str] = {"thread": nvvm.THREAD, "block": nvvm.BLOCK, "blocks": nvvm.BLOCKS}


def _unary(intrinsic: str) -> Callable[[Builder, str], str]:
    def written(t: Builder, x: str) -> str:
        t.use(f"declare float @{intrinsic}(float)")
        return t.let(f"call float @{intrinsic}(float {x})")

    return written


def _quotient(t: Builder, x: str, y: str) -> str:
    t.use(declared(nvvm.NEAR_QUOTIENT))
    return t.let(called(nvvm.NEAR_QUOTIENT, x, y))


def _saturated(t: Builder, x: str, y: str, z: str) -> str:
    t.use(f"declare float @{nvvm.SATURATED_FMA}(float, float, float)")
    return t.let(f"call float @{nvvm.SATURATED_FMA}(float {x}, float {y}, float {z})")


def _held(t: Builder, x: str) -> str:
    """The same number by an instruction that is no copy: the assembler takes copies of sums for the sums themselves,
    and serialises products during which they are read. Grids have one axis, which it does not know."""
    t.use(f"declare i32 @{nvvm.GRID_Y}()")
    one = t.let(f"uitofp i32 {t.let(f'call i32 @{nvvm.GRID_Y}()')} to float")
    return t.let(f"fmul float {x}, {one}")


class Nvptx(Machine):
    """Any of NVIDIA's architectures: what only some have is chosen before."""

    architecture = "NVIDIA GPUs"
    rounds_to_bf16 = True
    approximations = Approximations(
        exp2=_unary(nvvm.NEAR_EXP2),
        rsqrt=_unary(nvvm.NEAR_RSQRT),
        reciprocal=_unary(nvvm.NEAR_RECIPROCAL),
        quotient=_quotient,
        saturated_fma=_saturated,
        held=_held,
        bounded_quotient=nvvm.BOUNDED_QUOTIENT,
    )
    functions = MappingProxyType(
        {**approximations.functions, **fp8.FUNCTIONS, **permuted.FUNCTIONS, **persistent.CLOCKS}
    )

    def header(self) -> str:
        return nvvm.header()

    def number(self, t: Builder, register: Register) -> str:
        name = _REGISTERS[register]
        t.use(f"declare i32 @{name}()")
        return t.let(f"call i32 @{name}()")

    def barrier(self, t: Builder) -> None:
        t.use(f"declare void @{nvvm.BARRIER}()")
        t.emit(f"call void @{nvvm.BARRIER}()")

    def warp_barrier(self, t: Builder) -> None:
        pipeline.warp_barrier(t)

    def from_partner(self, t: Builder, word: str, distance: int) -> str:
        return self._shuffle(t, nvvm.SHUFFLE, word, str(distance))

    def from_lane(self, t: Builder, word: str, lane: str) -> str:
        return self._shuffle(t, nvvm.SHUFFLE_INDEX, word, lane)

    def _shuffle(self, t: Builder, intrinsic: str, word: str, operand: str) -> str:
        t.use(f"declare i32 @{intrinsic}(i32, i32, i32, i32)")
        return t.let(f"call i32 @{intrinsic}(i32 -1, i32 {word}, i32 {operand}, i32 {LANES - 1})")

    def ballot(self, t: Builder, x: str, dtype: DType) -> str:
        if dtype is not u32:
            raise GraphError(f"a ballot of 32 lanes as {dtype.name}", hint="keep it as u32")
        t.use(f"declare i32 @{nvvm.BALLOT}(i32, i1)")
        return t.let(f"call i32 @{nvvm.BALLOT}(i32 -1, i1 {x})")

    def copy(self, t: Builder, target: str, source: str, inside: str, nbytes: int) -> None:
        tensor_cores.copy(t, target, source, inside, nbytes)

    def commit(self, t: Builder) -> None:
        tensor_cores.commit(t)

    def await_copies(self, t: Builder, pending: int) -> None:
        tensor_cores.wait(t, pending)

    def prefetch(self, t: Builder, source: str, nbytes: str) -> None:
        tensor_cores.prefetch(t, source, nbytes)

    def multiply(self, t: Builder, by: MatrixInstruction, left: str, right: str, sums: str) -> None:
        tensor_cores.multiply(t, by, left, right, sums)


NVPTX = Nvptx()

__all__ = ["NVPTX"]
