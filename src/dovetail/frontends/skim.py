"""An ONNX file at a glance: a digest of all that decides its graph, and where the arrays of its initializers lie.

The bytes of large initializers count by their length alone: they become parameters, whose numbers no pass looks at. The
onnx package is not needed for this, and takes longer to import than a compiled program takes to start.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dovetail.ir.dtype import BY_NAME, DType
from dovetail.ir.literal import Array

HASHED = 1 << 15
"""Initializers of up to so many bytes may become constants, so that their numbers count: 4,096 of eight bytes each."""
COPIED = 1 << 16
"""Arrays of up to so many bytes are copied; larger ones stay where they are in the mapped file."""
MOST_BYTES = 2**31 - 1

_DTYPES: Mapping[int, DType] = {
    code: BY_NAME[name]
    for code, name in {
        1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 10: "f16", 11: "f64", 12: "u32", 13: "u64",
        16: "bf16",
    }.items()
}  # fmt: skip
"""The element types whose bytes are an array as they stand."""

_GRAPH = 7 << 3 | 2
_INITIALIZER = 5 << 3 | 2
_DIMS, _PACKED_DIMS, _TYPE, _NAME, _RAW = 1 << 3, 1 << 3 | 2, 2 << 3, 8 << 3 | 2, 9 << 3 | 2


class _Broken(Exception):
    """Bytes that are no model, or one that is written in an odd way."""


@dataclass(slots=True)
class _Tensor:
    """An initializer as it is read."""

    dims: list[int] = field(default_factory=list[int])
    type: int = 0
    name: str = ""
    raw: tuple[int, int] | None = None
    odd: bool = False


@dataclass(frozen=True, slots=True)
class Skimmed:
    """What a file says at a glance."""

    digest: str
    arrays: Mapping[str, Array]
    """Initializers by name, read-only; those that are kept in another way than as plain bytes are left out."""


def skim(path: Path) -> Skimmed | None:
    """The file at a glance; None where only reading it whole can tell."""
    try:
        content = _mapped(path)
        return None if content is None else _Reader(content).skimmed()
    except (OSError, ValueError, IndexError, _Broken):
        return None


def _mapped(path: Path) -> mmap.mmap | None:
    # Opening a pipe would wait for its writer.
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode) or not 0 < state.st_size <= MOST_BYTES:
            return None
        return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(file)


class _Reader:
    """Walks the fields of the model, of its graph and of its initializers, and skips what the others hold."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.view = memoryview(content)
        self.state = hashlib.blake2b(digest_size=20)
        self.hashed = 0
        """All before this byte is in the digest, or is known not to count."""
        self.holes: list[tuple[int, int]] = []
        self.tensors: list[_Tensor] = []
        self.graphs = 0

    def skimmed(self) -> Skimmed:
        end = len(self.content)
        at = 0
        while at < end:
            tag, at = self.number(at)
            at = self.graph(at) if tag == _GRAPH else self.skip(tag, at)
        if at != end or self.graphs != 1:
            raise _Broken
        self.take(end)
        self.state.update(repr((end, self.holes)).encode())
        return Skimmed(self.state.hexdigest(), self.arrays())

    def graph(self, at: int) -> int:
        self.graphs += 1
        size, at = self.number(at)
        end = at + size
        while at < end:
            tag, at = self.number(at)
            at = self.initializer(at) if tag == _INITIALIZER else self.skip(tag, at)
        if at != end:
            raise _Broken
        return at

    def initializer(self, at: int) -> int:
        size, at = self.number(at)
        end = at + size
        tensor = _Tensor()
        while at < end:
            tag, at = self.number(at)
            if tag == _DIMS:
                dim, at = self.number(at)
                tensor.dims.append(dim)
            elif tag == _TYPE:
                tensor.type, at = self.number(at)
            elif tag in (_PACKED_DIMS, _NAME, _RAW):
                length, at = self.number(at)
                at = self.field(tensor, tag, at, at + length)
            else:
                # External data, elements one by one, segments: all but a name and a remark for people.
                tensor.odd |= tag not in (12 << 3 | 2, 14 << 3) or (tag == 14 << 3 and self.content[at] != 0)
                at = self.skip(tag, at)
        if at != end:
            raise _Broken
        if tensor.raw is not None and tensor.raw[1] > HASHED and not tensor.odd:
            start, length = tensor.raw
            self.take(start)
            self.hashed = start + length
            self.holes.append(tensor.raw)
        self.tensors.append(tensor)
        return at

    def field(self, tensor: _Tensor, tag: int, at: int, end: int) -> int:
        """One field of an initializer that has a length."""
        if end > len(self.content):
            raise _Broken
        if tag == _RAW:
            tensor.odd |= tensor.raw is not None
            tensor.raw = (at, end - at)
        elif tag == _NAME:
            tensor.name = str(self.view[at:end], "utf-8")
        else:
            while at < end:
                dim, at = self.number(at)
                tensor.dims.append(dim)
        return end

    def take(self, end: int) -> None:
        """All bytes up to here count."""
        self.state.update(self.view[self.hashed : end])
        self.hashed = end

    def number(self, at: int) -> tuple[int, int]:
        content = self.content
        value, shift = 0, 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
            shift += 7
            if shift > 63:
                raise _Broken

    def skip(self, tag: int, at: int) -> int:
        kind = tag & 7
        if kind == 2:
            size, at = self.number(at)
            return at + size
        if kind == 0:
            return self.number(at)[1]
        if kind in (1, 5):
            return at + (8 if kind == 1 else 4)
        raise _Broken

    def arrays(self) -> dict[str, Array]:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise _Broken
        found: dict[str, Array] = {}
        for tensor in self.tensors:
            dtype = _DTYPES.get(tensor.type)
            if dtype is None or tensor.raw is None or tensor.odd:
                continue
            start, length = tensor.raw
            if math.prod(tensor.dims) * dtype.itemsize == length:
                array = np.frombuffer(self.view[start : start + length], dtype.numpy).reshape(tensor.dims)
                found[tensor.name] = array.copy() if length <= COPIED else array
        return found
