"""`dovetail cache`: what is kept, why a model is found or not, and how it is removed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from tests.cli.commands import SMALL, Shell


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOVETAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compile_layer(layer: str, **options: Any) -> None:
    program = dovetail.compile(layer, **options)
    program.bind({"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)})


@pytest.mark.slow
def test_status_tells_what_there_is(shell: Shell, folder: Path, layer: str) -> None:
    empty = shell("cache", "status", "--json").data
    assert empty["on"] and empty["folder"] == str(folder) and empty["entries"] == {} and empty["bytes"] == 0
    assert "entries  none" in shell("cache", "status").out
    compile_layer(layer)
    full = shell("cache", "status", "--json").data
    assert full["entries"]["program"] == 1 and full["written"] >= 1 and full["misses"] >= 1
    assert full["bytes"] == sum(p.stat().st_size for p in folder.iterdir()) > 0
    text = shell("cache", "status").out
    assert f"folder   {folder}" in text and "1 program" in text and "problem" not in text


@pytest.mark.slow
def test_status_tells_why_there_is_no_cache(shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert "can be written by others" in shell("cache", "status", "--json").data["problem"]
    assert "problem  " in shell("cache", "status").out
    assert "can be written by others" in shell.fails(1, "cache", "clear")
    monkeypatch.setenv("DOVETAIL_CACHE", "off")
    assert shell("cache", "status").out == "the cache is switched off\n"
    assert shell("cache", "status", "--json").data["on"] is False
    assert "switched off" in shell.fails(1, "cache", "clear")


@pytest.mark.slow
def test_why_tells_whether_a_model_is_there(shell: Shell, folder: Path, layer: str) -> None:
    before = shell("cache", "why", layer, "--json").data
    assert before["kept"] and not before["present"] and before["differs"] is None
    assert "which has no programs" in shell("cache", "why", layer).out
    compile_layer(layer)
    after = shell("cache", "why", layer, "--json").data
    assert after["present"] and after["differs"] == [] and (folder / after["entry"]).is_file()
    assert f"is in the cache, as {after['entry']}" in shell("cache", "why", layer).out


@pytest.mark.slow
def test_why_names_what_differs(shell: Shell, folder: Path, layer: str) -> None:
    compile_layer(layer)
    found = shell("cache", "why", layer, "--without", "fuse", "--json").data
    assert [row["part"] for row in found["differs"]] == ["option without"]
    assert found["differs"][0] == {"part": "option without", "here": "['fuse']", "there": "[]"}
    said = shell("cache", "why", layer, "--without", "fuse").out
    assert "option without: it was compiled with another option without" in said and "there  []" in said
    other = shell("cache", "why", SMALL["bert"], "--json").data
    assert {row["part"] for row in other["differs"]} == {"graph", "name"}
    assert "graph: the graph has another structure" in shell("cache", "why", SMALL["bert"]).out
    assert folder.is_dir()


def test_why_tells_what_is_never_kept(shell: Shell, folder: Path, layer: str) -> None:
    said = shell("cache", "why", layer, "--target", "reference")
    assert said.code == 0 and "compiled in every process: the target reference stores nothing" in said.out
    assert not folder.exists() or not list(folder.iterdir())


def test_asking_changes_nothing(shell: Shell, folder: Path, layer: str) -> None:
    compile_layer(layer)
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    shell("cache", "why", layer)
    shell("cache", "status")
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before


@pytest.mark.slow
def test_clear_removes_what_is_ours(shell: Shell, folder: Path, layer: str) -> None:
    compile_layer(layer)
    (folder / "notes.txt").write_text("mine")
    count = len(list(folder.iterdir())) - 1
    assert shell("cache", "clear", "--json").data["removed"] == count
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
    assert f"removed 0 entries from {folder}" in shell("cache", "clear").out


@pytest.mark.parametrize("words", [["why"], ["status", "bert"], ["clear", "bert"], ["melt"], []])
def test_what_is_asked_wrongly_is_told(shell: Shell, folder: Path, words: list[str]) -> None:
    shell.fails(1, "cache", *words)
    assert not folder.exists()


def test_a_program_that_cannot_be_read_back_is_a_problem(
    shell: Shell, folder: Path, layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_layer(layer)
    content = struct.pack("<Q", 9) + b"no plan x"

    def damaged(_: CodeStore, key: StoreKey) -> bytes | None:
        return content if key.kind == "program" else None

    monkeypatch.setattr(CodeStore, "get", damaged)
    monkeypatch.setattr(CodeStore, "peek", damaged)
    compile_layer(layer)
    why = shell("cache", "why", layer, "--json").data
    assert why["present"] and "a text without a plan" in why["refusal"]
    assert "cannot be read back, so every process compiles it" in shell("cache", "why", layer).out
    status = shell("cache", "status", "--json").data
    assert list(status["unread"]) == [why["entry"]] and "unread" not in status["entries"]
    assert "problem  " in shell("cache", "status").out
