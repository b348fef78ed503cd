"""External data: only files of the model's own folder, and of those only the bytes that a tensor names."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import StringStringEntryProto

from dovetail.errors import LoadError
from dovetail.frontends.onnx.file import external
from dovetail.frontends.onnx.file.external import MAPPED, External, Place, place_of


def said(**pairs: str) -> list[StringStringEntryProto]:
    return [StringStringEntryProto(key=k, value=v) for k, v in pairs.items()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "below").mkdir(parents=True)
    (home / "w.bin").write_bytes(bytes(range(100)))
    (home / "below" / "w.bin").write_bytes(b"below")
    (tmp_path / "secret.bin").write_bytes(b"secret")
    return home


def test_place_of_a_tensor() -> None:
    assert place_of(said(location="./a//b.bin", offset="12"), "") == Place(("a", "b.bin"), 12, None)
    assert place_of(said(location="b.bin", length="5", checksum="00"), "") == Place(("b.bin",), 0, 5)


def test_bytes_are_those_that_are_named(folder: Path) -> None:
    files = External(folder)
    assert bytes(files.content(said(location="w.bin", offset="10", length="5"), 5, "")) == bytes(range(10, 15))
    assert bytes(files.content(said(location="w.bin"), 3, "")) == b"\x00\x01\x02"
    assert bytes(files.content(said(location="below/w.bin"), 5, "")) == b"below"


def test_large_tensors_are_mapped_and_cannot_be_written(folder: Path) -> None:
    (folder / "large.bin").write_bytes(np.arange(MAPPED, dtype=np.float32).tobytes())
    found = np.frombuffer(External(folder).content(said(location="large.bin"), 4 * MAPPED, ""), np.float32)
    assert found[-1] == MAPPED - 1
    assert not found.flags.writeable


def test_a_model_in_memory_has_no_files() -> None:
    with pytest.raises(LoadError, match="no folder"):
        External(None).content(said(location="w.bin"), 1, "")


def test_the_folder_itself_may_be_reached_by_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert bytes(External(tmp_path / "link").content(said(location="w.bin"), 1, "")) == b"\x00"


def links(folder: Path) -> Sequence[str]:
    """Files that are not the model's own, each by its location."""
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "up").symlink_to(folder.parent)
    os.link(folder.parent / "secret.bin", folder / "hard.bin")
    return ("link.bin", "up/secret.bin", "hard.bin", "below")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("by_steps", [False, True], ids=["by_descriptor", "by_steps"])
def test_no_way_leads_elsewhere(folder: Path, by_steps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_steps:
        monkeypatch.setattr(external.os, "supports_dir_fd", set[object]())
    locations = links(folder)
    files = External(folder)
    assert bytes(files.content(said(location="below/w.bin"), 5, "")) == b"below"
    for location in locations:
        with pytest.raises(LoadError, match="external data"):
            files.content(said(location=location), 1, "")
    with pytest.raises(LoadError, match="cannot be read"):
        files.content(said(location="gone.bin"), 1, "")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_that_is_swapped_in_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the open a file is replaced by a link: what was opened is not what was looked at."""
    monkeypatch.setattr(external.os, "supports_dir_fd", set[object]())
    monkeypatch.setattr(external, "_FILE", os.O_RDONLY)
    look = os.lstat

    def look_and_swap(path: Path) -> os.stat_result:
        found = look(path)
        if path.name == "w.bin":
            path.unlink()
            path.symlink_to(folder.parent / "secret.bin")
        return found

    monkeypatch.setattr(external.os, "lstat", look_and_swap)
    with pytest.raises(LoadError, match="changed meanwhile"):
        External(folder).content(said(location="w.bin"), 1, "")


def test_descriptors_are_closed(folder: Path) -> None:
    open_files = Path("/proc/self/fd")
    if not open_files.exists():
        pytest.skip("this system does not list open files")
    before = len(list(open_files.iterdir()))
    for location in ("w.bin", "below/w.bin", "gone.bin", "below", "w.bin/x"):
        with contextlib.suppress(LoadError):
            External(folder).content(said(location=location), 1, "")
    assert len(list(open_files.iterdir())) <= before
