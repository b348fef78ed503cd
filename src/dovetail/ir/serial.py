"""Graphs with their arrays as one file, safe to read whoever wrote it. No pickle.

The file is little-endian throughout:
    magic (8 bytes), version (u32), length of the text (u64), length of the table (u64), digest of both (16 bytes)
    text: the graph's text form in UTF-8; its larger constants are numbers of the table's constants
    table: for each array its kind, name, dtype, shape, offset, bytes and digest
    arrays: one behind the other, each at a multiple of 64, zeros between them, nothing behind the last
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dovetail.errors import GraphError, LoadError, ParseError
from dovetail.ir.attribute import HIGHEST_RANK
from dovetail.ir.dtype import BY_NAME, DType, of_numpy
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array, Literal
from dovetail.ir.op import Op
from dovetail.ir.spell import SMALL, from_bytes, payload, static_shape, swapped
from dovetail.ir.text_parse import parse_graph
from dovetail.ir.text_print import print_graph
from dovetail.ir.type import TensorType
from dovetail.ir.verify import verify

MAGIC = b"DOVETAIL"
VERSION = 1
ALIGNMENT = 64
LONGEST_HEADER = 2**28
MOST_ARRAYS = 2**20

_HEAD = struct.Struct("<8sIQQ16s")
_ENTRY = struct.Struct("<BIBB")
_PLACE = struct.Struct("<QQ16s")
_CONSTANT, _PARAM = 0, 1
_CODES = tuple(BY_NAME)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One row of the table: an array, where it lies, and what it must hash to."""

    kind: int
    name: str
    type: TensorType
    offset: int
    length: int
    digest: bytes


def to_bytes(graph: Graph) -> bytes:
    """The graph and its arrays as one string of bytes."""
    return b"".join(bytes(piece) for piece in _pieces(graph))


def from_buffer(content: bytes | bytearray | memoryview, ops: Iterable[Op]) -> Graph:
    """The graph in a string of bytes; its parameter arrays are read-only views of it."""
    return _load(memoryview(content), ops, "the bytes")


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph and its arrays. The file is whole or it is not there."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    pieces = _pieces(graph)
    try:
        with open(beside, "xb") as file:
            _write(file, pieces)
        os.replace(beside, target)
    except OSError as error:
        raise LoadError(
            f"{target} cannot be written: {error.strerror}", hint="check the folder and the space that is left"
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink()


def load(path: str | os.PathLike[str], ops: Iterable[Op]) -> Graph:
    """The graph in a file; its parameter arrays are mapped from it, read-only."""
    target = Path(path)
    try:
        # Asked before it is opened: opening a pipe would wait for its writer.
        if not stat.S_ISREG(os.stat(target).st_mode):
            raise LoadError(f"{target} is not a file", hint="pass the path of a saved graph")
        with open(target, "rb") as file:
            length = os.fstat(file.fileno()).st_size
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if length else b""
    except OSError as error:
        raise LoadError(f"{target} cannot be read: {error.strerror}", hint="check the path") from error
    return _load(memoryview(content), ops, str(target))


def _write(file: BinaryIO, pieces: Iterator[bytes | memoryview]) -> None:
    for piece in pieces:
        file.write(piece)
    file.flush()
    os.fsync(file.fileno())


def _pieces(graph: Graph) -> Iterator[bytes | memoryview]:
    """The parts of the file, front to back."""
    verify(graph)
    constants: dict[Literal, int] = {}

    def refer(literal: Literal) -> str:
        if literal.array.size <= SMALL:
            return payload(literal)
        return f"blob {constants.setdefault(literal, len(constants))}"

    text = print_graph(graph, constant=refer).encode()
    arrays = [(_CONSTANT, "", c.array) for c in constants] + [(_PARAM, n, a) for n, a in graph.params.items()]
    raw = [memoryview(swapped(array)) for _, _, array in arrays]  # type: ignore[arg-type]
    rows: list[bytes] = []
    table_length = sum(_row_length(name, array) for _, name, array in arrays)
    end = _HEAD.size + len(text) + table_length
    gaps: list[int] = []
    for (kind, name, array), content in zip(arrays, raw, strict=True):
        offset = _aligned(end)
        gaps.append(offset - end)
        end = offset + len(content)
        rows.append(_row(kind, name, array, offset, content))
    table = b"".join(rows)
    yield _HEAD.pack(MAGIC, VERSION, len(text), len(table), _digest(text, table))
    yield text
    yield table
    for gap, content in zip(gaps, raw, strict=True):
        yield bytes(gap)
        yield content
