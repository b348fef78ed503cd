"""Conversions of f16 without an instruction, against NumPy: every f16, and every f32 that decides a rounding."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from dovetail.targets.cpu.fp16_fallback import NAMES, TEXT
from dovetail.targets.cpu.jit import compile_text

_AROUND = """
define void @widen_all(ptr %from, ptr %to, i64 %count) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %next ]
  %a = getelementptr i16, ptr %from, i64 %i
  %x = load half, ptr %a, align 2
  %y = call float @widen(half %x)
  %b = getelementptr i32, ptr %to, i64 %i
  store float %y, ptr %b, align 4
  %more = add i64 %i, 1
  %again = icmp ult i64 %more, %count
  br i1 %again, label %next, label %done
done:
  ret void
}

define void @narrow_all(ptr %from, ptr %to, i64 %count) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %next ]
  %a = getelementptr i32, ptr %from, i64 %i
  %x = load float, ptr %a, align 4
  %y = call half @narrow(float %x)
  %b = getelementptr i16, ptr %to, i64 %i
  store half %y, ptr %b, align 2
  %more = add i64 %i, 1
  %again = icmp ult i64 %more, %count
  br i1 %again, label %next, label %done
done:
  ret void
}
"""


@pytest.mark.slow
def test_every_f16_and_every_rounding() -> None:
    text = TEXT.replace(NAMES[0], "widen").replace(NAMES[1], "narrow") + _AROUND
    code = compile_text(text, vectorize=False)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    halves = np.arange(1 << 16, dtype=np.uint16)
    found = np.empty(halves.size, np.float32)
    kind(code.address("widen_all"))(halves.ctypes.data, found.ctypes.data, halves.size)
    with np.errstate(invalid="ignore"):  # some processors tell of a signalling NaN
        expected = halves.view(np.float16).astype(np.float32)
    same = (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))
    assert same.all()

    near = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    floats = (near | np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0xFFFF], np.uint32)).ravel()
    narrowed = np.empty(floats.size, np.float16)
    kind(code.address("narrow_all"))(floats.ctypes.data, narrowed.ctypes.data, floats.size)
    with np.errstate(all="ignore"):
        wanted = floats.view(np.float32).astype(np.float16)
    same = (narrowed.view(np.uint16) == wanted.view(np.uint16)) | (np.isnan(narrowed) & np.isnan(wanted))
    assert same.all()
