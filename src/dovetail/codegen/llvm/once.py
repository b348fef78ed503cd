"""The head of a workspace: words in which a kernel notes what it packed last."""

from __future__ import annotations

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I1, I64, Ptr

HEAD = 64
"""Bytes at the start of a workspace: words there say which block was packed last, -1 when a step begins."""


def once_for(t: Builder, scratch: Ptr, word: int, number: I64) -> I1:
    """Whether a word of the workspace's head differs from a number, which it is set to."""
    at = t.ptr_add(scratch, 8 * word)
    fresh = t.icmp("ne", number, t.load_i64(at))
    t.store_i64(number, at)
    return fresh


__all__ = ["HEAD", "once_for"]
