"""A model's bytes, walked field by field before anything is made of them.

Two bytes of a file can ask for two hundred bytes of memory: an empty node is one. So what a file would unfold to is
counted first. The walk reads headers only and skips what fields hold, so that weights cost nothing.
"""

from __future__ import annotations

import mmap
from functools import cache
from typing import TypeAlias

import onnx
from google.protobuf.descriptor import Descriptor

from dovetail.errors import LoadError

MOST_FIELDS = 4_000_000
"""Fields that a file may have; a node has about ten."""
MOST_UNFOLDED = 64 << 20
"""Bytes of structure that any file may unfold to, and that many more for each byte that it has."""
UNFOLDED_FOR_EACH_BYTE = 16
DEEPEST_MESSAGE = 96
"""Below the depth at which the protobuf package gives up."""

_PER_MESSAGE = 200
_PER_FIELD = 32
_PER_PACKED = 16
_BROKEN = "the file is damaged or cut off; fetch or export it again"

Content: TypeAlias = bytes | mmap.mmap
_Table: TypeAlias = dict[int, tuple[Descriptor | None, int]]
"""Tag of a field with a length in front -> the message in it, or how many bytes each byte of it unfolds to."""


def check_content(content: Content) -> None:
    """Refuse bytes that no model has, and bytes that unfold to far more than they are."""
    try:
        _walk(content)
    except IndexError:
        raise LoadError(f"a field that ends behind the last of {len(content):,} bytes", hint=_BROKEN) from None


def _walk(content: Content) -> None:
    most = MOST_UNFOLDED + UNFOLDED_FOR_EACH_BYTE * len(content)
    table, at, end = _table(onnx.ModelProto.DESCRIPTOR), 0, len(content)
    outer: list[tuple[_Table, int]] = []
    fields = unfolded = 0
    while True:
        while at >= end:
            if at > end:
                raise LoadError(f"a field that runs over the end of its message, at byte {end:,}", hint=_BROKEN)
            if not outer:
                return
            table, end = outer.pop()
        fields += 1
        tag = content[at]
        at += 1
        if tag > 127:
            tag, at = _number(content, at, tag)
        kind = tag & 7
        if kind == 2:
            length = content[at]
            at += 1
            if length > 127:
                length, at = _number(content, at, length)
            if length > end - at:
                raise LoadError(
                    f"a field of {length:,} bytes at byte {at:,}, where {end - at:,} are left", hint=_BROKEN
                )
            message, packed = table.get(tag, _OTHER)
            if message is None:
                unfolded += _PER_FIELD + packed * length
                at += length
            else:
                unfolded += _PER_MESSAGE
                outer.append((table, end))
                table, end = _table(message), at + length
                if len(outer) > DEEPEST_MESSAGE:
                    raise LoadError(f"messages nested deeper than {DEEPEST_MESSAGE}", hint="check how bodies nest")
        elif kind == 0:
            unfolded += _PER_FIELD
            while content[at] > 127:
                at += 1
            at += 1
        elif kind == 5 or kind == 1:
            unfolded += _PER_FIELD
            at += 4 if kind == 5 else 8
        else:
            raise LoadError(f"no field of a model starts at byte {at - 1:,}", hint="check what the file is")
        if fields > MOST_FIELDS or unfolded > most:
            raise LoadError(
                f"{len(content):,} bytes that unfold to more than {min(most, unfolded) >> 20:,} MiB of nodes and names,"
                f" in {fields:,} fields and more",
                hint=f"a model has up to {MOST_FIELDS:,} fields; keep weights in tensors",
            )


def _number(content: Content, at: int, first: int) -> tuple[int, int]:
    """A number of several bytes whose first one is read, and where it ends."""
    value, shift = first & 127, 7
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise LoadError(f"a number of more than ten bytes at byte {at:,}", hint="check what the file is")


_OTHER: tuple[Descriptor | None, int] = (None, 1)


@cache
def _table(message: Descriptor) -> _Table:
    found: _Table = {}
    for field in message.fields:
        if field.message_type is not None:
            found[field.number << 3 | 2] = (field.message_type, 0)
        elif field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT64, field.CPPTYPE_ENUM):
            found[field.number << 3 | 2] = (None, _PER_PACKED)
    return found
