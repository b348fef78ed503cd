"""Progress as it is shown: one line drawn over on a terminal, one line a long phase in a log."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass

import pytest

from dovetail.cli import progress
from dovetail.cli.progress import Drawing, Log, shown_progress, tell
from dovetail.progress import listening, notice, phase
from tests.cli.commands import SMALL, Shell, without_progress


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHORT", 1.0)


@dataclass
class Clock:
    """Time that passes when it is told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def lines(stream: io.StringIO) -> list[str]:
    """What stood in the line, one drawing after the other; an empty one is a line that was cleared."""
    return stream.getvalue().split("\r\x1b[K")[1:]


def test_what_is_over_in_a_second_is_not_spoken_of() -> None:
    for listener in (Drawing, Log):
        clock, stream = Clock(), io.StringIO()
        with listening(listener(stream, clock)), phase("short") as told:
            clock.now += 0.9
            told.at(1, 2)
        assert stream.getvalue() == ""


def test_a_notice_is_a_line_of_its_own() -> None:
    stream = io.StringIO()
    with listening(Log(stream, Clock())), phase("compile"):
        notice("compiled again")
    assert stream.getvalue() == "dovetail: compiled again\n"
    clock, stream = Clock(), io.StringIO()
    with listening(Drawing(stream, clock, lambda: 80)), phase("compile") as told:
        clock.now += 2
        told.at(1, 2)
        notice("compiled again")
    assert "\r\x1b[Kdovetail: compiled again\n" in stream.getvalue()


def test_a_terminal_shows_the_way_there_and_the_time_left() -> None:
    clock, stream = Clock(), io.StringIO()
    drawing = Drawing(stream, clock, lambda: 80)
    with listening(drawing), phase("optimise") as told:
        told.at(1, 4, "canonicalize")
        clock.now += 2
        told.at(3, 4, "fuse")
        clock.now += 1
        drawing.tick()
        with phase("inside"):
            pass
    assert lines(stream) == [
        "optimise: fuse, 3 of 4   2.0 s, about 2.0 s left",
        "optimise: fuse, 3 of 4   3.0 s, about 1.0 s left",
        "optimise: fuse, 3 of 4 > inside   3.0 s, about 1.0 s left",
        "",
    ]


def test_time_left_is_not_told_where_nothing_tells_it() -> None:
    clock, stream = Clock(), io.StringIO()
    with listening(Drawing(stream, clock, lambda: 80)), phase("compile") as told:
        clock.now += 5
        told.at(1, 50, "linear")
    assert lines(stream)[0] == "compile: linear, 1 of 50   5.0 s"


def test_a_line_never_leaves_its_row_and_cannot_be_given_orders() -> None:
    clock, stream = Clock(), io.StringIO()
    with listening(Drawing(stream, clock, lambda: 20)), phase("bench") as told:
        clock.now += 200
        told.at(1, 2, "\x1b[2J\n" + "x" * 500)
    (drawn, cleared) = lines(stream)
    assert drawn == "bench: \\x1b[2J\\nxxx" and len(drawn) == 19 and cleared == ""


def test_what_is_measured_is_left_alone() -> None:
    clock, stream = Clock(), io.StringIO()
    drawing = Drawing(stream, clock, lambda: 80)
    with listening(drawing), phase("measure", still=True) as told:
        clock.now += 3
        drawing.tick()
        assert stream.getvalue() == ""
        told.at(2, 2)
    assert lines(stream)[0].startswith("measure: 2 of 2   3.0 s")


def test_a_log_has_one_line_for_each_long_phase() -> None:
    clock, stream = Clock(), io.StringIO()
    with listening(Log(stream, clock)):
        with phase("import"):
            clock.now += 0.5
        with phase("optimise") as told:
            with phase("inner"):
                clock.now += 90
            told.at(1, 2)
        with phase("compile"):
            clock.now += 125
    assert stream.getvalue() == "dovetail: optimise took 90 s\ndovetail: compile took 2 min 5 s\n"
    assert without_progress(f"{stream.getvalue()}dovetail: interrupted\n") == "dovetail: interrupted\n"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_others_that_write_to_stderr_get_a_free_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "SHORT", 0.0)
    with shown_progress(screen, quiet=False), phase("work", still=True):
        tell("a line\x07 of words")
    shown = screen.getvalue()
    assert re.fullmatch(
        r"\r\x1b\[Kwork   0\.\d s\r\x1b\[Ka line\\x07 of words\n\r\x1b\[Kwork   0\.\d s\r\x1b\[K", shown
    )


def test_a_stream_that_fails_is_nobodys_problem() -> None:
    clock, stream = Clock(), io.StringIO()
    with listening(Log(stream, clock)), phase("import"):
        clock.now += 5
        stream.close()


@pytest.mark.slow
def test_programs_that_read_json_are_told_nothing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHORT", 0.0)
    assert not shell("explain", SMALL["unet"], "--json").err
    assert re.search(r"dovetail: optimise took \d+\.\d s", shell("explain", SMALL["unet"]).err)
