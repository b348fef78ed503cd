"""Vectors in LLVM text: loads and stores under a mask."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from dovetail.codegen.llvm.function import Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.gemm.amx.tiles import row_function
from dovetail.targets.cpu.jit import compile_text
from tests.codegen.normal import signatures
from tests.kernels.machines import NEON, code_for

BARE, MASKED = CpuDevice(128, 32), CpuDevice(128, 32, ("masked_memory",))


def copying(device: CpuDevice) -> str:
    """`copy(x, y, first, count)`: lanes from `first` on that are within 0 to `count`."""
    t = VectorBuilder(device)
    mask = t.lanes_within(I64("%first"), I64("%count"))
    x, y = (t.ptr_add(Ptr(name), t.mul(I64("%first"), 4)) for name in ("%x", "%y"))
    t.store_masked(mask, t.load_masked(mask, x), y)
    given = (Parameter("ptr", "x"), Parameter("ptr", "y"), Parameter("i64", "first"), Parameter("i64", "count"))
    made = t.function(Signature("copy", given))
    return "\n".join([*made.uses, made.text])


@pytest.mark.parametrize("device", [BARE, MASKED], ids=["bare", "masked"])
@pytest.mark.parametrize("first", [-4, -2, 0, 3, 6, 8])
@pytest.mark.parametrize("count", [0, 1, 7, 10])
def test_only_lanes_of_the_mask_are_written(device: CpuDevice, first: int, count: int) -> None:
    x, y = np.arange(12, dtype=np.float32), np.full(12, 99, np.float32)
    compiled = compile_text(copying(device), optimize=False)
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    ctypes.CFUNCTYPE(None, *kinds)(compiled.address("copy"))(x.ctypes.data, y.ctypes.data, first, count)
    expected = np.full(12, 99, np.float32)
    for i in range(max(first, 0), min(first + 4, count)):
        expected[i] = x[i]
    assert (y == expected).all()


def test_a_full_vector_takes_one_store() -> None:
    """LLVM spells a masked store lane by lane for NEON; a full vector takes a path without that."""
    assert "str\tq" in code_for(NEON, copying(BARE), optimize=False)
    assert "str\tq" not in code_for(NEON, copying(MASKED), optimize=False)


def test_an_intrinsic_has_one_signature() -> None:
    """LLVM 22 takes declarations of before as well; older ones take those of no other version, and none takes two."""
    t = VectorBuilder(CpuDevice(512, 32, ("masked_memory",)))
    x, mask = Ptr("%x"), t.lanes_within(I64("%first"), I64("%count"))
    found = t.fadd(t.load_masked(mask, x), t.load_first(x, 3))
    t.store_masked(mask, t.gather(mask, x, I64("%count"), found), x)
    made = t.function(Signature("f", tuple([Parameter(kind, name) for kind, name in (("ptr", "x"), *_SIZES)])))
    texts = ["\n".join([*made.uses, made.text]), row_function(emulated=False, rest=5)[0].text]
    declared = signatures(texts)
    assert {len(each) for each in declared.values()} == {1}
    assert sum("masked" in name for name in declared) == 3


_SIZES = (("i64", "first"), ("i64", "count"))
