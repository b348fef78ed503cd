"""Conversions of floats of 8 bits on NVIDIA GPUs, which convert two at a time; the other one is 0 here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from dovetail.codegen.llvm.builder import Builder

FORMATS = ("e4m3", "e5m2")


def narrowed(t: Builder, x: str, *, to: str) -> str:
    """An f32 rounded to the nearest number of a format and kept in range, as i8."""
    t.use(f"declare i16 @llvm.nvvm.ff.to.{to}x2.rn(float, float)")
    return t.let(f"trunc i16 {t.let(f'call i16 @llvm.nvvm.ff.to.{to}x2.rn(float 0.0, float {x})')} to i8")


def widened(t: Builder, x: str, *, of: str) -> str:
    """The f16 that an i8 is in a format: it holds them all."""
    t.use(f"declare <2 x half> @llvm.nvvm.{of}x2.to.f16x2.rn(i16)")
    pair = t.let(f"call <2 x half> @llvm.nvvm.{of}x2.to.f16x2.rn(i16 {t.let(f'zext i8 {x} to i16')})")
    return t.let(f"extractelement <2 x half> {pair}, i32 0")


FUNCTIONS: Mapping[str, Callable[..., str]] = MappingProxyType(
    {f"{kind}_of_f32": partial(narrowed, to=kind) for kind in FORMATS}
    | {f"f16_of_{kind}": partial(widened, of=kind) for kind in FORMATS}
)
"""By the ops of the loop language."""

__all__ = ["FUNCTIONS"]
