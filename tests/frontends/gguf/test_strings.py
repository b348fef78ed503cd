"""Strings of GGUF files, beside a loop that reads one after the other."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from dovetail.errors import LoadError
from dovetail.frontends.gguf.file import read_head
from dovetail.frontends.gguf.strings import find_strings
from tests.gguf_files import written

_PIECES = (
    b"",
    b"\0",
    b"\0" * 9,
    b"\1" + b"\0" * 7,
    b"a",
    b"\xff\xfe",
    "\u4e16".encode(),
    b"x" * 255,
    b"y" * 256,
    b"z" * 70_000,
)


def _joined(texts: list[bytes]) -> memoryview:
    return memoryview(b"ab" + b"".join([struct.pack("<Q", len(text)) + text for text in texts]) + b"\0" * 5)


def _read(raw: memoryview, at: int, count: int) -> list[str]:
    found: list[str] = []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", raw, at)
        found.append(bytes(raw[at + 8 : at + 8 + size]).decode("utf-8", "surrogateescape"))
        at += 8 + size
    return found


@pytest.mark.parametrize("odd", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 20_000])
def test_strings_are_those_of_a_loop(odd: float, count: int) -> None:
    random = np.random.default_rng(count)
    texts = [
        _PIECES[random.integers(len(_PIECES) - (count > 100))]
        if random.random() < odd
        else b"t%d" % random.integers(10**6)
        for _ in range(count)
    ]
    raw = _joined(texts)
    found = find_strings(raw, 2, count)
    assert found.decoded() == _read(raw, 2, count)
    assert found.end == len(raw) - 5


@pytest.mark.parametrize("cut", [1, 6, 9, 14])
def test_strings_that_are_cut_off_are_refused(cut: int) -> None:
    raw = _joined([b"word"] * 5000)
    with pytest.raises(LoadError, match="a string"):
        find_strings(raw[: len(raw) - 5 - cut], 2, 5000)


def test_a_length_after_the_end_is_refused_among_short_strings() -> None:
    texts = bytearray(_joined([b"word"] * 5000))
    texts[2 + 12 * 4000 : 10 + 12 * 4000] = struct.pack("<Q", 1 << 63)
    with pytest.raises(LoadError, match="a string"):
        find_strings(memoryview(texts), 2, 5000)


def test_arrays_of_fields_are_lists_once_they_are_read() -> None:
    given = {"tokens": ["a", "\u00e9"], "scores": [0.5, -1.0], "kinds": [1, 2], "flags": [True, False], "n": 3}
    fields, _ = read_head(memoryview(written(given, {})))
    assert {name: fields[name] for name in given} == given
    first, again = (fields["tokens"] for _ in range(2))
    assert first is again
