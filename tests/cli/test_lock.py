"""`dovetail lock` and `dovetail check`: a fusion that is lost fails, with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli.place import placed
from dovetail.errors import LoadError
from dovetail.report.lock import Lock, read_lock
from tests.cli.commands import Shell


@pytest.mark.slow
def test_a_lock_is_kept_until_a_fusion_is_lost(shell: Shell, layer: str, tmp_path: Path) -> None:
    place = str(tmp_path / "layer.lock")
    said = shell("lock", layer, "--lock", place)
    assert said.code == 0
    assert Path(place).read_text() == "dovetail lock 1\ntarget cpu\nkernels 1\nfused linear 1\n"
    assert shell("check", layer, "--lock", place).code == 0
    lost = shell("check", layer, "--lock", place, "--without", "linear", "--without", "fuse_epilogues")
    assert lost.code == 4 and "linear: 0 of 1" in lost.err and "locked at 1" in lost.err


@pytest.mark.slow
def test_what_is_gained_is_told_and_fails_nothing(shell: Shell, layer: str, tmp_path: Path) -> None:
    place = str(tmp_path / "layer.lock")
    assert shell("lock", layer, "--lock", place, "--without", "linear", "--without", "matmul_add").code == 0
    said = shell("check", layer, "--lock", place, "--json")
    assert said.code == 0 and "linear: 1 of 0" in said.data["gained"]


@pytest.mark.slow
def test_the_lock_lies_beside_the_model(shell: Shell, layer: str) -> None:
    assert shell("lock", layer).code == 0
    assert Path(layer).with_suffix(".lock").is_file()
    assert shell("check", layer).code == 0
    said = shell("lock", "bert:layers=1,hidden=8,heads=2,inner=8,vocabulary=9,positions=8,batch=1,seq=4")
    assert said.code == 1 and "--lock" in said.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a lock"),
        ("dovetail lock 2\n", "not a lock"),
        ("dovetail lock 1\ntarget cpu\n", "without"),
        ("dovetail lock 1\nkernels many\n", "line 2"),
        ("dovetail lock 1\nfused linear 1\n# a word\nfused linear 2\n", "line 4"),
    ],
)
def test_a_file_that_is_no_lock_is_refused(text: str, words: str, shell: Shell, layer: str, tmp_path: Path) -> None:
    place = tmp_path / "bad.lock"
    place.write_text(text)
    said = shell("check", layer, "--lock", str(place))
    assert said.code == 1 and words in said.err


def test_a_missing_lock_says_how_to_make_one(shell: Shell, layer: str, tmp_path: Path) -> None:
    said = shell("check", layer, "--lock", str(tmp_path / "none.lock"))
    assert said.code == 1 and "dovetail lock" in said.err
    assert shell("lock", layer, "--lock", str(tmp_path)).code == 1, "a folder is no place for it"


def test_a_missing_model_is_said_before_its_lock(shell: Shell, tmp_path: Path) -> None:
    missing = str(tmp_path / "nosuch.onnx")
    assert missing in (said := shell.fails(1, "check", missing)) and "lock" not in said.replace(str(tmp_path), "")
    assert "there is neither a file nor a built-in model 'nosuch'" in shell.fails(1, "check", "nosuch")


def test_a_lock_names_its_placement(tmp_path: Path) -> None:
    made = Lock("xla", 1, {}, {}, "dp=2", {"a name: with all.*": "- dp", "x": "dp"})
    assert read_lock(str(made), "lock") == made
    (tmp_path / "lock").write_text(str(made))
    assert placed([str(tmp_path / "lock"), "data"]) == ("data", dict(made.place))
    with pytest.raises(LoadError, match="place x"):
        read_lock(f"{made}place x\n", "lock")


@pytest.mark.slow
def test_regions_are_neither_locked_nor_gained(shell: Shell, tmp_path: Path) -> None:
    model = str(tmp_path / "regions.txt")
    text = "graph regions(x: f32[4, 8], z: f32[4, 8]) {\n  %0 = add(x, z) : f32[4, 8]\n  %1 = exp(%0) : f32[4, 8]\n"
    Path(model).write_text(f"{text}  return y = %1\n}}\n", encoding="utf-8")
    assert "region" in shell("explain", model).out
    assert "fused" not in shell("lock", model).out
    said = shell("check", model)
    assert said.code == 0 and "GAINED" not in said.out


@pytest.mark.slow
def test_a_graph_in_a_file_of_any_name_has_its_lock_beside_it(shell: Shell, layer: str, tmp_path: Path) -> None:
    saved = tmp_path / "model.dt"
    saved.write_text(Path(layer).read_text(encoding="utf-8"), encoding="utf-8")
    assert f"written to {tmp_path / 'model.lock'}" in shell("lock", str(saved)).out
    assert shell("check", str(saved)).code == 0
    assert "--lock model.lock" in shell.fails(1, "lock", "bert:layers=1")
