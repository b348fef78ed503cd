"""Safetensors files whose headers lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.hostile.case import collected, hostile, variants

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
WHERE = {"stage": "safetensors", "suffix": ".safetensors"}


def raw(header: bytes, content: bytes = b"", length: int | None = None) -> bytes:
    stated = len(header) if length is None else length
    return stated.to_bytes(8, "little") + header + content


def written(folder: Path, header: Any, size: int) -> bytes:
    """A header with"""
    return raw(json.dumps(header).encode(), bytes(size))


def entry(**change: Any) -> dict[str, Any]:
    return {"a": {**A, **change}}


lies = variants(
    written,
    {
        "an_overlap": ({"a": A, "b": {**A, "data_offsets": [4, 12]}}, 12),
        "the_same_bytes_twice": ({"a": A, "b": A}, 8),
        "a_hole": ({"a": A, "b": {**A, "data_offsets": [12, 20]}}, 20),
        "a_hole_in_front": (entry(data_offsets=[8, 16]), 16),
        "bytes_left_over": ({"a": A}, 9),
        "bytes_missing": ({"a": A}, 7),
        "tensors_and_no_bytes": ({"a": A}, 0),
        "bytes_and_no_tensors": ({}, 8),
        "offsets_that_run_back": (entry(data_offsets=[8, 0]), 8),
        "negative_offsets": (entry(data_offsets=[-8, 0]), 8),
        "offsets_beyond": (entry(data_offsets=[0, 2**63]), 8),
        "three_offsets": (entry(data_offsets=[0, 8, 8]), 8),
        "offsets_of_text": (entry(data_offsets=["0", "8"]), 8),
        "offsets_of_floats": (entry(data_offsets=[0.0, 8.0]), 8),
        "offsets_of_bools": (entry(data_offsets=[False, True], shape=[1], dtype="U8"), 1),
        "a_wrong_length": (entry(shape=[3]), 8),
        "a_shape_of_terabytes": (entry(shape=[2**40, 2**40]), 8),
        "a_shape_that_wraps": (entry(shape=[2**32, 2**32, 2]), 8),
        "a_negative_shape": (entry(shape=[-2]), 8),
        "a_shape_of_text": (entry(shape=["2"]), 8),
        "a_shape_that_is_no_list": (entry(shape=2), 8),
        "a_shape_of_rank_a_thousand": (entry(shape=[1] * 1000 + [2]), 8),
        "an_unknown_dtype": (entry(dtype="F33"), 8),
        "a_dtype_that_is_a_list": (entry(dtype=["F32"]), 8),
        "no_dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, 8),
        "one_key_too_many": (entry(more=1), 8),
        "an_entry_of_text": ({"a": "F32"}, 0),
        "metadata_of_numbers": ({"__metadata__": {"x": 1}}, 0),
        "metadata_of_maps": ({"__metadata__": {"x": {"y": "z"}}}, 0),
        "metadata_of_a_list": ({"__metadata__": []}, 0),
        "a_list_in_place_of_a_map": ([A], 8),
        "a_name_of_megabytes": ({"a" * (2 << 20): A}, 8),
        "a_name_with_control_characters": ({"\x1b[2J": A}, 8),
    },
    "LoadError",
    **WHERE,
)


@hostile("UnsupportedError", says="F8_E4M3", **WHERE)
def header_of_eight_bit_floats(folder: Path) -> bytes:
    """A dtype that NumPy does not have."""
    return written(folder, entry(dtype="F8_E4M3", shape=[8]), 8)


@hostile("LoadError", says="twice", **WHERE)
def header_with_a_name_twice(folder: Path) -> bytes:
    """Two tensors of one name: readers differ on which counts."""
    one = json.dumps(A)
    return raw(f'{{"a": {one}, "a": {one}}}'.encode(), bytes(8))


@hostile("LoadError", says="twice", **WHERE)
def header_with_a_key_twice(folder: Path) -> bytes:
    """A tensor of two shapes."""
    return raw(b'{"a": {"dtype": "F32", "shape": [2], "shape": [1], "data_offsets": [0, 8]}}', bytes(8))


@hostile("LoadError", says="twice", **WHERE)
def header_with_a_name_twice_by_escapes(folder: Path) -> bytes:
    """Two names that are one once they are read."""
    one = json.dumps(A)
    return raw(f'{{"a": {one}, "\\u0061": {one}}}'.encode(), bytes(8))


@hostile("LoadError", says="UTF-8", **WHERE)
def header_that_is_not_utf8(folder: Path) -> bytes:
    """A header of bytes that are no text."""
    return raw(b'{"\xff": 1}')


def broken(folder: Path, header: bytes) -> bytes:
    """A header that is no JSON:"""
    return raw(header)


breaks = variants(
    broken,
    {
        "nothing": (b"",),
        "spaces": (b"    ",),
        "a_space_in_front": (b" {}",),
        "cut_off": (b'{"a": {"dtype"',),
        "two_maps": (b"{}{}",),
        "a_comma_behind": (b'{"a": 1,}',),
        "nan": (b'{"a": NaN}',),
        "infinity": (b'{"a": -Infinity}',),
        "a_number_of_a_million_digits": (b'{"a": ' + b"9" * 1_000_000 + b"}",),
        "an_exponent": (b'{"a": 1e400}',),
        "a_mark_in_front": (b"\xef\xbb\xbf{}",),
        "single_quotes": (b"{'a': 1}",),
        "a_nul": (b'{"a\x00": 1}',),
    },
    "LoadError",
    **WHERE,
)


@hostile("LoadError", says="nests", **WHERE)
def header_of_brackets(folder: Path) -> bytes:
    """A million brackets inside each other."""
    return raw(b'{"a": ' + b"[" * 1_000_000)


@hostile("LoadError", **WHERE)
def header_of_maps(folder: Path) -> bytes:
    """A hundred thousand maps inside each other."""
    return raw(b'{"a":' * 100_000)


@hostile("LoadError", says="tensors", **WHERE)
def header_of_a_million_empty_maps(folder: Path) -> bytes:
    """A million tensors of nothing."""
    return raw(b"{" + b",".join(b'"%x":{}' % i for i in range(1_000_000)) + b"}")


@hostile("LoadError", says="tensors", **WHERE)
def header_of_millions_of_numbers(folder: Path) -> bytes:
    """A shape of five million axes."""
    return raw(b'{"a":{"dtype":"F32","shape":[' + b"0," * 5_000_000 + b'0],"data_offsets":[0,0]}}')


def stated(folder: Path, length: int) -> bytes:
    """A header whose length is stated as"""
    return raw(b"{}", b"", length)


stated_lengths = variants(
    stated,
    {"one_more": (3,), "the_largest": (2**64 - 1,), "gigabytes": (1 << 30,), "nothing": (0,)},
    "LoadError",
    **WHERE,
)


@hostile("LoadError", says="a header of", **WHERE)
def header_of_gigabytes(folder: Path) -> Path:
    """A header of a gigabyte that takes no room on the disk."""
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write((1 << 30).to_bytes(8, "little"))
        file.truncate((1 << 30) + 8)
    return path


@hostile("LoadError", **WHERE)
def empty_safetensors(folder: Path) -> bytes:
    """A file of no bytes."""
    return b""


@hostile("LoadError", **WHERE)
def safetensors_of_seven_bytes(folder: Path) -> bytes:
    """A file that ends within the length of its header."""
    return bytes(7)


@hostile("LoadError", **WHERE)
def missing_safetensors(folder: Path) -> Path:
    """A path where nothing is."""
    return folder / "missing.safetensors"


@hostile("LoadError", **WHERE)
def safetensors_folder(folder: Path) -> Path:
    """A folder in place of a file."""
    return folder


@hostile(**WHERE)
def safetensors_of_nothing(folder: Path) -> bytes:
    """A file without tensors, which is legal."""
    return raw(b"{}")


@hostile(**WHERE)
def safetensors_out_of_order(folder: Path) -> bytes:
    """Tensors whose names are listed in another order than their bytes, with an empty one among them."""
    header = {"b": {**A, "data_offsets": [8, 16]}, "a": A, "c": {**A, "shape": [0, 9], "data_offsets": [8, 8]}}
    return raw(json.dumps({"__metadata__": {"format": "np"}, **header}).encode() + b"   ", bytes(16))


CASES = collected(globals())
