"""Instructions of tensor cores and asynchronous copies, as LLVM's intrinsics for NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.gpu.matrices import loaded, word
from dovetail.codegen.llvm.nvptx import nvvm
from dovetail.errors import GraphError
from dovetail.ir.dtype import bf16, f16
from dovetail.kernels.loops.ir import MultiplyShared
from dovetail.kernels.matrix_instruction import MMA_BF16, MMA_F16, MMA_I8, MMA_TF32, MatrixInstruction

_WORDS = "{ i32, i32, i32, i32 }"


def copy(t: Builder, target: str, source: str, inside: str, nbytes: int = 16) -> None:
    """Copy 16 bytes or fewer to shared memory; none of the source is read where `inside`, an i1, does not hold."""
    shared, device = f"ptr addrspace({nvvm.SHARED})", f"ptr addrspace({nvvm.GLOBAL})"
    if nbytes < 16 and inside == "true":
        t.use(f"declare void @{nvvm.COPY_FEW}{nbytes}({shared}, {device})")
        return t.emit(f"call void @{nvvm.COPY_FEW}{nbytes}({shared} {target}, {device} {source})")
    name = nvvm.COPY if nbytes == 16 else f"{nvvm.COPY_FEW}{nbytes}.s"
    t.use(f"declare void @{name}({shared}, {device}, i32)")
    count = t.let(f"select i1 {inside}, i32 {nbytes}, i32 0")
    t.emit(f"call void @{name}({shared} {target}, {device} {source}, i32 {count})")


def prefetch(t: Builder, source: str, nbytes: str) -> None:
    """Bring bytes, an i64, to the cache of the device."""
    count = t.let(f"trunc i64 {nbytes} to i32")
    operands = f"ptr addrspace({nvvm.GLOBAL}) {source}, i32 {count}"
    t.emit(nvvm.assembly("cp.async.bulk.prefetch.L2.global [$0], $1;", "l,r", operands))


def commit(t: Builder) -> None:
    t.use(f"declare void @{nvvm.COMMIT_COPIES}()")
    t.emit(f"call void @{nvvm.COMMIT_COPIES}()")


def wait(t: Builder, pending: int) -> None:
    t.use(f"declare void @{nvvm.AWAIT_COPIES}(i32 immarg)")
    t.emit(f"call void @{nvvm.AWAIT_COPIES}(i32 {pending})")


def load_matrices(t: Builder, target: str, source: str, *, transposed: bool) -> None:
    """Eight 16-bit elements of each lane from shared memory to a private array."""
    name, pointer = nvvm.LOAD_TRANSPOSED if transposed else nvvm.LOAD_MATRICES, f"ptr addrspace({nvvm.SHARED})"
    t.use(f"declare {_WORDS} @{name}({pointer})")
    matrices = t.let(f"call {_WORDS} @{name}({pointer} {source})")
    for i in range(4):
        part = t.let(f"extractvalue {_WORDS} {matrices}, {i}")
        t.emit(f"store i32 {part}, ptr {word(t, target, i)}, align 4")


class _Mma(NamedTuple):
    """An intrinsic, and the types of its words: of factors and of sums."""

    name: str
    factor: str
    sum: str


_MMA: Mapping[MatrixInstruction, _Mma] = {
    MMA_F16: _Mma(nvvm.MULTIPLY_F16, "<2 x half>", "float"),
    MMA_BF16: _Mma(nvvm.MULTIPLY_BF16, "i32", "float"),
    MMA_TF32: _Mma(nvvm.MULTIPLY_TF32, "i32", "float"),
    MMA_I8: _Mma(nvvm.MULTIPLY_I8, "i32", "i32"),
}
"""By instructions of a warp."""


def multiply(t: Builder, by: MatrixInstruction, left: str, right: str, sums: str) -> None:
    """Add a product of matrices to sums; all are private arrays."""
    if by not in _MMA:
        raise GraphError(f"{by.name} on tensor cores", hint="multiply elements one by one")
    assert by.left is not None and by.right is not None, "factors are in registers"
    name, kind, total = _MMA[by]
    words = [layout.count * by.factors.itemsize // 4 for layout in (by.left, by.right)]
    count = by.sums.count
    result = f"{{ {', '.join([total] * count)} }}"
    t.use(f"declare {result} @{name}({', '.join([kind] * sum(words) + [total] * count)})")
    operands = loaded(t, left, kind, words[0]) + loaded(t, right, kind, words[1]) + loaded(t, sums, total, count)
    products = t.let(f"call {result} @{name}({', '.join(operands)})")
    for i in range(count):
        part = t.let(f"extractvalue {result} {products}, {i}")
        t.emit(f"store {total} {part}, ptr {word(t, sums, i)}, align 4")


def fence(t: Builder) -> None:
    """Order what this thread wrote to shared memory before what tensor cores read of it."""
    t.emit(nvvm.assembly("fence.proxy.async.shared::cta;"))


def multiply_shared(t: Builder, sums: str, left: str, right: str, of: MultiplyShared) -> None:
    """Start to add a product of 64 rows and some columns to private sums; waits for the one before."""
    dtype, columns, panel, along_k = of.left.dtype, of.columns, of.panel_bytes, of.right_along_k
    if dtype not in (f16, bf16) or columns % 8 or not 8 <= columns <= 256:
        raise GraphError(f"{columns} columns of {dtype.name} on tensor cores", hint="a multiple of 8 up to 256")
    count = columns // 2
    accumulators = [t.let(f"load float, ptr {word(t, sums, i)}, align 4") for i in range(count)]
    words = loaded(t, left, "i32", of.depth // 4) if of.left.space == "private" else []
    others = words or [f"i64 {_descriptor(t, left, of.left_along_k, panel)}"]
    others.append(f"i64 {_descriptor(t, right, along_k, panel)}")
    registers = ", ".join(f"${i}" for i in range(count))
    first, last, kind = 2 * count, 2 * count + len(others) - 1, dtype.name
    lines = ["{", ".reg .b64 a, b;", *([] if words else [f"mov.b64 a, ${first};"]), f"mov.b64 b, ${last};"]
    lines.append("wgmma.fence.sync.aligned;")
    for step in range(of.depth // 16):
        if step:
            lines += [] if words else [f"add.s64 a, a, {_STEP[of.left_along_k]};"]
            is_panel = along_k and step % 4 == 0
            lines.append(f"add.s64 b, b, {(panel >> 4) - 3 * _STEP[True] if is_panel else _STEP[along_k]};")
        name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
        each = ", ".join(f"${first + 4 * step + i}" for i in range(4))
        factor, turned = (f"{{{each}}}", "") if words else ("a", f" {int(not of.left_along_k)},")
        lines.append(f"{name} {{{registers}}}, {factor}, b, 1, 1, 1,{turned} {int(not along_k)};")
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 1;", "}"]
    _through(t, sums, accumulators, lines, others)


def await_products(t: Builder, sums: str, columns: int) -> None:
    """Wait for products; their sums pass through, so that no instruction reads them before."""
    accumulators = [t.let(f"load float, ptr {word(t, sums, i)}, align 4") for i in range(columns // 2)]
    _through(t, sums, accumulators, ["wgmma.wait_group.sync.aligned 0;"], ())


def _through(t: Builder, sums: str, accumulators: Sequence[str], lines: Sequence[str], others: Sequence[str]) -> None:
    """Instructions that change the sums in place, in registers."""
    count = len(accumulators)
    text = "\\0A".join(lines)
    kinds = ["l" if x.startswith("i64 ") else "r" for x in others]
    constraints = ",".join(["=f"] * count + [str(i) for i in range(count)] + kinds + ["~{memory}"])
    passed = ", ".join([f"float {x}" for x in accumulators] + [*others])
    struct = f"{{ {', '.join(['float'] * count)} }}"
    results = t.let(nvvm.assembly(text, constraints, passed, struct))
    for i in range(count):
        part = t.let(f"extractvalue {struct} {results}, {i}")
        t.emit(f"store float {part}, ptr {word(t, sums, i)}, align 4")


_STEP = {True: 2, False: 128}
"""How far a descriptor moves for the next 16 of k, in units of 16 bytes: along a line, or by 16 lines."""
_SWIZZLED = 1 << 62
"""Lines of 128 bytes whose chunks are permuted by the number of the line."""
_EIGHT_LINES = (1024 >> 4) << 32


def _descriptor(t: Builder, pointer: str, along_k: bool, panel_bytes: int) -> str:
    """The descriptor of a matrix in shared memory, which tensor cores read."""
    leading = 1 if along_k else panel_bytes >> 4
    address = t.let(f"ptrtoint ptr addrspace({nvvm.SHARED}) {pointer} to i32")
    chunk = t.let(f"lshr i32 {t.let(f'and i32 {address}, 262143')}, 4")
    return t.let(f"or i64 {t.let(f'zext i32 {chunk} to i64')}, {_SWIZZLED | _EIGHT_LINES | leading << 16}")


__all__ = [
    "await_products",
    "commit",
    "copy",
    "fence",
    "load_matrices",
    "multiply",
    "multiply_shared",
    "wait",
]
