"""Bytes of two words in another order, by one instruction of NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dovetail.codegen.llvm.builder import Builder


def taken(t: Builder, x: str, y: str, selector: str) -> str:
    """A word of four bytes of two: each four bits of the selector number one of eight, those of x first."""
    t.use("declare i32 @llvm.nvvm.prmt(i32, i32, i32)")
    return t.let(f"call i32 @llvm.nvvm.prmt(i32 {x}, i32 {y}, i32 {selector})")


FUNCTIONS: Mapping[str, Callable[..., str]] = MappingProxyType({"take_bytes": taken})
"""By the ops of the loop language."""

__all__ = ["FUNCTIONS"]
