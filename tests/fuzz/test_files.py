"""Damaged files: damage is the same for a seed, typed errors pass, and everything else is kept."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import onnx
import pytest

from dovetail.errors import LoadError
from fuzz import files, mutations
from fuzz.files import KINDS, Kind, run_file
from fuzz.workers import Died, Say, work_through


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_end_well(kind: str, tmp_path: Path) -> None:
    for seed in range(4):
        assert run_file(kind, seed, tmp_path) == ""
    assert not list(tmp_path.iterdir())


def test_the_alarm_of_a_file_is_gone_after_it(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGALRM)
    assert files.attempt(lambda path: None, tmp_path / "read") == ""
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_the_same_for_a_seed_and_changes_files(kind: str) -> None:
    said = KINDS[kind]
    for damage in said.damage:
        content = said.seeds()[0]
        made = [damage(content, random.Random(seed)) for seed in range(20)]
        assert made == [damage(content, random.Random(seed)) for seed in range(20)]
        assert sum(each != content for each in made) >= 15


def test_models_with_other_fields_are_still_messages() -> None:
    content = KINDS["onnx"].seeds()[0]
    for seed in range(50):
        made = onnx.ModelProto.FromString(mutations.onnx_of(content, random.Random(seed)))
        assert made.graph.node


def broken(path: Path) -> None:
    raise KeyError("inside")


def silent(path: Path) -> None:
    raise LoadError("no hint", hint="")


@pytest.mark.parametrize(("read", "why"), [(broken, "KeyError: 'inside'"), (silent, "an error without a hint")])
def test_what_is_no_typed_error_is_kept(
    read: object, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = Kind(".x", lambda: (b"content",), (mutations.bytes_of,), read)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(files, "KINDS", MappingProxyType({"x": kind}))
    assert why in run_file("x", 0, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"x-0.x", "x-0.txt"}


def work(task: int, say: Say) -> int:
    """Die on 2; else the square."""
    say(None)
    if task == 2:
        import os

        os.abort()
    return task * task


@pytest.mark.exhaustive
def test_a_process_that_dies_is_a_finding_and_the_rest_goes_on() -> None:
    tasks: Iterator[int] = iter(range(5))
    found = list(work_through(tasks, work, 1))
    assert [f for f in found if not isinstance(f, Died)] == [0, 1, 9, 16]
    assert [(f.task, f.how) for f in found if isinstance(f, Died)] == [(2, "ended with -6")]
