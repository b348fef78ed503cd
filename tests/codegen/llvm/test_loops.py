"""LLVM's text of the loop language: what is compiled does what the statements say."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from dovetail.codegen.llvm.loops import function
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.errors import GraphError
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_, f32, f64, i64
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    add,
    minimum,
    sizes_in,
)
from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.jit import assembly, compile_text

N = symbol("n")
X, Y = Tensor("x", f32, (4,)), Tensor("y", f32, (4,))
STEP = Name("i")


def kernel(*body: Statement, name: str = "k") -> Kernel:
    return Kernel(name, ("x", "y"), ("y",), "tile", body, sizes=sizes_in(body))


def ran(k: Kernel, x: Array, y: Array, *sizes: int, tiles: tuple[int, int] = (0, 1), scratch: int = 64) -> Array:
    """y after the tiles of a kernel."""
    text, uses = function(k)
    code = compile_text("\n".join([maths.library(uses), text]))
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    words = np.array([x.ctypes.data, y.ctypes.data, *sizes], np.int64)
    room = np.zeros(scratch, np.uint8)
    call(code.address(k.name))(words.ctypes.data, *tiles, room.ctypes.data)
    return y


def total(x: Expr, name: str = "s") -> Call:
    return Call("add", (Name(name, f32), x), f32)


def test_a_loop_over_a_size_that_is_given_late() -> None:
    k = kernel(Loop("i", Extent(N), (Store(Y, (STEP,), Call("mul", (Load(X, (STEP,)), Number(2.0, f32)), f32)),)))
    for n in (0, 1, 17):
        x, y = np.arange(20, dtype=np.float32), np.full(20, -1, np.float32)
        ran(k, x, y, n)
        np.testing.assert_array_equal(y, np.where(np.arange(20) < n, x * 2, -1))


def test_only_the_tiles_that_are_asked_for_run() -> None:
    k = kernel(Store(Y, (Name("tile"),), Load(X, (Name("tile"),))))
    x, y = np.arange(8, dtype=np.float32) + 1, np.zeros(8, np.float32)
    np.testing.assert_array_equal(ran(k, x, y, tiles=(2, 5)), [0, 0, 3, 4, 5, 0, 0, 0])


def test_scalars_that_change_and_conditions() -> None:
    """The sum of the elements above 3, through nested scopes."""
    above = Call("greater", (Load(X, (STEP,)), Number(3.0, f32)), bool_)
    k = kernel(
        Set("s", Number(0.0, f32)),
        Loop("i", Extent(8), (When(above, (Set("s", total(Load(X, (STEP,)))),)),)),
        Store(Y, (ZERO,), Name("s", f32)),
    )
    assert ran(k, np.arange(8, dtype=np.float32), np.zeros(1, np.float32))[0] == 4 + 5 + 6 + 7


def test_a_loop_hides_a_scalar_of_its_name_and_gives_it_back() -> None:
    k = kernel(
        Set("i", Extent(5)),
        Loop("i", Extent(2), (Store(Y, (STEP,), Call("cast", (STEP,), f32)),)),
        Store(Y, (Extent(2),), Call("cast", (STEP,), f32)),
    )
    np.testing.assert_array_equal(ran(k, np.zeros(1, np.float32), np.zeros(3, np.float32)), [0, 1, 5])


def test_a_scalar_has_one_dtype() -> None:
    k = kernel(Set("s", Number(0.0, f32)), Set("s", Number(0, i64)))
    with pytest.raises(GraphError, match="f32 and i64"):
        function(k)


def test_strides_offsets_and_bool_in_memory() -> None:
    x = Tensor("x", f32, (24, -8), 16)
    flags = Tensor("y", bool_, (1,))
    at = (Name("r"), STEP)
    inner = Store(
        flags,
        (add(Call("mul", (Name("r"), Extent(3)), i64), STEP),),
        Call("less", (Load(x, at), Number(5.0, f32)), bool_),
    )
    k = kernel(Loop("r", Extent(2), (Loop("i", Extent(3), (inner,)),)))
    y = np.full(6, 7, np.uint8)
    ran(k, np.arange(12, dtype=np.float32), y)
    np.testing.assert_array_equal(y, [1, 1, 1, 0, 0, 0])


def test_scratch_is_memory_of_the_worker() -> None:
    room = Tensor("scratch", f64, (8,), 16)
    fill = Loop("i", Extent(3), (Store(room, (STEP,), Call("cast", (Load(X, (STEP,)),), f64)),))
    back = Loop(
        "i", Extent(3), (Store(Y, (STEP,), Call("cast", (Load(room, (Call("sub", (Extent(2), STEP), i64),)),), f32)),)
    )
    y = ran(kernel(fill, back), np.array([1, 2, 3], np.float32), np.zeros(3, np.float32))
    np.testing.assert_array_equal(y, [3, 2, 1])


@pytest.mark.slow
def test_only_the_running_sum_may_be_reordered() -> None:
    """A sum in lanes is free to reorder; the difference inside it is what the statements say."""
    element = Call("sub", (Load(X, (STEP,)), Number(1.0, f32)), f32)
    body = (Set("s", total(element)),)
    sums = [
        kernel(
            Set("s", Number(0.0, f32)),
            Loop("i", Extent(N), body, reassociate=free),
            Store(Y, (ZERO,), Name("s", f32)),
        )
        for free in (False, True)
    ]
    plain, free = (function(k)[0] for k in sums)
    assert "reassoc" not in plain
    assert len(re.findall("fadd reassoc", free)) == 1
    assert not re.search("fsub.*reassoc", free)
    if not host().is_arm:
        wide = {512: "zmm", 256: "ymm", 128: "xmm"}[host().vector_bits]
        assert re.search(rf"v?addps\s.*%{wide}", assembly(free))
        assert not re.search(rf"v?addps\s.*%{wide}", assembly(plain))
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    for k in sums:
        got = ran(k, x, np.zeros(1, np.float32), 1000)[0]
        np.testing.assert_allclose(got, (x.astype(np.float64) - 1).sum(), rtol=1e-5)


def test_equal_statements_have_equal_text() -> None:
    def text() -> str:
        return function(kernel(Loop("i", minimum(Extent(N), Extent(9)), (Store(Y, (STEP,), Load(X, (STEP,))),))))[0]

    assert text() == text()
