"""A model's bytes, walked field by field before anything is made of them.

Two bytes of a file can ask for two hundred bytes of memory: an empty node is one. So what a file would unfold to is
counted first. The walk reads headers and skips what fields hold, so that weights cost nothing.
"""

from __future__ import annotations

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.file.varint import Content, number_at

MOST_FIELDS = 2_000_000
"""Fields that a file may have; a node has about ten."""
MOST_UNFOLDED = 32 << 20
"""Bytes of structure that any file may unfold to, and this many more for each byte that it has."""
UNFOLDED_BY_BYTE = 16
DEEPEST_MESSAGE = 96
"""Below the depth at which the protobuf package gives up."""

_BY_MESSAGE, _BY_FIELD, _BY_PACKED = 170, 32, 16
_BROKEN = "the file is damaged or cut off; fetch or export it again"

_SKIP, _MESSAGE, _PACKED, _NUMBER, _LONG, _NONE = range(6)
"""What to do with a field, by the first byte of its tag."""


@dataclass(frozen=True, slots=True)
class _Table:
    actions: tuple[int, ...]
    messages: dict[int, Descriptor]


def check_content(content: Content) -> None:
    """Refuse bytes that no model has, and bytes that unfold to far more than they are."""
    most = MOST_UNFOLDED + UNFOLDED_BY_BYTE * len(content)
    try:
        if _unfolded(content, most) > most:
            raise LoadError(
                f"{len(content):,} bytes that unfold to more than {most >> 20:,} MiB of nodes, names and numbers",
                hint="check what the file is; weights are kept in tensors",
            )
    except IndexError:
        raise LoadError(f"a field that ends behind the last of {len(content):,} bytes", hint=_BROKEN) from None


def _unfolded(content: Content, most: int) -> int:
    """The bytes that the structure of a model takes in memory, at most; counting ends above `most`."""
    table, at, end = _table(messages.ModelProto.DESCRIPTOR), 0, len(content)
    actions = table.actions
    outer: list[tuple[_Table, int]] = []
    fields = total = 0
    while True:
        while at < end and fields <= MOST_FIELDS:
            fields += 1
            action = actions[content[at]]
            if action == _SKIP:
                length = content[at + 1]
                if length > 127:
                    length, at = number_at(content, at + 1)
                    at += length
                else:
                    at += length + 2
                continue
            tag = content[at]
            at += 1
            if action == _LONG:
                second = content[at]
                if second < 128:
                    tag, at = tag & 127 | second << 7, at + 1
                else:
                    tag, at = number_at(content, at - 1)
                action = _MESSAGE if tag in table.messages else _wire_action(tag & 7)
            if action == _NUMBER:
                kind = tag & 7
                if kind == 0 and content[at] > 127:
                    _, at = number_at(content, at)
                else:
                    at += 4 if kind == 5 else 8 if kind == 1 else 1
                continue
            if action == _NONE:
                raise LoadError(f"no field of a model starts at byte {at - 1:,}", hint="check what the file is")
            length = content[at]
            at += 1
            if length > 127:
                length, at = number_at(content, at - 1)
            if action == _MESSAGE:
                if length > end - at:
                    raise LoadError(f"a message of {length:,} bytes where {end - at:,} are left", hint=_BROKEN)
                outer.append((table, end))
                table = _table(table.messages[tag])
                actions, end = table.actions, at + length
                total += _BY_MESSAGE
                if len(outer) > DEEPEST_MESSAGE:
                    raise LoadError(f"messages nested deeper than {DEEPEST_MESSAGE}", hint="check how bodies nest")
            else:
                total += _BY_PACKED * length
                at += length
            if total + fields * _BY_FIELD > most:
                return total + fields * _BY_FIELD
        if fields > MOST_FIELDS:
            raise LoadError(f"more than {MOST_FIELDS:,} fields", hint="no model has so many; check what the file is")
        if at > end:
            raise LoadError(f"a field that ends at byte {at:,}, where its message ends at {end:,}", hint=_BROKEN)
        if not outer:
            return total + fields * _BY_FIELD
        table, end = outer.pop()
        actions = table.actions


def _wire_action(kind: int) -> int:
    return (_NUMBER, _NUMBER, _PACKED, _NONE, _NONE, _NUMBER, _NONE, _NONE)[kind]


@cache
def _table(message: Descriptor) -> _Table:
    messages = {f.number << 3 | 2: f.message_type for f in message.fields if f.message_type is not None}
    plain = {f.number << 3 | 2 for f in message.fields if f.type in _PLAIN}
    actions = [_LONG if first > 127 else _wire_action(first & 7) for first in range(256)]
    for first in range(8):
        actions[first] = _NONE  # there is no field 0
    for tag in plain:
        if tag < 128:
            actions[tag] = _SKIP
    for tag in messages:
        if tag < 128:
            actions[tag] = _MESSAGE
    return _Table(tuple(actions), messages)


_PLAIN = (
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_FLOAT,
    FieldDescriptor.TYPE_DOUBLE,
)
"""What takes as many bytes in memory as in the file."""
