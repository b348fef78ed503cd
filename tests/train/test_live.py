"""The live curve of a run: drawn over on a terminal, a line now and then in a log."""

from __future__ import annotations

import io
import itertools

import pytest

from dovetail.train import Metrics
from dovetail.train.live import LiveCurve


class Terminal(io.StringIO):
    encoding = "utf-8"  # pyright: ignore[reportAssignmentType]

    def isatty(self) -> bool:
        return True


def test_a_log_has_a_line_now_and_then_and_the_curve_at_the_end() -> None:
    seconds = itertools.count()
    stream = io.StringIO()
    live = LiveCurve(stream, "digits", 30, clock=lambda: float(next(seconds)))
    for step in range(1, 31):
        live(Metrics(step, 1 / step, 0.0, 0.1))
    live.close()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("digits: step 11 of 30, loss") and lines[0].endswith("about 19 s left")
    assert len([line for line in lines if line.startswith("digits")]) == 3
    assert len([line for line in lines if "┤" in line]) == 8 and "\x1b" not in stream.getvalue()


def test_a_terminal_is_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    seconds = itertools.count()
    stream = Terminal()
    live = LiveCurve(stream, "digits", clock=lambda: float(next(seconds)))
    for step in range(1, 4):
        live(Metrics(step, 1 / step, 0.0, 0.1))
    live.close()
    assert stream.getvalue().count("\x1b[9A\x1b[J") == 2
    assert max(len(line) for line in stream.getvalue().splitlines()) < 60
