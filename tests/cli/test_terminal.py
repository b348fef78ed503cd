"""What a stream can show."""

from __future__ import annotations

import io

import pytest

from dovetail.cli.terminal import look_of, redraws
from dovetail.report.paint import PLAIN, Look


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_and_a_closed_stream_are_plain() -> None:
    closed = Screen()
    closed.close()
    gone = io.StringIO()
    gone.close()
    for stream in (io.StringIO(), gone, None):
        assert look_of(stream, {"TERM": "xterm", "COLUMNS": "80"}) == PLAIN
        assert not redraws(stream, {"TERM": "xterm"})


@pytest.mark.parametrize(
    ("environ", "look"),
    [
        ({"TERM": "xterm"}, Look(100, colour=True)),
        ({"TERM": "xterm", "NO_COLOR": ""}, Look(100, colour=True)),
        ({"TERM": "xterm", "NO_COLOR": "1"}, Look(100)),
        ({"TERM": "dumb"}, Look(100)),
        ({}, Look(100)),
    ],
)
def test_colours_can_be_switched_off(environ: dict[str, str], look: Look) -> None:
    assert look_of(Screen(), {"COLUMNS": "100", **environ}) == look


def test_the_width_is_asked_for_where_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    found = look_of(Screen(), {"TERM": "xterm", "COLUMNS": "wide"}).width
    assert found is not None and found > 0


def test_a_dumb_terminal_is_not_drawn_over() -> None:
    assert redraws(Screen(), {"TERM": "xterm"}) and not redraws(Screen(), {"TERM": "dumb"})
