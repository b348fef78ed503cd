"""The exact remainder of f32 that GPUs compute, compiled for this host, against the C library's."""

from __future__ import annotations

import ctypes

import numpy as np

from dovetail.codegen.llvm.maths.remainder import with_exact_remainders
from dovetail.ir.literal import Array
from dovetail.targets.cpu.jit import load, machine_code

TEXT = """
define void @all(ptr %x, ptr %y, ptr %z, i64 %n) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %px = getelementptr float, ptr %x, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %pz = getelementptr float, ptr %z, i64 %i
  %a = load float, ptr %px
  %b = load float, ptr %py
  %c = frem float %a, %b
  store float %c, ptr %pz
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %n
  br i1 %more, label %next, label %done
done:
  ret void
}
"""


def remainders(x: Array, y: Array) -> Array:
    """What the function gives for pairs."""
    text = with_exact_remainders(TEXT)
    assert "frem" not in text
    code = load([machine_code(text)])
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(code.address("all"))
    found = np.empty_like(x)
    run(x.ctypes.data, y.ctypes.data, found.ctypes.data, x.size)
    return found


def pairs() -> tuple[Array, Array]:
    """Any bits, numbers near multiples of others, and the ends of the range against each other."""
    rng = np.random.default_rng(0)
    any_bits = [rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32) for _ in range(2)]
    odd = np.array([0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 1, -1, 3, 0.1, 3.4028235e38, np.inf, -np.inf, np.nan])
    ends = [m.ravel().astype(np.float32) for m in np.meshgrid(odd, odd)]
    divisors = rng.normal(size=1 << 14).astype(np.float32)
    multiples = (divisors * rng.integers(1, 1 << 20, divisors.size)).astype(np.float32)
    near = np.nextafter(multiples, np.float32(0))
    return np.concatenate([any_bits[0], ends[0], multiples, near]), np.concatenate(
        [any_bits[1], ends[1], divisors, divisors]
    )


def test_remainders_are_exact_to_the_bit() -> None:
    x, y = pairs()
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    got = remainders(x, y)
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    wrong = np.flatnonzero(~same)[:4]
    assert not wrong.size, f"{x[wrong]} by {y[wrong]}: got {got[wrong]}, expected {expected[wrong]}"
