"""Graphs with their arrays as one file, safe to read from any source. No pickle: text, a table and raw numbers."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dovetail.errors import DovetailError, LoadError, UnsupportedError
from dovetail.ir import serial_table
from dovetail.ir.dtype import of_numpy
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array, Literal
from dovetail.ir.serial_table import Entry
from dovetail.ir.spell import SMALL, from_bytes, payload, swapped
from dovetail.ir.text_parse import parse_graph
from dovetail.ir.text_print import print_graph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op
from dovetail.ir.verify import verify
from dovetail.ir.whole_file import write_whole


def to_bytes(graph: Graph) -> bytes:
    """Return the graph and its arrays as one string of bytes."""
    return b"".join(_Pieces(graph))


def from_buffer(content: bytes | bytearray | memoryview, ops: Iterable[Op]) -> Graph:
    """Read the graph in a string of bytes; the arrays of its parameters are read-only views of it."""
    return _load(memoryview(content).toreadonly().cast("B"), ops, "the bytes")


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph and its arrays. The file is whole, or it is not there."""
    write_whole(path, _Pieces(graph))


def load(path: str | os.PathLike[str], ops: Iterable[Op]) -> Graph:
    """Load the graph in a file; the arrays of its parameters are mapped from it, read-only."""
    target = Path(path)
    try:
        # Asked before it is opened: opening a pipe would wait for its writer.
        if not stat.S_ISREG(os.stat(target).st_mode):
            raise LoadError(f"{target} is not a file", hint="pass the path of a saved graph")
        with open(target, "rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            content = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except LoadError:
        raise
    except (OSError, ValueError) as error:
        raise LoadError(f"{target} cannot be read: {error}", hint="check the path") from error
    return _load(memoryview(content), ops, str(target))


class _Pieces:
    """The parts of a file from front to back; arrays are brought into order one at a time."""

    def __init__(self, graph: Graph) -> None:
        verify(graph)
        constants: dict[Literal, int] = {}

        def refer(literal: Literal) -> str:
            if literal.array.size <= SMALL:
                return payload(literal)
            return f"blob {constants.setdefault(literal, len(constants))}"

        text = print_graph(graph, constant=refer).encode()
        self.arrays = [*(c.array for c in constants), *graph.params.values()]
        self.entries = [
            *(_entry("constant", "", c.array) for c in constants),
            *(_entry("parameter", name, array) for name, array in graph.params.items()),
        ]
        self.head = serial_table.pack(text, self.entries)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self.head
        end = len(self.head)
        for array in self.arrays:
            raw = _raw(array)
            yield bytes(serial_table.aligned(end) - end)
            yield raw
            end = serial_table.aligned(end) + len(raw)


def _entry(kind: str, name: str, array: Array) -> Entry:
    dtype = of_numpy(array.dtype)
    if dtype is None:
        raise UnsupportedError(
            f"the array of {name!r} has the dtype {array.dtype}", hint="convert it to a dtype that dovetail has"
        )
    return Entry(kind, name, TensorType(dtype, array.shape), serial_table.digest(_raw(array)))


def _raw(array: Array) -> memoryview:
    """Return the bytes of an array as the file has them."""
    dtype = of_numpy(array.dtype)
    native = array if dtype is None else array.astype(dtype.numpy, copy=False)
    if native.dtype.kind == "b":
        native = np.not_equal(native.view(np.uint8), 0)  # a view of other bytes may hold a true that is not 1
    if dtype is not None and dtype.bits < 8:
        native = native.view(np.uint8) & (2**dtype.bits - 1)  # NumPy does not look at the bits above
    return swapped(native).data


def _load(content: memoryview, ops: Iterable[Op], where: str) -> Graph:
    vocabulary = tuple(ops)
    try:
        text, entries = serial_table.unpack(content)
        arrays = [_array(content, entry) for entry in entries]
        constants = [Literal(a) for e, a in zip(entries, arrays, strict=True) if e.kind == "constant"]
        params = {e.name: a for e, a in zip(entries, arrays, strict=True) if e.kind == "parameter"}
        graph = replace(parse_graph(text, vocabulary, blobs=constants), params=params)
        verify(graph)
    except DovetailError as error:
        message = error.message if isinstance(error, LoadError) else f"a graph that does not hold together: {error}"
        raise LoadError(message, hint=error.hint, where=where) from error
    return graph


def _array(content: memoryview, entry: Entry) -> Array:
    raw = content[entry.offset : entry.offset + serial_table.length(entry)]
    if serial_table.digest(raw) != entry.digest:
        raise LoadError(
            f"the array of {entry.name!r} at {entry.offset} does not match its checksum",
            hint="the file is damaged; save the graph again",
        )
    return from_bytes(raw, entry.type)
