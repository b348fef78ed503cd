"""A peer in a process of its own: it answers, and its end is a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.bench.case import Case, load_arrays, written
from dovetail.bench.measure import deviation
from dovetail.bench.peer_process import LEAST_RUNS, PeerContender, reason, results_of
from dovetail.bench.peers import EVERY
from dovetail.bench.process import Process, RefusedError, environment, make_setting
from dovetail.targets import Target
from tests.bench.small import SMALL

pytestmark = pytest.mark.serial  # it starts processes that measure


@pytest.mark.exhaustive
def test_a_process_starts_takes_turns_and_leaves_its_results(tmp_path: Path) -> None:
    case, setting = written("encoder", SMALL["encoder"], tmp_path), make_setting(1, tmp_path)
    with Process("dovetail", case, setting) as process:
        assert process.start()["first"] > 0
        assert len(process.turn(0.0)["runs"]) == LEAST_RUNS
    seat = PeerContender(EVERY["onnxruntime"], case, setting)
    seat.start()
    found = [load_arrays(results_of(setting, name)) for name in ("dovetail", "onnxruntime")]
    assert deviation(*found) < 1e-4


@pytest.mark.slow
def test_a_process_that_fails_or_ends_says_why(tmp_path: Path) -> None:
    case, setting = Case("none", tmp_path / "none.onnx", tmp_path), make_setting(1, tmp_path)
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    with Process("dovetail", case, setting) as process:
        with pytest.raises(RefusedError, match=r"inputs\.npz"):
            process.start()
        process.end()
        with pytest.raises((RefusedError, ValueError)):
            process.turn(0.0)
    assert before is None or os.sched_getaffinity(0) == before


def test_a_reason_skips_where_it_was_raised() -> None:
    said = "Exception from src/core.cpp:132:\nException from src/read.cpp:9:\n  the operator Foo is not known\nmore"
    assert reason(RuntimeError(said)) == "the operator Foo is not known"
    assert reason(RuntimeError()) == "RuntimeError"


def test_a_mesh_is_of_any_devices_that_jax_finds(tmp_path: Path) -> None:
    setting = make_setting(1, tmp_path)
    assert setting.target == "cpu" and environment(setting)["JAX_PLATFORMS"] == "cpu"
    setting.place({"dp": 2}, {"x": "dp"})
    assert isinstance(setting.target, Target) and setting.target.name == "xla"
    assert "JAX_PLATFORMS" not in environment(setting)


@pytest.mark.parametrize("forbidden", [True, False])
def test_processes_share_bytecode_where_python_may_not_write_it(
    forbidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    setting = make_setting(1, tmp_path)
    (tmp_path / "imported.py").write_text("")
    said = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import imported"
    subprocess.run([sys.executable, "-c", said], env={**os.environ, **environment(setting)}, check=True)
    assert bool([*setting.cache.rglob("imported.*.pyc")]) == forbidden
    assert not (tmp_path / "__pycache__").exists()
