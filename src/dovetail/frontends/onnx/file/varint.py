"""Whole numbers as the protobuf format writes them: seven bits a byte, the lowest first."""

from __future__ import annotations

import mmap
from typing import TypeAlias

from dovetail.errors import LoadError

Content: TypeAlias = bytes | mmap.mmap


def number_at(content: Content, at: int) -> tuple[int, int]:
    """The number that starts at a byte, and where it ends; IndexError where the bytes end first."""
    value, shift = 0, 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise LoadError(f"a number of more than ten bytes at byte {at:,}", hint="check what the file is")


__all__ = ["Content", "number_at"]
