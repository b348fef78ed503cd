"""The head and the table of a saved graph: where each array is, checked before anything is read or allocated.

The file is little-endian throughout:
    head    magic (8 bytes), version (u32), lengths of the text and of the table (u64 each), digest of both (16 bytes)
    text    the graph's text form in UTF-8; it refers to larger constants by their number in the table
    table   for each array: kind (u8), length of its name (u32), length of its dtype's name (u8), rank (u8), both names,
            its sizes (u64 each), offset (u64), bytes (u64), digest (16 bytes); constants come before parameters
    arrays  in the order of the table, each at the next multiple of 64, zeros between them, nothing after the last
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError, GraphError, LoadError
from dovetail.ir.attribute import HIGHEST_RANK, check_type
from dovetail.ir.dtype import BY_NAME
from dovetail.ir.spell import static_shape
from dovetail.ir.type import TensorType

MAGIC = b"DOVETAIL"
VERSION = 1
ALIGNMENT = 64
LONGEST_HEADER = 2**28
"""What text and table together may be long: about two million nodes."""
MOST_ARRAYS = 2**20

_HEAD = struct.Struct("<8sIQQ16s")
_ROW = struct.Struct("<BIBB")
_PLACE = struct.Struct("<QQ16s")
_KINDS = ("constant", "parameter")
_BROKEN = "the file is damaged; save the graph again"


@dataclass(frozen=True, slots=True)
class Entry:
    """An array of the file: its type, place and hash."""

    kind: str
    name: str
    type: TensorType
    digest: bytes
    offset: int = 0


def digest(*parts: bytes | memoryview) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.digest()


def aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def length(entry: Entry) -> int:
    """Return how many bytes an array takes."""
    total = entry.type.dtype.itemsize
    for size in static_shape(entry.type):
        total *= size
    return total


def pack(text: bytes, entries: Sequence[Entry]) -> bytes:
    """Head, text and table of a file that holds these arrays."""
    end = _HEAD.size + len(text) + sum(_ROW.size + _PLACE.size + len(_variable(e)) for e in entries)
    rows: list[bytes] = []
    for entry in entries:
        offset, size = aligned(end), length(entry)
        end = offset + size
        row = (_KINDS.index(entry.kind), len(_encoded(entry.name)), len(entry.type.dtype.name), entry.type.rank)
        rows.append(_ROW.pack(*row) + _variable(entry) + _PLACE.pack(offset, size, entry.digest))
    table = b"".join(rows)
    if len(text) + len(table) > LONGEST_HEADER or len(entries) > MOST_ARRAYS:
        raise GraphError(
            f"a graph of {len(text)} bytes of text and {len(entries)} arrays", hint="save it in several pieces"
        )
    return _HEAD.pack(MAGIC, VERSION, len(text), len(table), digest(text, table)) + text + table


def _variable(entry: Entry) -> bytes:
    shape = static_shape(entry.type)
    return _encoded(entry.name) + entry.type.dtype.name.encode() + struct.pack(f"<{len(shape)}Q", *shape)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def unpack(content: memoryview) -> tuple[str, list[Entry]]:
    """Return the text and the table of a file whose arrays are where they should be."""
    if len(content) < _HEAD.size:
        raise LoadError(f"a file of {len(content)} bytes", hint="it is empty or cut off; save the graph again")
    magic, version, text_length, table_length, stated = _HEAD.unpack_from(content)
    if magic != MAGIC:
        raise LoadError(f"a file that starts with {magic!r}", hint="pass a file that dovetail saved")
    if version != VERSION:
        raise LoadError(f"a file of version {version}", hint=f"this dovetail reads version {VERSION}; save it again")
    if text_length + table_length > LONGEST_HEADER:
        raise LoadError(f"a text and table of {text_length + table_length} bytes", hint=_BROKEN)
    table_start = _HEAD.size + text_length
    start = table_start + table_length
    if start > len(content):
        raise LoadError(f"{len(content)} bytes of at least {start}", hint="the file is cut off; save the graph again")
    text, table = content[_HEAD.size : table_start], content[table_start:start]
    if digest(text, table) != stated:
        raise LoadError("a text or table that does not match its checksum", hint=_BROKEN)
    try:
        spelled = str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise LoadError(f"a text that is not UTF-8: {error.reason}", hint=_BROKEN) from error
    entries = _Table(table).entries()
    _check_layout(content, entries, start)
    return spelled, entries


class _Table:
    """Rows, read one after the other; each is checked against what is left."""

    def __init__(self, content: memoryview) -> None:
        self.content = content
        self.at = 0

    def entries(self) -> list[Entry]:
        entries: list[Entry] = []
        names: set[str] = set()
        while self.at < len(self.content):
            if len(entries) == MOST_ARRAYS:
                raise LoadError(f"more than {MOST_ARRAYS} arrays", hint=_BROKEN)
            entry = self.entry()
            if entry.kind == "constant" and (names or entry.name):
                raise LoadError("a constant behind a parameter or with a name", hint=_BROKEN)
            if entry.kind == "parameter" and (not entry.name or entry.name in names):
                raise LoadError(f"two arrays for the parameter {entry.name!r}, or one without a name", hint=_BROKEN)
            if entry.name:
                names.add(entry.name)
            entries.append(entry)
        return entries

    def take(self, count: int) -> memoryview:
        if count > len(self.content) - self.at:
            raise LoadError(f"a table that ends {count} bytes too early", hint=_BROKEN)
        self.at += count
        return self.content[self.at - count : self.at]

    def entry(self) -> Entry:
        row: tuple[int, int, int, int] = _ROW.unpack(self.take(_ROW.size))
        kind, name_length, dtype_length, rank = row
        if kind >= len(_KINDS) or rank > HIGHEST_RANK:
            raise LoadError(f"an array of kind {kind} and rank {rank}", hint=_BROKEN)
        try:
            name = str(self.take(name_length), "utf-8", "surrogatepass")
            dtype = BY_NAME[str(self.take(dtype_length), "ascii")]
        except (UnicodeDecodeError, KeyError) as error:
            raise LoadError("an array whose name or dtype cannot be read", hint=_BROKEN) from error
        shape: tuple[int, ...] = struct.unpack(f"<{rank}Q", self.take(8 * rank))
        offset, size, stated = _PLACE.unpack(self.take(_PLACE.size))
        entry = Entry(_KINDS[kind], name, TensorType(dtype, shape), stated, offset)
        try:
            check_type(entry.type)
            expected = length(entry)
        except DovetailError as error:
            raise LoadError(f"an array that cannot be: {error.message}", hint=_BROKEN) from error
        if expected != size:
            raise LoadError(f"{size} bytes for an array of {entry.type}, which takes {expected}", hint=_BROKEN)
        return entry


def _check_layout(content: memoryview, entries: Sequence[Entry], start: int) -> None:
    """Check that every array begins where the one before it ends; so none overlap, and no bytes remain."""
    end = start
    for entry in entries:
        if entry.offset != aligned(end):
            raise LoadError(f"an array at {entry.offset} where {aligned(end)} follows", hint=_BROKEN)
        if any(content[end : entry.offset]):
            raise LoadError(f"bytes between two arrays, at {end}", hint=_BROKEN)
        end = entry.offset + length(entry)
        if end > len(content):
            raise LoadError(f"{len(content)} bytes of at least {end}", hint="the file is cut off; save the graph again")
    if end != len(content):
        raise LoadError(f"{len(content) - end} bytes behind the last array", hint=_BROKEN)
