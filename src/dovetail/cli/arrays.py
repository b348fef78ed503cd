"""Arrays on the command line: name=@file.npy, name=@file.npz:key, or the numbers themselves, name=1,2,3."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from dovetail.errors import LoadError, OptionError
from dovetail.ir.literal import Array

Number: TypeAlias = bool | int | float
Given: TypeAlias = "Array | Number | list[Number]"
"""An array from a file, or numbers whose dtype the model decides."""

_ARCHIVE = re.compile(r"(.+\.npz)(?::(.*))?", re.DOTALL)
_WORDS: dict[str, Number] = {"true": True, "false": False}
_MOST_DIGITS = 40


def named_arrays(flag: str, given: Iterable[str]) -> dict[str, Given]:
    """What each option of the form name=… gives, by name."""
    found: dict[str, Given] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise OptionError(
                f"{flag} {text[:80]}", hint=f"write {flag} name=@file.npy, name=@file.npz:key or name=1,2,3"
            )
        if name in found:
            raise OptionError(f"{flag} gives {name} twice", hint="give each name once")
        found[name] = read_array(value[1:]) if value.startswith("@") else _numbers(flag, name, value)
    return found


def _numbers(flag: str, name: str, text: str) -> Given:
    """One number is a scalar; a comma behind it makes it a list of one."""
    items = [item.strip() for item in text.split(",")]
    if len(items) > 1 and not items[-1]:
        items.pop()
    try:
        numbers = [_number(item) for item in items]
    except ValueError:
        raise OptionError(
            f"{flag} {name}={text[:80]} is no list of numbers", hint="write @ before the path of a file"
        ) from None
    return numbers if "," in text else numbers[0]


def _number(text: str) -> Number:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MOST_DIGITS:
        raise ValueError(text)
    return int(text) if re.fullmatch(r"[+-]?\d+", text, re.ASCII) else float(text)


def read_array(path: str) -> Array:
    """The array in a .npy file, or one of a .npz file behind a colon. Pickled objects are not read."""
    archive = _ARCHIVE.fullmatch(path)
    file = Path(archive[1] if archive is not None else path)
    try:
        if "\0" in path or not file.is_file():
            raise LoadError(f"{file} does not exist, or is not a file", hint="check the path")
        if archive is not None:
            return _of_archive(file, archive[2])
        with file.open("rb") as stream:
            return _of_stream(stream, file.stat().st_size)
    except LoadError:
        raise
    except _UNREADABLE as error:
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise LoadError(f"{file} cannot be read as an array: {why}", hint="save it with numpy.save or savez") from error


_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    OverflowError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy and zipfile raise for files that are not what they say."""


def _of_stream(stream: IO[bytes], size: int) -> Array:
    """The array in a stream of `size` bytes; more than these is not allocated."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"the format is of version {version}")
    shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects")
    if math.prod(shape) * dtype.itemsize > size - stream.tell():
        raise ValueError(f"it says that it has the shape {shape}, and is too short for that")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _of_archive(file: Path, key: str | None) -> Array:
    with zipfile.ZipFile(file) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if key is None and len(members) == 1:
            key = next(iter(members))
        if key is None or key not in members:
            found = f"{file} has several arrays" if key is None else f"{file} has no array {key!r}"
            raise LoadError(found, hint=f"name one behind a colon: {', '.join(list(members)[:20]) or 'there is none'}")
        with archive.open(members[key]) as stream:
            return _of_stream(stream, members[key].file_size)


def read_archive(path: str) -> dict[str, Array]:
    """All arrays of a .npz file, by name."""
    file = Path(path)
    try:
        if "\0" in path or not file.is_file():
            raise LoadError(f"{file} does not exist, or is not a file", hint="check the path")
        with zipfile.ZipFile(file) as archive:
            names = [entry.filename.removesuffix(".npy") for entry in archive.infolist()]
        return {name: _of_archive(file, name) for name in names}
    except LoadError:
        raise
    except _UNREADABLE as error:
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise LoadError(f"{file} cannot be read as arrays: {why}", hint="save them with numpy.savez") from error


def save_arrays(path: str, arrays: Mapping[str, Array]) -> str:
    """Write arrays to one .npz file, or to a folder with a .npy file each; the result says where they are."""
    at = Path(path)
    files: dict[str, Array] = {}
    for name, array in arrays.items():
        files[f"{_file_name(name, files)}.npy"] = array
    try:
        if at.suffix == ".npz":
            with zipfile.ZipFile(at, "w") as archive:
                for name, array in files.items():
                    with archive.open(name, "w", force_zip64=True) as stream:
                        np.lib.format.write_array(stream, array, allow_pickle=False)
            return str(at)
        at.mkdir(parents=True, exist_ok=True)
        for name, array in files.items():
            np.save(at / name, array, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise LoadError(f"{path[:200]} cannot be written: {error}", hint="check the path and the disk") from error
    return f"{at}: {', '.join(files)}"


def _file_name(name: str, taken: Container[str]) -> str:
    """A name that stays in its folder, whatever the model calls its output."""
    plain = re.sub(r"[^\w.-]", "_", name).strip(".")[:100] or "output"
    chosen, count = plain, 1
    while f"{chosen}.npy" in taken:
        count += 1
        chosen = f"{plain}_{count}"
    return chosen
