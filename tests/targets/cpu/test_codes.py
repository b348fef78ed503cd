"""Code that is compiled before it is asked for: it is taken once, and what cannot be compiled is nobody's error yet."""

from __future__ import annotations

import ctypes

from dovetail.kernels.job import Part
from dovetail.targets.cpu.codes import foresee, foreseen
from dovetail.targets.cpu.jit import load


def test_what_was_foreseen_is_taken_once() -> None:
    foresee(Part("foreseen_seven", "define i64 @foreseen_seven() {\n  ret i64 7\n}"), None)
    made = foreseen("foreseen_seven")
    assert made is not None
    code = load([made])
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("foreseen_seven"))() == 7
    assert foreseen("foreseen_seven") is None


def test_what_cannot_be_compiled_is_not_there() -> None:
    foresee(Part("foreseen_nonsense", "define nonsense"), None)
    assert foreseen("foreseen_nonsense") is None
