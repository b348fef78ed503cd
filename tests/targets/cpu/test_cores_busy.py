"""How busy the machine is, by the counters of the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.targets.cpu import cores
from dovetail.targets.cpu.cores import busy_share


def test_the_share_in_use_is_counted_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc/stat"
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n")

    def later(seconds: float) -> None:
        stat.write_text("cpu  160 0 65 825 50 0 0 0 0 0\n")

    monkeypatch.setattr(cores.time, "sleep", later)
    assert busy_share(tmp_path) == pytest.approx(0.75)


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu x y\n", "cpu 1 2 3\n", "cpu 1 2 3 4 5 6 7 8\n"])
def test_a_system_that_does_not_tell_counts_as_idle(text: str, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    assert busy_share(tmp_path, seconds=0.0) == 0.0
    assert busy_share(tmp_path / "nowhere", seconds=0.0) == 0.0
