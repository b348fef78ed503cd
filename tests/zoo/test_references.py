"""References that are kept, and models that cost their own line alone."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import constant, input, param
from zoo import alone, kept, references
from zoo.findings import Findings, as_dict
from zoo.references import References

X = {"x": np.array([1.0, 2.0], np.float32)}


def test_a_reference_is_computed_once_and_damage_is_no_error(tmp_path: Path) -> None:
    computed: list[int] = []

    def compute() -> dict[str, NDArray[Any]]:
        computed.append(1)
        return {"file": np.arange(3.0), "a/b": np.array(True)}

    store = References(tmp_path / "kept")
    for _ in range(3):
        found = store.kept("key", compute)
        assert list(found) == ["file", "a/b"] and found["file"].dtype == np.float64 and found["a/b"].shape == ()
    assert len(computed) == 1
    (path,) = (tmp_path / "kept").iterdir()
    path.write_bytes(path.read_bytes()[:40])
    assert store.kept("key", compute)["file"].tolist() == [0, 1, 2] and len(computed) == 2


def test_whatever_decides_a_reference_is_in_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def graph(scale: float, weight: float) -> Graph:
        y = ops.mul(input("x", f32[2]), param("w", f32[2]))
        made = Graph.of(ops.mul(y, constant(scale, f32)))
        object.__setattr__(made, "params", {"w": np.full(2, weight, np.float32)})
        return made

    store = References(tmp_path)
    feeds = (X, {"x": X["x"] * 2})
    for scale, weight, feed in ((2.0, 1.0, feeds[0]), (3.0, 1.0, feeds[0]), (3.0, 5.0, feeds[0]), (3.0, 5.0, feeds[1])):
        for _ in range(2):
            found = store.of_graph(graph(scale, weight), feed)
            assert np.array_equal(found["y"], feed["x"] * np.float64(scale * weight))
    assert len(list(tmp_path.iterdir())) == 4
    monkeypatch.setattr(references, "meanings", lambda: "another version of the ops")
    store.of_graph(graph(2.0, 1.0), X)
    assert len(list(tmp_path.iterdir())) == 5


def test_references_that_were_read_longest_ago_go_first(tmp_path: Path) -> None:
    store = References(tmp_path, most_bytes=3000)
    for number in range(4):
        store.kept(f"key{number}", lambda: {"y": np.zeros(100)})
    assert [p.stem for p in sorted(tmp_path.iterdir())] == ["key2", "key3"]


def test_a_model_that_is_killed_or_hangs_costs_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, -signal.SIGKILL)

    def hangs(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        raise subprocess.TimeoutExpired(command, 1.0)

    monkeypatch.setattr(subprocess, "run", killed)
    found = alone.judge("silero 16k", "cpu", 1)
    assert found is not None and found.error == "the process ended early: signal 9 (SIGKILL)"
    monkeypatch.setattr(subprocess, "run", hangs)
    found = alone.judge("silero 16k", "cpu", 1, 1.0)
    assert found is not None and "did not end within 1 seconds" in found.error


def test_findings_are_kept_one_by_one_and_older_entries_stay(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    older = as_dict(Findings("b", "it does not load"))
    del older["build"], older["unnamed"]
    path.write_text(json.dumps([older, {"no": "findings"}]), encoding="utf-8")
    kept.add(Findings("a", build="now"), ["a", "b"], path)
    listed = kept.add(Findings("c"), ["a", "b", "c"], path)
    assert [(f.name, f.error, f.build) for f in listed[:2]] == [("a", "", "now"), ("b", "it does not load", "")]
    assert list(kept.read(path)) == ["a", "b", "c"]
