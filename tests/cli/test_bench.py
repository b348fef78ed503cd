"""`dovetail bench`: what is asked, what is shown, what is written, and what a failure does not take away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.bench import case, measure
from dovetail.bench.result import Floor, Peak, Result, Timed
from dovetail.cli.main import main
from dovetail.errors import CheckError

pytestmark = pytest.mark.serial  # it starts processes that measure

Run = Callable[[str], None]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Stands for the measurement itself; lists what it was asked for."""
    asked: list[tuple[str, int]] = []

    def found(of: Any, threads: int, peers: Any, effort: Any, folder: Path, say: Run, placed: Any) -> Result:
        asked.append((of.name, threads))
        if of.name == "minilm_1x128":
            raise CheckError("dovetail does not run this: no")
        timed = (Timed("dovetail", 0.5, 0.1, 2_000_000, runs=[0.002] * 4), Timed("onnxruntime", 0.2, runs=[0.003] * 4))
        return Result(
            of.name, threads, timed, Floor(1e6, 1e3, (Peak(1e9, 1e9),), Peak(2e9, 2e9)), {"openvino": "it is not known"}
        )

    monkeypatch.setattr(measure, "bench", found)
    monkeypatch.setattr(case, "case_of", lambda name, sizes, folder: case.Case(name, folder, folder))  # pyright: ignore
    return asked


def test_a_table_and_a_line_for_each(
    measured: list[tuple[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    assert main(["bench", "unet_block", "--threads", "2", "--threads", "1", "--out", str(out)]) == 0
    assert measured == [("unet_block", 1), ("unet_block", 2)]
    said = capsys.readouterr()
    assert said.out.endswith("bench unet_block threads=2 ratio=1.50 best_peer=onnxruntime ms=2 limit=0.50\n")
    assert "refused: it is not known" in said.out
    assert said.err.splitlines() == [
        f"bench: unet_block threads={n} ratio=1.50 best_peer=onnxruntime ms=2 limit=0.50" for n in (1, 2)
    ]
    written = json.loads(out.read_text(encoding="utf-8"))
    assert {"date", "machine", "versions", "how", "results"} <= written.keys()
    assert [(r["threads"], r["peers"][0]["warm"]) for r in written["results"]] == [(1, 0.1), (2, 0.1)]


def test_a_workload_that_fails_leaves_the_others(
    measured: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "all", "all", "--threads", "1", "--json"]) == CheckError.exit_code
    said = capsys.readouterr()
    assert said.err.startswith("dovetail: dovetail does not run this: no"), "nothing but the failure"
    names = [r["workload"] for r in json.loads(said.out)["results"]]
    assert names == [name for name, _ in measured if name != "minilm_1x128"] and len(names) >= 7


@pytest.mark.parametrize(
    "arguments", [["--threads", "0"], ["--seconds", "0"], ["--vs", "tvm"], ["--out", "no/such/f.json"], ["nonsense"]]
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 1
    assert "hint" in capsys.readouterr().err


def test_a_placement_needs_a_mesh(measured: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpt2_1x128", "--place", "auto"]) != 0
    assert "--place without --mesh" in capsys.readouterr().err and not measured
