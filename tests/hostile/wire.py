"""Messages written byte by byte, for files that no library writes."""

from __future__ import annotations


def number(value: int) -> bytes:
    """A number as messages have it: seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def field(index: int, content: bytes) -> bytes:
    """A field with its length in front: text, bytes or a message."""
    return number(index << 3 | 2) + number(len(content)) + content


def count(index: int, value: int) -> bytes:
    """A field that is a number."""
    return number(index << 3) + number(value)


HEAD = count(1, 8) + field(8, field(1, b"") + count(2, 17))
"""IR version 8 and opset 17."""


def model(graph: bytes, more: bytes = b"") -> bytes:
    """A model around the bytes of a graph."""
    return HEAD + field(7, graph) + more
