"""What AMD GPUs are called by: AMDGCN's intrinsics for what any GPU has.

Copies to shared memory are loads and stores here, which arrive in the order of the program: stages of a kernel then
hide no latency but that of loads which LLVM moves up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from dovetail.codegen.llvm.amdgpu import amdgcn
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.gpu.approximations import Approximations
from dovetail.codegen.llvm.gpu.machine import GLOBAL, SHARED, Machine, Register
from dovetail.codegen.llvm.handles import I1
from dovetail.errors import GraphError, UnsupportedError
from dovetail.ir.dtype import DType, bf16, f16, f32, i8, i32
from dovetail.kernels.matrix_instruction import (
    MFMA,
    MFMA_BF16,
    MFMA_F8,
    MFMA_F16,
    MFMA_F32,
    MFMA_I8,
    WMMA_11,
    WMMA_12,
    LinearLayout,
    MatrixInstruction,
)

_GROUP = 32
"""Lanes among which a swizzle moves words."""


def _unary(intrinsic: str) -> Callable[[Builder, str], str]:
    def written(t: Builder, x: str) -> str:
        t.use(f"declare float @{intrinsic}(float)")
        return t.let(f"call float @{intrinsic}(float {x})")

    return written


def _quotient(t: Builder, x: str, y: str) -> str:
    return t.let(f"fdiv float {x}, {y}, {amdgcn.ACCURACY}")


def _saturated(t: Builder, x: str, y: str, z: str) -> str:
    t.use("declare float @llvm.fma.f32(float, float, float)")
    t.use("declare float @llvm.maxnum.f32(float, float)")
    t.use("declare float @llvm.minnum.f32(float, float)")
    total = t.let(f"call float @llvm.fma.f32(float {x}, float {y}, float {z})")
    above = t.let(f"call float @llvm.maxnum.f32(float {total}, float 0.0)")
    return t.let(f"call float @llvm.minnum.f32(float {above}, float 1.0)")


def _bytes_taken(t: Builder, x: str, y: str, selector: str) -> str:
    """A word of four bytes of two: each four bits of the selector number one of eight, those of x first."""
    # AMD selects by bytes, and numbers the bytes of the second word first.
    spread = "0"
    for i in range(4):
        four = t.let(f"and i32 {t.let(f'lshr i32 {selector}, {4 * i}')}, 7")
        spread = t.let(f"or i32 {spread}, {t.let(f'shl i32 {four}, {8 * i}')}")
    t.use(f"declare i32 @{amdgcn.TAKE_BYTES}(i32, i32, i32)")
    return t.let(f"call i32 @{amdgcn.TAKE_BYTES}(i32 {y}, i32 {x}, i32 {spread})")


class _Instruction(NamedTuple):
    """The intrinsic of a matrix instruction, and the types of its operands."""

    name: str
    factor: str
    sums: str
    more: str = ""
    """Operands after the sums."""


_MFMA = ", i32 0, i32 0, i32 0"
_INSTRUCTIONS: Mapping[MatrixInstruction, _Instruction] = {
    MFMA_F16: _Instruction("llvm.amdgcn.mfma.f32.16x16x16f16", "<4 x half>", "<4 x float>", _MFMA),
    MFMA_BF16: _Instruction("llvm.amdgcn.mfma.f32.16x16x16bf16.1k", "<4 x i16>", "<4 x float>", _MFMA),
    MFMA_F32: _Instruction("llvm.amdgcn.mfma.f32.16x16x4f32", "float", "<4 x float>", _MFMA),
    MFMA_I8: _Instruction("llvm.amdgcn.mfma.i32.16x16x32.i8", "i64", "<4 x i32>", _MFMA),
    MFMA_F8: _Instruction("llvm.amdgcn.mfma.f32.16x16x32.fp8.fp8", "i64", "<4 x float>", _MFMA),
    WMMA_11[0]: _Instruction("llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v16f16", "<16 x half>", "<8 x float>"),
    WMMA_11[1]: _Instruction("llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v16i16", "<16 x i16>", "<8 x float>"),
    WMMA_12[0]: _Instruction("llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v8f16", "<8 x half>", "<8 x float>"),
    WMMA_12[1]: _Instruction("llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v8i16", "<8 x i16>", "<8 x float>"),
}
_CDNA_3 = (MFMA_I8, MFMA_F8)
_OF: Mapping[str, tuple[MatrixInstruction, ...]] = {
    "gfx90a": (*MFMA, MFMA_F32),
    "gfx942": (*MFMA, MFMA_F32, *_CDNA_3),
    "gfx1100": WMMA_11,
    "gfx1201": WMMA_12,
}
ARCHITECTURES: Mapping[str, int] = MappingProxyType({"gfx90a": 64, "gfx942": 64, "gfx1100": 32, "gfx1201": 32})
"""The architectures that we print for, and the threads of a warp."""
_ELEMENTS = {f16: "half", bf16: "i16", f32: "float", i8: "i8", i32: "i32"}


class Amdgpu(Machine):
    """One of AMD's architectures."""

    scope = amdgcn.AGENT
    private = amdgcn.PRIVATE
    approximations = Approximations(
        exp2=_unary(amdgcn.NEAR_EXP2),
        rsqrt=_unary(amdgcn.NEAR_RSQRT),
        reciprocal=_unary(amdgcn.NEAR_RECIPROCAL),
        quotient=_quotient,
        saturated_fma=_saturated,
        held=lambda t, x: x,
    )
    functions = MappingProxyType({**approximations.functions, "take_bytes": _bytes_taken})

    def __init__(self, architecture: str) -> None:
        if architecture not in ARCHITECTURES:
            raise UnsupportedError(f"code for {architecture}", hint=f"architectures are {', '.join(ARCHITECTURES)}")
        self.architecture, self.lanes = architecture, ARCHITECTURES[architecture]

    def header(self) -> str:
        return amdgcn.header()

    def number(self, t: Builder, register: Register) -> str:
        if register == "blocks":
            t.use(f"declare ptr addrspace(4) @{amdgcn.IMPLICIT}()")
            implicit = t.let(f"call ptr addrspace(4) @{amdgcn.IMPLICIT}()")
            return t.let(f"load i32, ptr addrspace(4) {implicit}, align 4")
        name = amdgcn.THREAD if register == "thread" else amdgcn.BLOCK
        t.use(f"declare i32 @{name}()")
        return t.let(f"call i32 @{name}()")

    def barrier(self, t: Builder) -> None:
        self._wait(t, amdgcn.BARRIER, amdgcn.WORKGROUP)

    def warp_barrier(self, t: Builder) -> None:
        self._wait(t, amdgcn.WARP_BARRIER, amdgcn.WAVEFRONT)

    def _wait(self, t: Builder, barrier: str, scope: str) -> None:
        """Barriers order nothing by themselves: what was stored before one is seen after it by two fences."""
        t.use(f"declare void @{barrier}()")
        t.emit(f"fence {scope}release")
        t.emit(f"call void @{barrier}()")
        t.emit(f"fence {scope}acquire")

    def from_partner(self, t: Builder, word: str, distance: int) -> str:
        if distance >= _GROUP:
            own = t.let(f"call i32 @{amdgcn.THREAD}()")
            t.use(f"declare i32 @{amdgcn.THREAD}()")
            return self.from_lane(t, word, t.let(f"xor i32 {own}, {distance}"))
        t.use(f"declare i32 @{amdgcn.SWIZZLE}(i32, i32 immarg)")
        return t.let(f"call i32 @{amdgcn.SWIZZLE}(i32 {word}, i32 {distance << 10 | _GROUP - 1})")

    def from_lane(self, t: Builder, word: str, lane: str) -> str:
        """Numbers of lanes count modulo those of a warp."""
        t.use(f"declare i32 @{amdgcn.PERMUTE}(i32, i32)")
        return t.let(f"call i32 @{amdgcn.PERMUTE}(i32 {t.let(f'shl i32 {lane}, 2')}, i32 {word})")

    def ballot(self, t: Builder, x: str, dtype: DType) -> str:
        kind = f"i{self.lanes}"
        if dtype.bits < self.lanes:
            raise GraphError(f"a ballot of {self.lanes} lanes as {dtype.name}", hint=f"keep {self.lanes} bits")
        t.use(f"declare {kind} @{amdgcn.BALLOT}{kind}(i1)")
        votes = t.let(f"call {kind} @{amdgcn.BALLOT}{kind}(i1 {x})")
        return votes if dtype.bits == self.lanes else t.let(f"zext {kind} {votes} to i{dtype.bits}")

    def copy(self, t: Builder, target: str, source: str, inside: str, nbytes: int) -> None:
        kind = f"<{nbytes // 4} x i32>"
        shared, device = f"ptr addrspace({SHARED})", f"ptr addrspace({GLOBAL})"

        def there() -> None:
            loaded = t.let(f"load {kind}, {device} {source}, align {nbytes}")
            t.emit(f"store {kind} {loaded}, {shared} {target}, align {nbytes}")

        def none() -> None:
            t.emit(f"store {kind} zeroinitializer, {shared} {target}, align {nbytes}")

        if inside == "true":
            return there()
        t.either(I1(inside), there, none)

    def commit(self, t: Builder) -> None:
        """Copies arrive in the order of the program."""

    def await_copies(self, t: Builder, pending: int) -> None:
        """They have arrived."""

    def prefetch(self, t: Builder, source: str, nbytes: str) -> None:
        """No instruction of these architectures brings bytes to L2 alone."""

    def multiply(self, t: Builder, by: MatrixInstruction, left: str, right: str, sums: str) -> None:
        if by not in _OF[self.architecture]:
            raise GraphError(f"{by.name} on {self.architecture}", hint="multiply elements one by one")
        assert by.left is not None and by.right is not None, "factors are in registers"
        name, factor, total, more = _INSTRUCTIONS[by]
        t.use(f"declare {total} @{name}({factor}, {factor}, {total}{', i32 immarg' * more.count('i32')})")
        # LLVM finds vectors among the registers of private arrays, whose elements were stored one by one.
        a, b = (
            _joined(t, pointer, layout, by.factors, factor) for pointer, layout in ((left, by.left), (right, by.right))
        )
        before = _joined(t, sums, by.sums, by.totals, total)
        totals = t.let(f"call {total} @{name}({factor} {a}, {factor} {b}, {total} {before}{more})")
        kind = _ELEMENTS[by.totals]
        for i in range(by.sums.count):
            part = t.let(f"extractelement {total} {totals}, i32 {i}")
            t.emit(f"store {kind} {part}, ptr {_element(t, sums, i, by.totals)}, align {by.totals.itemsize}")


def _joined(t: Builder, pointer: str, layout: LinearLayout, dtype: DType, kind: str) -> str:
    """The elements of a lane as one operand."""
    each = _ELEMENTS.get(dtype, f"i{dtype.bits}")
    elements = [
        t.let(f"load {each}, ptr {_element(t, pointer, i, dtype)}, align {dtype.itemsize}") for i in range(layout.count)
    ]
    if len(elements) == 1:
        return elements[0]
    vector, joined = f"<{len(elements)} x {each}>", "poison"
    for i, element in enumerate(elements):
        joined = t.let(f"insertelement {vector} {joined}, {each} {element}, i32 {i}")
    return joined if vector == kind else t.let(f"bitcast {vector} {joined} to {kind}")


def _element(t: Builder, pointer: str, index: int, dtype: DType) -> str:
    return pointer if not index else t.let(f"getelementptr inbounds i8, ptr {pointer}, i64 {index * dtype.itemsize}")


__all__ = ["ARCHITECTURES", "Amdgpu"]
