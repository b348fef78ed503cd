"""Bytes of tensors that lie in files beside the model: always inside its folder, never behind a link.

Each folder on the way is opened from the one above it and never through a link, so that nothing that is swapped in
between the check and the use is followed.
"""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.shared.messages import printable

LONGEST_LOCATION = 4096
MAPPED = 1 << 16
"""Tensors from this size on are mapped; smaller ones are read."""
REREAD = 8
"""How often the bytes of a file may be named by tensors, all in all. Tied weights are named twice."""
MOST_FILES = 4096

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?", re.IGNORECASE)
_BESIDE = "external data lies in the model's own folder, or below it"


@dataclass(frozen=True, slots=True)
class Place:
    """What a tensor says of its bytes: the file, where they start, and how many there are if it says so."""

    location: tuple[str, ...]
    offset: int
    length: int | None


@dataclass(slots=True)
class _File:
    content: bytes | mmap.mmap
    named: int = 0


@dataclass(slots=True)
class External:
    """The files beside one model, each opened once."""

    folder: Path | None
    _files: dict[tuple[str, ...], _File] = field(default_factory=dict[tuple[str, ...], _File])

    def content(self, entries: Iterable[messages.StringStringEntryProto], count: int, where: str) -> memoryview:
        """The `count` bytes that a tensor keeps in a file, read-only."""
        place = place_of(entries, where)
        file = self._file(place.location, where)
        size = len(file.content)
        found = "/".join(place.location)
        if place.length is not None and place.length != count:
            raise LoadError(
                f"{place.length:,} bytes in {printable(found)!r}, and the tensor takes {count:,}",
                hint="export the model again",
                where=where,
            )
        if place.offset > size or count > size - place.offset:
            raise LoadError(
                f"{count:,} bytes at {place.offset:,} of {printable(found)!r}, which has {size:,}",
                hint="the file is cut off or another model's; fetch it again",
                where=where,
            )
        file.named += count
        if file.named > REREAD * size + MAPPED:
            raise LoadError(
                f"tensors that read {printable(found)!r} more than {REREAD} times over",
                hint="export the model again, each tensor with bytes of its own",
                where=where,
            )
        view = memoryview(file.content)[place.offset : place.offset + count]
        # A small tensor shall not keep a file mapped.
        return view if count >= MAPPED else memoryview(bytes(view))

    def _file(self, location: tuple[str, ...], where: str) -> _File:
        if self.folder is None:
            raise LoadError(
                "a tensor in a file of its own, of a model that has no folder",
                hint="load the model from its path, or pass folder=",
                where=where,
            )
        if location not in self._files:
            if len(self._files) == MOST_FILES:
                raise LoadError(f"tensors in more than {MOST_FILES:,} files", hint="keep them in one", where=where)
            try:
                self._files[location] = _File(_opened(self.folder, location, where))
            except LoadError:
                raise
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a file name"
                raise LoadError(
                    f"the external data {printable('/'.join(location))!r} cannot be read: {why}",
                    hint="fetch the file that belongs to the model, not a link to it",
                    where=where,
                ) from error
        return self._files[location]


def place_of(entries: Iterable[messages.StringStringEntryProto], where: str) -> Place:
    """Where a tensor says that its bytes lie."""
    said: dict[str, str] = {}
    for entry in entries:
        if entry.key in said:
            raise LoadError(f"external data with two of {printable(entry.key)!r}", hint="keep one", where=where)
        said[entry.key] = entry.value
    if "location" not in said:
        raise LoadError("external data without a location", hint=_BESIDE, where=where)
    length = _number(said["length"], "length", where) if "length" in said else None
    return Place(_parts(said["location"], where), _number(said.get("offset", "0"), "offset", where), length)


def _number(text: str, what: str, where: str) -> int:
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LoadError(
            f"the {what} {printable(text)!r} of external data", hint="it is a number of bytes in digits", where=where
        )
    return int(text)


def _parts(location: str, where: str) -> tuple[str, ...]:
    """A location as names of folders and a file, none of which leads elsewhere on any system."""
    # A string that is not UTF-8 arrives as bytes.
    if not isinstance(location, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LoadError("a location of external data that is not UTF-8", hint=_BESIDE, where=where)
    if not location or len(location) > LONGEST_LOCATION or not location.isprintable():
        raise LoadError(f"external data at {printable(location)!r}", hint=_BESIDE, where=where)
    if location.startswith("/") or "\\" in location or ":" in location:
        raise LoadError(f"external data at {printable(location)!r}, an absolute path", hint=_BESIDE, where=where)
    parts = tuple(p for p in location.split("/") if p not in ("", "."))
    for part in parts:
        if part == ".." or part != part.rstrip(" .") or _DEVICES.fullmatch(part):
            raise LoadError(f"external data at {printable(location)!r}, outside of it", hint=_BESIDE, where=where)
    if not parts or location.endswith(("/", "/.")):
        raise LoadError(f"external data at {printable(location)!r}, a folder", hint=_BESIDE, where=where)
    return parts


def _opened(folder: Path, location: tuple[str, ...], where: str) -> bytes | mmap.mmap:
    """The content of a file that is one file, reached through folders that are folders."""
    descriptor = _descend(folder, location) if os.open in os.supports_dir_fd else _step_by_step(folder, location, where)
    try:
        state = os.fstat(descriptor)
        named = printable("/".join(location))
        if not stat.S_ISREG(state.st_mode):
            raise LoadError(f"the external data {named!r} is not a file", hint=_BESIDE, where=where)
        if state.st_nlink > 1:
            raise LoadError(
                f"the external data {named!r} is a hard link: the same file lies elsewhere too",
                hint="copy it into the model's folder",
                where=where,
            )
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if state.st_size else b""
    finally:
        os.close(descriptor)


_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Opening a pipe would wait for its writer.
_FILE = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def _descend(folder: Path, location: tuple[str, ...]) -> int:
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in location[:-1]:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=at)
            os.close(at)
            at = below
        return os.open(location[-1], _FILE, dir_fd=at)
    finally:
        os.close(at)


def _step_by_step(folder: Path, location: tuple[str, ...], where: str) -> int:
    """The same where folders cannot be opened: each step is looked at, and what was opened is what was looked at."""
    path, seen = folder, os.stat(folder)
    for name in location:
        path /= name
        seen = os.lstat(path)
        if stat.S_ISLNK(seen.st_mode) or getattr(seen, "st_reparse_tag", 0):
            raise LoadError(f"the external data {printable(str(path))!r} is a link", hint=_BESIDE, where=where)
    if not stat.S_ISREG(seen.st_mode):
        raise LoadError(f"the external data {printable(str(path))!r} is not a file", hint=_BESIDE, where=where)
    descriptor = os.open(path, _FILE)
    opened = os.fstat(descriptor)
    if (opened.st_dev, opened.st_ino) != (seen.st_dev, seen.st_ino):
        os.close(descriptor)
        raise LoadError(f"the external data {printable(str(path))!r} changed meanwhile", hint=_BESIDE, where=where)
    return descriptor
