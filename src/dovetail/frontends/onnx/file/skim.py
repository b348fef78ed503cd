"""An ONNX file at a glance: a digest of all that decides its graph, and where the arrays of its initializers lie.

The bytes of large initializers count by their length alone: they become parameters, whose numbers no pass looks at. The
onnx package is not needed for this, and takes longer to import than a compiled program takes to start. Large arrays are
copied out of the file while others go on; nothing of it stays mapped, as files may be written anew.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError
from dovetail.frontends.onnx.file.varint import Content, number_at
from dovetail.ir.attribute import HIGHEST_RANK
from dovetail.ir.dtype import BY_NAME, DType
from dovetail.ir.literal import Array

HASHED = 1 << 15
"""Initializers of up to so many bytes may become constants, so that their numbers count: 4,096 of eight bytes each."""
ASIDE = 1 << 22
"""From so many bytes on, arrays are copied by a thread of their own."""
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


@dataclass(frozen=True, slots=True)
class Place:
    """An array in the file."""

    offset: int
    length: int
    dtype: DType
    shape: tuple[int, ...]


@dataclass(slots=True)
class _Tensor:
    """An initializer as it is read: where its message and the field with its bytes start and end."""

    tag: int
    start: int
    end: int
    dims: list[int] = field(default_factory=list[int])
    type: int = 0
    name: str = ""
    raw: tuple[int, int, int] | None = None
    odd: bool = False

    @property
    def is_large(self) -> bool:
        return self.raw is not None and self.raw[2] - self.raw[1] > HASHED and not self.odd


class Reading:
    """Arrays of a file, read-only. Large ones are filled while others go on: `finish` waits for them."""

    def __init__(self, content: Content, places: Mapping[str, Place]) -> None:
        self.arrays: dict[str, Array] = {}
        work: list[tuple[Array, Array]] = []
        for name, place in places.items():
            array = self.arrays[name] = np.empty(place.shape, place.dtype.numpy)
            if place.length:
                source = np.frombuffer(content, np.uint8, place.length, place.offset)
                work.append((array.reshape(-1).view(np.uint8), source))
            array.flags.writeable = False
        aside = sum(target.nbytes for target, _ in work) >= ASIDE
        large = [pair for pair in work if aside and pair[0].nbytes > HASHED]
        _copy(pair for pair in work if not aside or pair[0].nbytes <= HASHED)
        self._thread = threading.Thread(target=_copy, args=(large,), daemon=True) if large else None
        if self._thread is not None:
            self._thread.start()

    def finish(self) -> None:
        """Wait until every array is there."""
        if self._thread is not None:
            self._thread.join()


def _copy(work: Iterable[tuple[Array, Array]]) -> None:
    for target, source in work:
        np.copyto(target, source)  # NumPy lets other threads go on meanwhile


@dataclass(frozen=True, slots=True)
class Skimmed:
    """What a file says at a glance."""

    content: Content
    digest: str
    places: Mapping[str, Place]
    """Initializers by name; those that are kept in another way than as plain bytes are left out."""
    large: frozenset[str]
    """Those whose numbers do not count."""
    _reader: _Reader

    def read(self, names: Iterable[str]) -> Reading:
        """The arrays of these names."""
        return Reading(self.content, {name: self.places[name] for name in names})

    def structure(self) -> bytes:
        """The file without the bytes of its large arrays."""
        return self._reader.without(self.large)


def skim(path: Path) -> Skimmed | None:
    """The file at a glance; None where only reading it whole can tell."""
    try:
        content = _mapped(path)
    except (OSError, ValueError):
        return None
    return None if content is None else look(content)


def look(content: Content) -> Skimmed | None:
    """The content of a file at a glance."""
    if sys.byteorder != "little":
        return None
    try:
        return _Reader(content).skimmed()
    except (ValueError, IndexError, LoadError, _Broken):
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

    def __init__(self, content: Content) -> None:
        self.content = content
        self.view = memoryview(content)
        self.state = hashlib.blake2b(digest_size=20)
        self.hashed = 0
        """All before this byte is in the digest, or is known not to count."""
        self.holes: list[tuple[int, int]] = []
        self.tensors: list[_Tensor] = []
        self.graphs: list[tuple[int, int, int]] = []
        """Where the message of a graph starts with its tag, with its fields, and where it ends."""

    def skimmed(self) -> Skimmed:
        end = len(self.content)
        at = 0
        while at < end:
            start = at
            tag, at = self.number(at)
            at = self.graph(start, at) if tag == _GRAPH else self.skip(tag, at)
        if at != end or len(self.graphs) != 1:
            raise _Broken
        self.take(end)
        self.state.update(repr((end, self.holes)).encode())
        places = self.places()
        large = frozenset(tensor.name for tensor in self.tensors if tensor.is_large and tensor.name in places)
        return Skimmed(self.content, self.state.hexdigest(), places, large, self)

    def graph(self, start: int, at: int) -> int:
        size, at = self.number(at)
        end = at + size
        self.graphs.append((start, at, end))
        while at < end:
            start = at
            tag, at = self.number(at)
            at = self.initializer(start, at) if tag == _INITIALIZER else self.skip(tag, at)
        if at != end:
            raise _Broken
        return at

    def initializer(self, start: int, at: int) -> int:
        size, at = self.number(at)
        end = at + size
        tensor = _Tensor(start, at, end)
        while at < end:
            start = at
            tag, at = self.number(at)
            if tag == _DIMS:
                dim, at = self.number(at)
                tensor.dims.append(dim)
            elif tag == _TYPE:
                tensor.type, at = self.number(at)
            elif tag in (_PACKED_DIMS, _NAME, _RAW):
                length, at = self.number(at)
                at = self.field(tensor, tag, start, at, at + length)
            else:
                # External data, elements one by one, segments: all but a name and a remark for people.
                tensor.odd |= tag not in (12 << 3 | 2, 14 << 3) or (tag == 14 << 3 and self.content[at] != 0)
                at = self.skip(tag, at)
        if at != end:
            raise _Broken
        if tensor.raw is not None and tensor.is_large:
            _, start, stop = tensor.raw
            self.take(start)
            self.hashed = stop
            self.holes.append((start, stop))
        self.tensors.append(tensor)
        return at

    def field(self, tensor: _Tensor, tag: int, start: int, at: int, end: int) -> int:
        """One field of an initializer that has a length."""
        if end > len(self.content):
            raise _Broken
        if tag == _RAW:
            tensor.odd |= tensor.raw is not None
            tensor.raw = (start, at, end)
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
        return number_at(self.content, at)

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

    def places(self) -> dict[str, Place]:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise _Broken
        found: dict[str, Place] = {}
        for tensor in self.tensors:
            dtype = _DTYPES.get(tensor.type)
            if dtype is None or tensor.raw is None or tensor.odd:
                continue
            _, start, end = tensor.raw
            if math.prod(tensor.dims) * dtype.itemsize == end - start and len(tensor.dims) <= HIGHEST_RANK:
                found[tensor.name] = Place(start, end - start, dtype, tuple(tensor.dims))
        return found

    def without(self, names: frozenset[str]) -> bytes:
        """The message without the bytes of some initializers, and with the lengths that it has then."""
        ((tag, at, end),) = self.graphs
        pieces: list[bytes | memoryview] = []
        for tensor in self.tensors:
            if tensor.raw is None or tensor.name not in names:
                continue
            before, after = self.view[tensor.start : tensor.raw[0]], self.view[tensor.raw[2] : tensor.end]
            length = _varint(len(before) + len(after))
            pieces += [self.view[at : tensor.tag], _varint(_INITIALIZER), length, before, after]
            at = tensor.end
        pieces.append(self.view[at:end])
        size = sum(map(len, pieces))
        return b"".join([self.view[:tag], _varint(_GRAPH), _varint(size), *pieces, self.view[end:]])


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
