"""Every elementwise primitive of every dtype that compiled code claims, against NumPy's meaning on any bits."""

from __future__ import annotations

from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.maths import functions as maths
from dovetail.errors import TypeRuleError
from dovetail.ir.dtype import ALL, DType, bool_, f32, whole_range
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.kernels.loops.body import is_compiled
from dovetail.ops.primitive import Primitive
from dovetail.targets.cpu.loops import SUPPORT
from tests.kernels.native import bits, compiled

COUNT = 1009
DTYPES = tuple(d for d in ALL if scalar.is_compiled(d))
ROUNDED = frozenset({*maths.NAMES, "rsqrt", "reciprocal"} - {"mod"})
"""What is right to a few units in the last place; everything else is exact."""


def any_bits(dtype: DType, seed: int) -> Array:
    """Random bits, and numbers at which something happens."""
    found = bits(dtype, COUNT, seed=seed).copy()
    rng = np.random.default_rng(seed)
    if dtype is bool_:
        return found
    if dtype.is_integer:
        least, largest = whole_range(dtype)
        odd = [0, 1, 2, 3, least, largest, largest - 1, *([-1, -2] if least else [])]
        small = rng.integers(-70 if least else 0, 70, COUNT)
    else:
        odd = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, np.inf, -np.inf, np.nan, 1e-7, 88.0, -100.0]
        small = rng.normal(size=COUNT) * rng.choice([1e-3, 1.0, 10.0, 100.0], COUNT)
    chosen = rng.random(COUNT)
    found = np.where(chosen < 0.2, rng.choice(np.array(odd, dtype.numpy), COUNT), found)
    return np.where(chosen > 0.6, small.astype(dtype.numpy), found)


def values_of(dtype: DType) -> dict[str, Value]:
    """Each primitive that takes a dtype and is compiled, on inputs of it."""
    given = (input("x", dtype[COUNT]), input("y", dtype[COUNT]), input("z", dtype[COUNT]))
    asked = input("asked", bool_[COUNT])
    found: dict[str, Value] = {}
    for op in ops.ALL:
        if op.elementwise and op.name not in ("cast", "cast_f8", "bitcast"):
            operands = (asked, *given[1:]) if op.name == "where" else given[: op.arity]
            try:
                value = op(*operands)
            except TypeRuleError:
                continue
            if is_compiled(value, SUPPORT):
                found[op.name] = value
    for other in DTYPES:
        if other is not dtype:
            found[f"cast {other.name}"] = ops.cast(given[0], dtype=other)
            if other.bits == dtype.bits:
                found[f"bits {other.name}"] = ops.bitcast(given[0], source=dtype.name, target=other.name)
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_it_is_what_numpy_says(dtype: DType) -> None:
    outputs = values_of(dtype)
    assert len(outputs) >= 15
    feeds = {name: any_bits(dtype, seed) for seed, name in enumerate("xyz")} | {"asked": any_bits(bool_, 3)}
    runner = compiled(outputs)
    got = runner.run({str(v.attrs["name"]): feeds[v.attrs["name"]] for v in runner.plan.graph.inputs})
    for name, value in outputs.items():
        _judge(name, value, got[name], [feeds[v.attrs["name"]] for v in value.operands])


def _judge(name: str, value: Value, got: Array, arrays: list[Array]) -> None:
    op = value.op
    assert isinstance(op, Primitive)
    expected: Any = op.compute(*arrays, **value.attrs)
    with np.errstate(all="ignore"):
        same = (got == expected) | ((got != got) & (expected != expected))
        if op.name in ROUNDED and value.dtype.is_float:
            same |= _is_near(got, op.compute(*[a.astype(np.float64) for a in arrays]), value.dtype)
    wrong = np.flatnonzero(~same)[:3]
    assert not wrong.size, f"{name}: {[a[wrong] for a in arrays]} gives {got[wrong]}, not {expected[wrong]}"


def _is_near(got: Array, exact: Any, dtype: DType) -> Any:
    """Within a few units in the last place of what float64 gives; a unit of a denormal is that of the least normal."""
    limits = cast(Any, ml_dtypes.finfo)(dtype.numpy)
    unit = 4e-7 if dtype is f32 else 2 * float(limits.eps)
    off = np.abs(got.astype(np.float64) - exact)
    near = off <= unit * np.maximum(np.abs(exact), float(limits.tiny))
    return near | (np.isinf(got) & (np.abs(exact) >= float(limits.max)) & (np.sign(exact) == np.sign(got)))


def test_functions_are_those_that_maths_has() -> None:
    assert scalar.FUNCTIONS == maths.NAMES
    assert all(maths.has(name, dtype) for name in maths.NAMES for dtype in DTYPES if dtype.is_float)


@pytest.mark.slow
def test_literals_keep_every_bit() -> None:
    """A constant in code is the constant in memory."""
    for dtype in DTYPES:
        for number in (0, 1, *whole_range(dtype)) if not dtype.is_float else (0.0, -0.0, 0.1, np.inf, 1e-30, 3.0e38):
            x = input("x", dtype[3])
            with np.errstate(over="ignore"):
                wanted = np.asarray(number, np.float64 if dtype.is_float else None).astype(dtype.numpy)
            chosen = ops.where(input("asked", bool_[3]), x, number)
            got = compiled(chosen).run({"x": np.zeros(3, dtype.numpy), "asked": np.zeros(3, np.bool_)})["y"]
            assert got.tobytes() == np.full(3, wanted).tobytes(), f"{number} as {dtype.name}"
