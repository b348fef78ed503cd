"""Functions of f32 over the whole range, against float64; and that vectors are made of those that models live on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.codegen.llvm.loops import function
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.ir.dtype import f32, f64
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Job
from dovetail.ops.primitive import Primitive
from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.jit import assembly
from tests.kernels.native import compiled

WORST = 4e-7
COUNT = 1 << 15
BY_NAME = {op.name: op for op in ops.ALL}


def whole_range() -> Array:
    """Every exponent of f32 with both signs, and the ends."""
    found = np.linspace(0, 0x7F800000, COUNT).astype(np.uint32).view(np.float32)
    found[1::2] *= -1
    found[:6] = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0]
    return found


def where_it_bends() -> Array:
    return np.concatenate([np.linspace(low, -low, COUNT // 4) for low in (-1.2, -12.0, -110.0, -5e4)]).astype(
        np.float32
    )


def ran(name: str, *arrays: Array) -> Array:
    given = [input(f"x{i}", f32[a.size]) for i, a in enumerate(arrays)]
    return compiled(BY_NAME[name](*given)).run({f"x{i}": a for i, a in enumerate(arrays)})["y"]


def exactly(name: str, *arrays: Array) -> Any:
    return BY_NAME[name].compute(*[a.astype(np.float64) for a in arrays])


def assert_near(got: Array, exact: Any) -> None:
    """Within the tolerance, denormals within a unit of their last place, overflow as infinity, NaN as NaN."""
    with np.errstate(all="ignore"):
        largest = float(np.finfo(np.float32).max)
        off = np.abs(got.astype(np.float64) - exact)
        fine = off <= np.maximum(WORST * np.abs(exact), 1.5e-45)
        fine |= (got == exact) | (np.isnan(got) & np.isnan(exact))
        fine |= (np.abs(exact) > largest * (1 - WORST)) & (np.abs(got) >= largest * (1 - WORST)) & (got * exact > 0)
    wrong = np.flatnonzero(~fine)[:4]
    assert not wrong.size, f"got {got[wrong]}, expected {exact[wrong]}"


ONE_OPERAND = [name for name in maths.NAMES if name not in maths.BINARY]


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_functions_of_one_number(name: str) -> None:
    for x in (whole_range(), where_it_bends()):
        x = x[::4] if name == "erf" else x
        assert_near(ran(name, x), exactly(name, x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_functions_of_two_numbers(name: str) -> None:
    rng = np.random.default_rng(0)
    odd = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-45, 3e38], np.float32)
    a, b = (m.ravel().astype(np.float32) for m in np.meshgrid(odd, odd))
    assert_near(ran(name, a, b), exactly(name, a, b))
    x = whole_range()
    assert_near(ran(name, x, rng.permutation(x)), exactly(name, x, np.random.default_rng(0).permutation(x)))
    small = np.abs(rng.normal(size=COUNT) * 5).astype(np.float32)
    y = (rng.normal(size=COUNT) * 20).astype(np.float32)
    assert_near(ran(name, small, y), exactly(name, small, y))
    whole = np.rint(y)
    assert_near(ran(name, -small, whole), exactly(name, -small, whole))


@pytest.mark.slow
def test_the_remainder_has_the_sign_of_the_divisor() -> None:
    rng = np.random.default_rng(0)
    odd = np.array([0.0, -0.0, 1.0, -1.5, 3.0, np.inf, -np.inf, np.nan], np.float32)
    a, b = (m.ravel() for m in np.meshgrid(odd, odd))
    x, y = (rng.normal(size=COUNT).astype(np.float32) * k for k in (100, 3))
    for pair in ((a, b), (x, y)):
        with np.errstate(all="ignore"):
            expected = np.mod(*pair)
        got = ran("mod", *pair)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got[expected == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_are_reduced_exactly_whatever_their_size(name: str) -> None:
    """11 * 2**k is never near a multiple of pi by accident; f32 next to multiples of pi / 2 is the hard case."""
    near = (np.arange(1, 20_000) * (np.pi / 2)).astype(np.float32)
    huge = (11.0 * 2.0 ** np.arange(0, 124)).astype(np.float32)
    plain: Callable[[float], float] = getattr(math, name)
    for x in (near, huge):
        assert_near(ran(name, x), np.array([plain(float(v)) for v in x]))


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_functions_of_f64(name: str) -> None:
    x = np.concatenate([np.linspace(-3, 3, 500), np.linspace(-700, 700, 500), [0.0, np.inf, -np.inf, np.nan]])
    got = compiled(BY_NAME[name](input("x", f64[x.size]))).run({"x": x})["y"]
    expected = BY_NAME[name].compute(x)
    np.testing.assert_allclose(got, expected, rtol=1e-15 * (16 if name == "tanh" else 4))


@pytest.mark.parametrize("name", ["exp", "erf", "tanh", "sigmoid", "log", "softplus", "sin", "pow"])
def test_loops_of_functions_become_vectors(name: str) -> None:
    """The assembly of a map calls nothing and works on vectors as wide as the machine has."""
    op: Primitive = BY_NAME[name]
    kernel = _kernel(op)
    text, uses = function(kernel)
    written = assembly("\n".join([maths.library(uses), text]))
    wide = {512: "zmm", 256: "ymm", 128: "xmm"}[host().vector_bits]
    if not host().is_arm:
        assert re.search(rf"v(mul|fm\w+)p[sd]\s.*%{wide}", written), "no vector arithmetic"
    assert not re.search(r"\bcall[ql]?\s", written), "a function is called"


def _kernel(op: Primitive) -> Kernel:
    given = [input(f"x{i}", f32[4096]) for i in range(op.arity or 0)]
    runner = compiled(op(*given))
    (job,) = (job for part in runner.graph.sections for job in part.jobs)
    assert isinstance(job, Job) and isinstance(job.kernel, Kernel)
    return job.kernel
