"""Arrays in safetensors files. The header is checked in full before the package that reads arrays sees the file.

A file is eight bytes with the length of the header, the header in JSON, and the bytes of all tensors behind it, one
after the other without a gap.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.shared.messages import printable
from dovetail.ir import dtype
from dovetail.ir.attribute import HIGHEST_RANK
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.sanitize import sanitize

LONGEST_HEADER = 1 << 24
MOST_TENSORS = 200_000
MOST_NUMBERS = 2_000_000
LONGEST_NAME = 4096
LARGEST = 2**48

DTYPES: Mapping[str, DType] = {
    "BOOL": dtype.bool_,
    "U8": dtype.u8,
    "I8": dtype.i8,
    "U16": dtype.u16,
    "I16": dtype.i16,
    "F16": dtype.f16,
    "BF16": dtype.bf16,
    "U32": dtype.u32,
    "I32": dtype.i32,
    "F32": dtype.f32,
    "U64": dtype.u64,
    "I64": dtype.i64,
    "F64": dtype.f64,
    "C64": dtype.c64,
}
_NOT_READ = ("F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0")
_METADATA = "__metadata__"
_DAMAGED = "the file is damaged or cut off; fetch it again"


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: its type, and where its bytes lie behind the header."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays in a safetensors file, by name."""
    file = Path(path)
    entries = check_file(file)
    try:
        from safetensors import safe_open  # an optional package, for those who read such files
    except ImportError as error:
        raise UnsupportedError(
            "reading safetensors needs the safetensors package", hint="pip install 'dovetail-ml[safetensors]'"
        ) from error
    try:
        with cast(Any, safe_open)(str(file), framework="np") as opened:
            return {e.name: cast(Array, opened.get_tensor(e.name)) for e in entries}
    except Exception as error:  # the package raises errors of its own, of no common kind
        raise LoadError(f"{sanitize(str(file))} cannot be read: {_shown(str(error))}", hint=_DAMAGED) from error


def map_safetensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays in a safetensors file by name, as views of the mapped file that are read when they are used."""
    file = Path(path)
    entries = check_file(file)
    with file.open("rb") as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        mapped = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    if entries and start + entries[-1].end != len(mapped):
        raise LoadError(f"{sanitize(str(file))} changed while it was read", hint="read it again")
    return {
        e.name: np.frombuffer(mapped[start + e.start : start + e.end], e.dtype.numpy).reshape(e.shape) for e in entries
    }


def check_file(path: Path) -> list[Entry]:
    """The tensors of a file in the order of their bytes, once everything that its header says holds."""
    shown = sanitize(str(path))
    try:
        # Opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                raise LoadError(f"{shown} is not a file", hint="pass the path of a safetensors file")
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > state.st_size - 8:
                raise LoadError(f"{shown} has {state.st_size:,} bytes, fewer than its header says", hint=_DAMAGED)
            if length > LONGEST_HEADER:
                raise LoadError(
                    f"{shown} has a header of {length:,} bytes", hint=f"at most {LONGEST_HEADER:,} are read"
                )
            header = file.read(length)
    except LoadError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not a path"
        raise LoadError(f"{shown} cannot be read: {why}", hint="check the path and its permissions") from error
    try:
        return check_header(header, state.st_size - 8 - length)
    except (LoadError, UnsupportedError) as error:
        error.where = error.where or shown
        raise


def check_header(header: bytes, size: int) -> list[Entry]:
    """The tensors that a header lists, if they fill `size` bytes exactly; in the order of their bytes."""
    said = _parsed(header)
    metadata = said.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(
        isinstance(v, str) for v in cast(dict[str, object], metadata).values()
    ):
        raise LoadError("metadata that is not a map of strings", hint=_DAMAGED)
    entries = sorted([_entry(name, value) for name, value in said.items()], key=lambda e: (e.start, e.end))
    end = 0
    for entry in entries:
        if entry.start != end:
            what = "overlaps the one before" if entry.start < end else f"leaves {entry.start - end:,} bytes before it"
            raise LoadError(f"the tensor {_shown(entry.name)!r} at {entry.start:,} {what}", hint=_DAMAGED)
        end = entry.end
    if end != size:
        raise LoadError(f"tensors of {end:,} bytes in all, and {size:,} are there", hint=_DAMAGED)
    return entries


def _parsed(header: bytes) -> dict[str, object]:
    if not header.startswith(b"{"):
        raise LoadError("a header that does not start with {", hint="check what the file is")
    # Counted before they are made: an empty map takes two bytes here and sixty in memory.
    if header.count(b"{") > MOST_TENSORS or header.count(b",") > MOST_NUMBERS:
        raise LoadError(f"a header of more than {MOST_TENSORS:,} tensors", hint="keep them in several files")
    try:
        text = header.decode("utf-8")
        said: object = json.loads(
            text, object_pairs_hook=_distinct, parse_int=_whole, parse_float=_refused, parse_constant=_refused
        )
    except LoadError:
        raise
    except UnicodeDecodeError as error:
        raise LoadError(f"a header that is not UTF-8: {error.reason}", hint=_DAMAGED) from None
    except RecursionError:
        raise LoadError("a header that nests without end", hint=_DAMAGED) from None
    except ValueError as error:
        raise LoadError(f"a header that is not JSON: {_shown(str(error))}", hint=_DAMAGED) from None
    if not isinstance(said, dict):
        raise LoadError("a header that is not a map", hint=_DAMAGED)
    return cast(dict[str, object], said)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))
        raise LoadError(f"{_shown(twice)!r} twice in a header", hint="names are unique")
    return found


def _whole(digits: str) -> int:
    if len(digits) > 19:
        raise LoadError(f"a number of {len(digits):,} digits in a header", hint=_DAMAGED)
    return int(digits)


def _refused(text: str) -> None:
    raise LoadError(f"the number {_shown(text)} in a header", hint="shapes and offsets are whole numbers")


def _entry(name: str, said: object) -> Entry:
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise LoadError(f"a tensor named {_shown(name)!r}", hint=f"names are printable, up to {LONGEST_NAME} long")
    where = f"the tensor {_shown(name)!r}"
    if not isinstance(said, dict) or cast(dict[str, object], said).keys() != {"dtype", "shape", "data_offsets"}:
        raise LoadError("an entry without dtype, shape and data_offsets", hint="it has these three", where=where)
    known = cast(dict[str, object], said)
    of = _dtype(known["dtype"], where)
    shape = _numbers(known["shape"], where)
    offsets = _numbers(known["data_offsets"], where)
    if len(shape) > HIGHEST_RANK or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LoadError(
            f"rank {len(shape)} and offsets {list(offsets[:4])}", hint="offsets are a start and an end", where=where
        )
    count = math.prod(shape) * of.itemsize
    if count != offsets[1] - offsets[0]:
        raise LoadError(
            f"{offsets[1] - offsets[0]:,} bytes for {of.name}{list(shape)}, which takes {_number(count)}",
            hint=_DAMAGED,
            where=where,
        )
    return Entry(name, of, shape, *offsets)


def _dtype(said: object, where: str) -> DType:
    if isinstance(said, str) and said in DTYPES:
        return DTYPES[said]
    if said in _NOT_READ:
        raise UnsupportedError(f"tensors of {said}", hint="convert them to F32, F16 or BF16", where=where)
    raise LoadError(f"the dtype {_shown(repr(said))}", hint=f"dtypes are {', '.join(DTYPES)}", where=where)


def _numbers(said: object, where: str) -> tuple[int, ...]:
    items = cast(list[object], said) if isinstance(said, list) else [None]
    numbers = tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool) and 0 <= i <= LARGEST)
    if len(numbers) != len(items):
        raise LoadError(
            f"sizes or offsets {_shown(repr(items[:8]))}", hint=f"they are lists of 0 to {LARGEST}", where=where
        )
    return numbers


def _number(count: int) -> str:
    return f"{count:,}" if count < 10**18 else "far more"


def _shown(text: str) -> str:
    """A name that is short and printable."""
    return sanitize(printable(text))
