"""The loss of a run, live: a curve that is drawn over on a terminal, a line now and then in a log."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import Protocol, TextIO

from dovetail.dataclass import dataclass
from dovetail.progress import seconds_text
from dovetail.report.curve import curve

_TICK = 0.25
"""Seconds between two drawings on a terminal."""
_QUIET = 10.0
"""Seconds between two lines in a log."""
_MOST = 100
"""Columns of a curve, however wide the terminal is."""


class StepReport(Protocol):
    """The metrics of a step that are drawn."""

    @property
    def step(self) -> int: ...
    @property
    def loss(self) -> float: ...


@dataclass(slots=True)
class LiveCurve:
    """Call it with what each step tells; `close` draws the whole curve for good."""

    stream: TextIO
    name: str
    steps: int | None = None
    """How many steps there will be in all, for the time that is left."""
    first: int = 0
    """The step that the run begins after."""
    clock: Callable[[], float] = time.monotonic
    losses: list[float] = field(default_factory=list[float])
    _began: float | None = None
    _reported_at: float = 0.0
    _drawn: int = 0
    _last: int = 0

    def __call__(self, step: StepReport) -> None:
        now = self.clock()
        if self._began is None:
            self._began, self._reported_at = now, now
        self.losses.append(step.loss)
        self._last = step.step
        live = _redraws(self.stream)
        if now - self._reported_at >= (_TICK if live else _QUIET):
            self._reported_at = now
            self._write([*curve(self.losses, width=self._columns()), self._line(now)] if live else [self._line(now)])

    def close(self) -> None:
        """Draw the curve once more, as a whole, and leave it."""
        if self.losses:
            self._write([*curve(self.losses, width=self._columns()), self._line(self.clock())])
        self._drawn = 0

    def _columns(self) -> int:
        return min(shutil.get_terminal_size().columns - 1, _MOST) if _redraws(self.stream) else 80

    def _line(self, now: float) -> str:
        assert self._began is not None
        taken, done = now - self._began, self._last - self.first
        of = "" if self.steps is None else f" of {self.steps}"
        recent = self.losses[-10:]
        text = f"{self.name}: step {self._last}{of}, loss {sum(recent) / len(recent):.4f}, {seconds_text(taken)}"
        if self.steps is not None and done > 1 and self._last < self.steps:
            text += f", about {seconds_text(taken / (done - 1) * (self.steps - self._last))} left"
        return text

    def _write(self, lines: list[str]) -> None:
        """Lines in the place of those that stand there."""
        above = f"\x1b[{self._drawn}A\x1b[J" if self._drawn else ""
        encoding = self.stream.encoding or "utf-8"
        text = above + "\n".join(lines) + "\n"
        with suppress(OSError, ValueError):  # training goes on where its curve cannot be shown
            self.stream.write(text.encode(encoding, "replace").decode(encoding))
            self.stream.flush()
        self._drawn = len(lines) if _redraws(self.stream) else 0


def _redraws(stream: TextIO) -> bool:
    """Return whether lines can be drawn over."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except ValueError:
        return False


__all__ = ["LiveCurve"]
