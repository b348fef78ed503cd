"""A model file as a message, with bounds: what the file is, how large, and what its bytes unfold to."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError

from dovetail.errors import LoadError
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.file.skim import Reading, look
from dovetail.frontends.onnx.file.varint import Content
from dovetail.frontends.onnx.file.wire import check_content
from dovetail.sanitize import sanitize

T = TypeVar("T")

MOST_BYTES = 2**31 - 1
"""What the protobuf package reads at once."""
READ_AT_ONCE = 1 << 20
"""Larger files are mapped while they are looked at, so that refusing one does not cost reading it."""

_FORMATS: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"BZh", "compressed with bzip2; unpack it first"),
    (b"\xfd7zXZ\x00", "compressed with xz; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"),
    (b"version https://git-lfs", "a pointer that git-lfs left in its place; run git lfs pull"),
    (b"DOVETAIL", "a graph that dovetail saved; give it another suffix than .onnx"),
    (b"GGUF", "a GGUF file; export the model as ONNX"),
    (b"\x89HDF", "an HDF5 file; export the model as ONNX"),
    (b"\x93NUMPY", "a NumPy array; pass it as an input"),
    (b"\x80\x02", "a pickle; export the model as ONNX"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF"),
    (b"<", "markup, such as the page of a download that failed"),
    (b"{", "JSON"),
)


def read_model(path: Path) -> messages.ModelProto:
    """The model in a file."""
    return _checked(path, _whole)


def read_apart(path: Path) -> tuple[messages.ModelProto, Reading | None]:
    """The model in a file without the bytes of its large initializers, and these, which are still read."""
    return _checked(path, _apart)


def _whole(content: Content) -> messages.ModelProto:
    if not isinstance(content, bytes):
        mapped, content = content, content[:]
        with suppress(BufferError):
            mapped.close()  # pages of the file go before the message is made
    return messages.ModelProto.FromString(content)


def _apart(content: Content) -> tuple[messages.ModelProto, Reading | None]:
    seen = look(content)
    if seen is None or not seen.large:
        del seen  # it looks at the content, which is closed
        return _whole(content), None
    reading = seen.read(seen.large)
    return messages.ModelProto.FromString(seen.structure()), reading


def read_bytes(content: bytes) -> messages.ModelProto:
    """The model in memory that these bytes are."""
    if len(content) > MOST_BYTES:
        raise LoadError(f"a model of {len(content):,} bytes", hint="keep its weights in external data, and pass a path")
    return _parsed("a model in memory", content, _whole)


def _checked(path: Path, parse: Callable[[Content], T]) -> T:
    """What the content of a file is read as, once it is known to be a model's."""
    named = sanitize(str(path))
    try:
        content = _content(path)
    except LoadError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LoadError(f"{named} cannot be read: {why}", hint="check the path and its permissions") from error
    return _parsed(named, content, parse)


def _parsed(named: str, content: Content, parse: Callable[[Content], T]) -> T:
    if not len(content):
        raise LoadError(f"{named} is empty", hint="fetch or export it again")
    try:
        check_content(content)
        return parse(content)
    except LoadError as error:
        raise LoadError(
            f"{named} is not an ONNX model: {error.message}", hint=_looks_like(content) or error.hint
        ) from None
    except DecodeError as error:
        raise LoadError(
            f"{named} is not an ONNX model: its messages cannot be read",
            hint=_looks_like(content) or "check what the file is",
        ) from error
    except MemoryError as error:
        raise LoadError(
            f"{named} has {len(content):,} bytes, and memory is short", hint="keep weights in external data"
        ) from error


def _content(path: Path) -> Content:
    # Opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise LoadError(f"{sanitize(str(path))} is not a file", hint="pass the path of a model")
        if state.st_size > MOST_BYTES:
            raise LoadError(
                f"{sanitize(str(path))} has {state.st_size:,} bytes",
                hint=f"a model has at most {MOST_BYTES:,}; keep its weights in external data",
            )
        if state.st_size > READ_AT_ONCE:
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(READ_AT_ONCE)
    finally:
        os.close(descriptor)


_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def _looks_like(content: Content) -> str | None:
    start = bytes(content[:64])
    return next((f"it looks like {what}" for magic, what in _FORMATS if start.startswith(magic)), None)
