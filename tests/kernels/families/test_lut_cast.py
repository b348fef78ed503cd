"""Casts to and from narrow types: every pattern of bits becomes what the meaning says."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.ir.dtype import ALL, FLOATS, INTEGERS, NARROW, DType, bf16, bool_, f8e8m0, f16, f32
from dovetail.ir.leaf import input
from dovetail.ops.conversion import EIGHT_BIT_FLOATS, Rounding
from tests.kernels.native import bits, compiled, same_bits


@pytest.mark.slow
@pytest.mark.parametrize("source", NARROW, ids=str)
def test_from_every_pattern(source: DType) -> None:
    x = input("x", source[256])
    made = {d.name: ops.cast(x, dtype=d) for d in ALL if d.kind != "complex" and d is not source}
    patterns = np.arange(256, dtype=np.uint8)
    if source.bits < 8:
        patterns &= (1 << source.bits) - 1
    same_bits(compiled(made), {"x": patterns.view(source.numpy)})


@pytest.mark.slow
@pytest.mark.parametrize("source", [f16, bf16, f32, bool_, *(d for d in INTEGERS if d.bits <= 16)], ids=str)
def test_to_every_narrow_type(source: DType) -> None:
    x = input("x", source["n"])
    made = {d.name: ops.cast(x, dtype=d) for d in NARROW}
    made |= {f"{d.name}_open": ops.cast_f8(x, dtype=d, saturate=False) for d in EIGHT_BIT_FLOATS}
    ways: tuple[Rounding, ...] = ("up", "down", "nearest")
    made |= {way: ops.cast_f8(x, dtype=f8e8m0, rounding=way) for way in ways}
    runner = compiled(made)
    for n in (0, 1, 17, 70_000):
        same_bits(runner, {"x": bits(source, n)})


def test_numbers_next_to_halves() -> None:
    halves = np.arange(1 << 12, dtype=np.uint16).astype(np.uint32) << 20
    near = np.concatenate([halves + d for d in (0, 1, 2**32 - 1)]).astype(np.uint32).view(np.float32)
    x = input("x", f32[near.size])
    same_bits(compiled({d.name: ops.cast(x, dtype=d) for d in NARROW}), {"x": near})


@pytest.mark.parametrize("target", [d for d in NARROW if d.is_integer], ids=str)
@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS], ids=str)
def test_whole_numbers_wrap(source: DType, target: DType) -> None:
    x = input("x", source[3, 100])
    turned = ops.permute(x, order=(-1, -2))
    made = {"plain": ops.cast(x, dtype=target), "turned": ops.cast(turned, dtype=target)}
    same_bits(compiled(made), {"x": bits(source, 3, 100)})
