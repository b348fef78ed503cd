"""Numbers of seven bits a byte, against the format written out."""

from __future__ import annotations

import pytest

from dovetail.errors import LoadError
from dovetail.frontends.onnx.file.varint import number_at


def written(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**21, 2**32 - 1, 2**63, 2**64 - 1])
def test_a_number_and_where_it_ends(number: int) -> None:
    content = b"\xff" + written(number) + b"\x80"
    assert number_at(content, 1) == (number, len(content) - 1)


def test_numbers_that_never_end() -> None:
    with pytest.raises(LoadError, match="more than ten bytes"):
        number_at(b"\x80" * 20, 0)
    with pytest.raises(IndexError):
        number_at(b"\x80\x80", 0)
