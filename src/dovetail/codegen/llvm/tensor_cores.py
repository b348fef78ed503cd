"""Instructions of tensor cores and asynchronous copies, as LLVM's intrinsics for NVIDIA GPUs."""

from __future__ import annotations

from dovetail.codegen.llvm import nvvm
from dovetail.codegen.llvm.builder import Builder
from dovetail.errors import GraphError
from dovetail.ir.dtype import DType, bf16, f16

_SUMS = "{ float, float, float, float }"
_WORDS = "{ i32, i32, i32, i32 }"


def copy(t: Builder, target: str, source: str, inside: str) -> None:
    """Copy 16 bytes to shared memory; none of the source is read where `inside`, an i1, does not hold."""
    shared, device = f"ptr addrspace({nvvm.SHARED})", f"ptr addrspace({nvvm.GLOBAL})"
    t.use(f"declare void @{nvvm.COPY}({shared}, {device}, i32)")
    count = t.let(f"select i1 {inside}, i32 16, i32 0")
    t.emit(f"call void @{nvvm.COPY}({shared} {target}, {device} {source}, i32 {count})")


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
    found = t.let(f"call {_WORDS} @{name}({pointer} {source})")
    for i in range(4):
        word = t.let(f"extractvalue {_WORDS} {found}, {i}")
        t.emit(f"store i32 {word}, ptr {_word(t, target, i)}, align 4")


def multiply(t: Builder, sums: str, left: str, right: str, dtype: DType) -> None:
    """Add a product of matrices to sums; all are private arrays."""
    if dtype not in (f16, bf16):
        raise GraphError(f"matrices of {dtype.name} on tensor cores", hint="multiply elements one by one")
    name, kind = (nvvm.MULTIPLY_F16, "<2 x half>") if dtype is f16 else (nvvm.MULTIPLY_BF16, "i32")
    t.use(f"declare {_SUMS} @{name}({', '.join([kind] * 6 + ['float'] * 4)})")
    given = _loaded(t, left, kind, 4) + _loaded(t, right, kind, 2) + _loaded(t, sums, "float", 4)
    found = t.let(f"call {_SUMS} @{name}({', '.join(given)})")
    for i in range(4):
        part = t.let(f"extractvalue {_SUMS} {found}, {i}")
        t.emit(f"store float {part}, ptr {_word(t, sums, i)}, align 4")


def _loaded(t: Builder, pointer: str, kind: str, count: int) -> list[str]:
    return [f"{kind} {t.let(f'load {kind}, ptr {_word(t, pointer, i)}, align 4')}" for i in range(count)]


def _word(t: Builder, pointer: str, index: int) -> str:
    return pointer if index == 0 else t.let(f"getelementptr inbounds i8, ptr {pointer}, i64 {4 * index}")


__all__ = ["commit", "copy", "load_matrices", "multiply", "wait"]
