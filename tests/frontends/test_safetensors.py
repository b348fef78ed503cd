"""Safetensors: what the package writes is read, and a header that lies is refused before the package sees it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.safetensors import DTYPES, Entry, check_file, check_header, read_safetensors
from dovetail.ir.dtype import f32, u8

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def header(**entries: Any) -> bytes:
    return json.dumps(entries).encode()


def test_what_the_package_writes_is_read(tmp_path: Path) -> None:
    kept = {
        "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.ones(3, np.float16),
        "brain": np.ones(3, ml_dtypes.bfloat16),
        "flags": np.array([True, False]),
        "scalar": np.array(7, np.int64),
        "none": np.zeros((0, 4), np.uint8),
    }
    path = tmp_path / "model.safetensors"
    written: Any = importlib.import_module("safetensors.numpy")  # its types are not complete
    written.save_file(kept, str(path), metadata={"format": "np"})
    found = read_safetensors(path)
    assert found.keys() == kept.keys()
    for name, array in kept.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name: str, tmp_path: Path) -> None:
    of = DTYPES[name]
    written = json.dumps({"a": {"dtype": name, "shape": [3], "data_offsets": [0, 3 * of.itemsize]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(written).to_bytes(8, "little") + written + bytes(3 * of.itemsize))
    assert read_safetensors(path)["a"].dtype == of.numpy


def test_entries_come_in_the_order_of_their_bytes() -> None:
    found = check_header(
        header(b={"dtype": "U8", "shape": [3], "data_offsets": [8, 11]}, a=A, __metadata__={"x": "y"}) + b"  ", 11
    )
    assert found == [Entry("a", f32, (2,), 0, 8), Entry("b", u8, (3,), 8, 11)]


def test_messages_name_the_tensor_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    written = header(a=A, b={**A, "data_offsets": [4, 12]})
    path.write_bytes(len(written).to_bytes(8, "little") + written + bytes(12))
    with pytest.raises(LoadError, match="'b' at 4 overlaps") as caught:
        check_file(path)
    assert str(path) in str(caught.value)


def test_types_that_cannot_be_read_are_named() -> None:
    with pytest.raises(UnsupportedError, match="F8_E5M2"):
        check_header(header(a={"dtype": "F8_E5M2", "shape": [8], "data_offsets": [0, 8]}), 8)


def test_without_the_package_a_hint_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    path = tmp_path / "model.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UnsupportedError) as caught:
        read_safetensors(path)
    assert "pip install" in caught.value.hint
