"""Alias scopes of dynamic shared memory: what is loaded from one allocation does not wait for stores to another."""

from __future__ import annotations

import re

import pytest

from dovetail.codegen.llvm.nvptx.ptx import module
from dovetail.ir.dtype import bf16
from dovetail.kernels.loops.ir import (
    Alloc,
    Barrier,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    add,
    mul,
)
from dovetail.targets.cuda.code.ptx_compiler import to_ptx

SIZE = 1024


def _copied(source: Tensor, target: Tensor) -> Loop:
    """Eight neighbours of each thread from one tensor to another, elsewhere for each block."""
    own = add(mul(ThreadIndex("thread"), Extent(8)), Name("e"))
    moved = add(mul(ThreadIndex("block"), Extent(8)), own)
    return Loop("e", Extent(8), (Store(target, (own,), Load(source, (moved,))),), kind="unrolled")


def _kernel(shared_bytes: int) -> Kernel:
    x, y = (Tensor(name, bf16, (2,)) for name in "xy")
    a, b = (Tensor(name, bf16, (2,), space="shared") for name in "ab")
    rooms: tuple[Statement, ...] = (Alloc("a", bf16, SIZE, "shared"), Alloc("b", bf16, SIZE, "shared"))
    body = (*rooms, _copied(x, a), Barrier(), _copied(a, b), Barrier(), _copied(b, y))
    return Kernel("moved", ("x", "y"), ("y",), "tile", body, launch=Launch(1, SIZE // 8, shared_bytes))


def _vectors(text: str) -> list[str]:
    return re.findall(r"(ld|st)\.shared\.v4", to_ptx(text, "sm_90a"))


@pytest.mark.parametrize("shared_bytes", [0, 4 * SIZE], ids=["static", "dynamic"])
def test_elements_go_from_one_allocation_to_another_at_once(shared_bytes: int) -> None:
    assert _vectors(module(_kernel(shared_bytes), {"x": 16, "y": 16})) == ["st", "ld", "st", "ld"]


def test_llvm_loads_them_one_by_one_where_it_does_not_know_that_they_are_apart() -> None:
    text = module(_kernel(4 * SIZE), {"x": 16, "y": 16})
    unknown = re.sub(r", !alias\.scope !\d+, !noalias !\d+", "", text)
    assert len(_vectors(unknown)) < 4


def test_other_memory_and_static_allocations_have_no_scopes() -> None:
    assert "!alias.scope" not in module(_kernel(0), {})
    text = module(_kernel(4 * SIZE), {})
    accesses = [line for line in text.splitlines() if re.search(r"(load|store) bfloat|(load|store) i16", line)]
    assert all(("addrspace(3)" in line) == ("!alias.scope" in line) for line in accesses) and accesses
