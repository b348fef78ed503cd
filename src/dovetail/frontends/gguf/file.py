"""GGUF files: fields and tensors, memory-mapped. Every count and every offset is checked before it is used.

A file is a header (magic, version, how many tensors and fields), the fields, a line for each tensor, and the tensors'
bytes, each at an aligned offset. Python's integers do not wrap, so that a product of sizes can be compared with the
size of the file.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.gguf.strings import DAMAGED, Strings, find_strings
from dovetail.frontends.shared.messages import printable
from dovetail.ir.dtype import DType, bf16, f16, f32, u8
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS
from dovetail.sanitize import sanitize

MOST_FIELDS, MOST_TENSORS = 4096, 1 << 16
MOST_ITEMS = 1 << 22
"""Elements of all arrays of a file together."""
LONGEST_NAME = 256
HIGHEST_RANK = 4
_MAGIC, _VERSIONS = b"GGUF", (2, 3)

Field: TypeAlias = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]
"""The value of a field."""

Later: TypeAlias = Callable[[], Field]
"""Makes the value of a field."""

_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9

PLAIN: Mapping[int, DType] = {0: f32, 1: f16, 30: bf16}
"""Types of tensors that are plain numbers."""
BLOCKS: Mapping[int, str] = {
    2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k",
    20: "iq4_nl", 23: "iq4_xs", 39: "mxfp4",
}  # fmt: skip
"""Types of tensors that are blocks, by the format's name."""
NOT_READ: Mapping[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of a file: its shape with rows first, how it is stored, and where."""

    name: str
    shape: tuple[int, ...]
    kind: str
    """The name of a dtype, or of a block format."""
    start: int
    size: int
    """In bytes."""

    @property
    def stored(self) -> tuple[DType, tuple[int, ...]]:
        """The dtype and the shape of the array that holds it."""
        if self.kind not in FORMATS:
            return next(d for d in PLAIN.values() if d.name == self.kind), self.shape
        of = FORMATS[self.kind]
        return u8, (*self.shape[:-1], self.shape[-1] // of.elements * of.bytes)


class Fields(Mapping[str, Field]):
    """The fields of a file by name. Those that are arrays become lists when they are first read."""

    def __init__(self) -> None:
        self._found: dict[str, Field | Later] = {}

    def add(self, name: str, value: Field | Later) -> None:
        self._found[name] = value

    def __getitem__(self, name: str) -> Field:
        found = self._found[name]
        if callable(found):
            found = self._found[name] = found()
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A file: its fields and tensors by name. Arrays are views of the mapped file, read when they are used."""

    path: Path
    fields: Mapping[str, Field]
    tensors: Mapping[str, GgufTensor]
    mapped: memoryview

    def array(self, name: str) -> Array:
        """A tensor as it is stored, read-only."""
        tensor = self.tensors[name]
        dtype, shape = tensor.stored
        return np.frombuffer(self.mapped[tensor.start : tensor.start + tensor.size], dtype.numpy).reshape(shape)


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """The fields and tensors of a file."""
    file = Path(path)
    shown = sanitize(str(file))
    mapped = _mapped(file, shown)
    try:
        fields, tensors = read_head(mapped)
    except (LoadError, UnsupportedError) as error:
        error.where = error.where or shown
        raise
    return GgufFile(file, fields, tensors, mapped)


def _mapped(path: Path, shown: str) -> memoryview:
    try:
        # Opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_size == 0:
                raise LoadError(f"{shown} is not a file with contents", hint="pass the path of a GGUF file")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except LoadError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a path"
        raise LoadError(f"{shown} cannot be read: {why}", hint="check the path and its permissions") from error


def read_head(raw: memoryview) -> tuple[Fields, dict[str, GgufTensor]]:
    """The fields and tensors of the bytes of a file, once everything that they say holds."""
    head = _Head(raw)
    if bytes(head.take(4)) != _MAGIC:
        raise LoadError("a file that does not start with GGUF", hint="check what the file is")
    version = head.number("I")
    if version not in _VERSIONS:
        raise UnsupportedError(f"version {version} of GGUF", hint=f"versions {_VERSIONS} are read; convert the file")
    tensors, fields = head.number("Q"), head.number("Q")
    if tensors > MOST_TENSORS or fields > MOST_FIELDS:
        raise LoadError(
            f"{tensors:,} tensors and {fields:,} fields", hint=f"at most {MOST_TENSORS:,} and {MOST_FIELDS:,} are read"
        )
    found = Fields()
    for _ in range(fields):
        name = head.name("field")
        if name in found:
            raise LoadError(f"the field {shown(name)!r} twice", hint=DAMAGED)
        found.add(name, head.value(name))
    alignment = found.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= 4096 or alignment & (alignment - 1):
        raise LoadError(f"an alignment of {alignment!r}", hint="it is a power of two from 8 to 4096")
    listed = _tensors(head, tensors, alignment)
    start = -(-head.at // alignment) * alignment
    return found, _placed(listed, start, len(raw))


def _tensors(head: _Head, count: int, alignment: int) -> list[GgufTensor]:
    """The lines of all tensors; starts count from where the tensors' bytes begin."""
    found: dict[str, GgufTensor] = {}
    for _ in range(count):
        name = head.name("tensor")
        where = f"the tensor {shown(name)!r}"
        rank = head.number("I")
        if name in found or not 1 <= rank <= HIGHEST_RANK:
            raise LoadError(f"rank {rank}, or a second time", hint=DAMAGED, where=where)
        sizes = head.numbers("Q", rank)
        kind, start = head.number("I"), head.number("Q")
        if min(sizes) < 1 or start % alignment:
            raise LoadError(f"the shape {_listed(sizes)} at {start}", hint=DAMAGED, where=where)
        elements = 1
        for size in sizes:
            elements *= size
        name_of, block, size = _kind(kind, where)
        if sizes[0] % block:
            raise LoadError(f"rows of {sizes[0]:,} in blocks of {block} ({name_of})", hint=DAMAGED, where=where)
        found[name] = GgufTensor(name, tuple(reversed(sizes)), name_of, start, elements // block * size)
    return list(found.values())


def _kind(kind: int, where: str) -> tuple[str, int, int]:
    """A type of tensors: its name, and the elements and bytes of a block."""
    if kind in PLAIN:
        return PLAIN[kind].name, 1, PLAIN[kind].itemsize
    if kind in BLOCKS:
        of = FORMATS[BLOCKS[kind]]
        return BLOCKS[kind], of.elements, of.bytes
    known = ", ".join([*(d.name for d in PLAIN.values()), *BLOCKS.values()])
    raise UnsupportedError(
        f"tensors of type {NOT_READ.get(kind, kind)}", hint=f"quantise the model to one of {known}", where=where
    )


def _placed(listed: list[GgufTensor], start: int, size: int) -> dict[str, GgufTensor]:
    """The tensors where they are in the file, if they are in it and none overlaps another."""
    end = start
    found: dict[str, GgufTensor] = {}
    for tensor in sorted(listed, key=lambda t: t.start):
        first = start + tensor.start
        if first < end or first + tensor.size > size:
            what = "overlap the tensor before" if first < end else f"end after the file, which has {size:,}"
            raise LoadError(
                f"bytes {_number(first)} to {_number(first + tensor.size)} {what}",
                hint=DAMAGED,
                where=f"the tensor {shown(tensor.name)!r}",
            )
        end = first + tensor.size
        found[tensor.name] = GgufTensor(tensor.name, tensor.shape, tensor.kind, first, tensor.size)
    return found


class _Head:
    """The bytes of a file while they are read from the start."""

    def __init__(self, raw: memoryview) -> None:
        self.raw = raw
        self.at = 0
        self.items = 0

    def take(self, count: int) -> memoryview:
        if count > len(self.raw) - self.at:
            raise LoadError(
                f"{_number(count)} bytes expected at {self.at:,}, {len(self.raw) - self.at:,} are left", hint=DAMAGED
            )
        self.at += count
        return self.raw[self.at - count : self.at]

    def number(self, kind: str) -> int:
        return struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0]

    def numbers(self, kind: str, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}{kind}", self.take(count * struct.calcsize("<" + kind)))

    def name(self, what: str) -> str:
        found = self.string()
        if not found or len(found) > LONGEST_NAME or not found.isprintable():
            raise LoadError(
                f"a {what} named {shown(found)!r}", hint=f"names are printable, up to {LONGEST_NAME} characters"
            )
        return found

    def string(self) -> str:
        return self.strings(1).decoded()[0]

    def strings(self, count: int) -> Strings:
        found = find_strings(self.raw, self.at, count)
        self.at = found.end
        return found

    def value(self, name: str) -> Field | Later:
        """A field; arrays are converted when they are read, as a program of tokens needs no vocabulary."""
        kind = self.number("I")
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            found = self.number(_SCALARS[kind])
            return bool(found) if kind == _BOOL else found
        if kind != _ARRAY:
            raise LoadError(f"the field {shown(name)!r} has the type {kind}", hint=DAMAGED)
        inner, count = self.number("I"), self.number("Q")
        if inner != _STRING and inner not in _SCALARS:
            raise LoadError(f"the field {shown(name)!r} is an array of type {inner}", hint=DAMAGED)
        least = 8 if inner == _STRING else struct.calcsize("<" + _SCALARS[inner])
        self.items += count
        if self.items > MOST_ITEMS or count * least > len(self.raw) - self.at:
            raise LoadError(f"the field {shown(name)!r} has {_number(count)} elements", hint=DAMAGED)
        if inner == _STRING:
            return self.strings(count).decoded
        return partial(_numbers, _SCALARS[inner], self.take(count * least), is_bool=inner == _BOOL)


def _numbers(kind: str, raw: memoryview, *, is_bool: bool) -> list[int] | list[bool]:
    numbers = [number for (number,) in struct.iter_unpack("<" + kind, raw)]
    return [bool(n) for n in numbers] if is_bool else numbers


def shown(text: str) -> str:
    """A name of a file that is short and printable."""
    return sanitize(printable(text))


def _listed(sizes: tuple[int, ...]) -> str:
    return f"[{', '.join(_number(size) for size in sizes)}]"


def _number(count: int) -> str:
    return f"{count:,}" if count < 10**18 else "far more"


__all__ = [
    "BLOCKS",
    "NOT_READ",
    "PLAIN",
    "Field",
    "Fields",
    "GgufFile",
    "GgufTensor",
    "read_gguf",
    "read_head",
    "shown",
]
