"""Modules that differ only in content names have one machine code: compile one, rename its symbols for the others.

A content name ends in a hash of a text. Two drivers that call tiles with other constants differ in nothing else.
"""

from __future__ import annotations

import re

from dovetail.dataclass import dataclass

_HASH = re.compile(r"(?<=_)(?:[0-9a-f]{20}|[0-9a-f]{16})(?![0-9a-f])")
"""The hash in a content name. Names that are exchanged have one length, so that no offset in an object file moves."""
_HASH_BYTES = re.compile(_HASH.pattern.encode())


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A text whose hashes are numbered in order of appearance."""

    text: str
    hashes: tuple[str, ...]
    """The hash of each number."""

    def renamed(self, object_file: bytes, to: Skeleton) -> bytes:
        """The object file of another module with this text: symbols with its hashes."""
        assert self.text == to.text, "modules differ in names only"
        new = {old.encode(): name.encode() for old, name in zip(self.hashes, to.hashes, strict=True)}
        return _HASH_BYTES.sub(lambda found: new.get(found[0], found[0]), object_file)


def skeleton_of(text: str) -> Skeleton:
    """The text of a module without its content names."""
    numbers: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"#{len(numbers)}:{len(found[0])}")

    return Skeleton(_HASH.sub(numbered, text), tuple(numbers))


__all__ = ["Skeleton", "skeleton_of"]
