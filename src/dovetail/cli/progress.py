"""Progress on stderr: one line that is drawn over on a terminal, one line for each long phase in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import field
from typing import Protocol, TextIO

from dovetail.cli.terminal import redraws, width
from dovetail.dataclass import dataclass
from dovetail.progress import Listener, listening, seconds_text
from dovetail.sanitize import visible

SHORT = 1.0
"""Seconds; what takes less is not spoken of."""
_TICK = 0.2
_LEAST_DONE = 0.02
"""The share of its work that a phase has to have done before it is asked how long the rest takes."""
_CLEAR = "\r\x1b[K"


@dataclass(slots=True)
class _Phase:
    """A phase that is under way."""

    name: str
    still: bool
    began: float
    item: str = ""
    number: int = 0
    of: int = 0
    done: float = 0.0
    reached: float = 0.0

    def __str__(self) -> str:
        place = f"{self.number} of {self.of}" if self.of else ""
        said = ", ".join(part for part in (self.item, place) if part)
        return f"{self.name}: {said}" if said else self.name

    def left(self, now: float) -> float | None:
        """Seconds until it ends, if its work goes on as it did so far; None where nothing tells."""
        if self.done < _LEAST_DONE or self.reached - self.began < SHORT / 2:
            return None
        left = self.began + (self.reached - self.began) / self.done - now
        return left if left > 0 else None


@dataclass(slots=True)
class Drawing:
    """One line on a terminal that says what is going on, once it has gone on for a second."""

    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    columns: Callable[[], int] = width
    _phases: list[_Phase] = field(default_factory=list[_Phase])
    _drawn: str = ""
    _last: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def began(self, phase: str, *, still: bool) -> None:
        with self._lock:
            self._phases.append(_Phase(phase, still, self.clock()))
            self._draw()

    def reached(self, item: str, number: int, of: int, done: float) -> None:
        with self._lock:
            phase, now = self._phases[-1], self.clock()
            phase.item, phase.number, phase.of, phase.done, phase.reached = item, number, of, done, now
            if now - self._last >= _TICK:
                self._draw()

    def ended(self) -> None:
        with self._lock:
            self._phases.pop()
            if not self._phases:
                self.clear()

    def noticed(self, words: str) -> None:
        with self._lock:
            self.clear()
            _write(self.stream, f"dovetail: {visible(words)}\n")
            self.redraw()

    def tick(self) -> None:
        """Time has passed. What is measured is not disturbed."""
        with self._lock:
            if not any(phase.still for phase in self._phases):
                self.redraw()

    def redraw(self) -> None:
        """Put the line back, if something is under way."""
        with self._lock:
            if self._phases:
                self._draw()

    def _draw(self) -> None:
        now = self.clock()
        if now - self._phases[0].began < SHORT:
            return
        self._last = now
        text = self._text(now)[: max(self.columns() - 1, 1)]
        if text != self._drawn:
            self._drawn = text
            _write(self.stream, _CLEAR + text)

    def clear(self) -> None:
        """Take the line away, for whoever writes next."""
        with self._lock:
            if self._drawn:
                self._drawn = ""
                _write(self.stream, _CLEAR)

    def _text(self, now: float) -> str:
        path = visible(" > ".join(map(str, self._phases)))
        left = next((left for phase in self._phases if (left := phase.left(now)) is not None), None)
        rest = "" if left is None else f", about {seconds_text(left)} left"
        return f"{path}   {seconds_text(now - self._phases[0].began)}{rest}"


@dataclass(slots=True)
class Log:
    """A line for each phase that took longer than a second; phases inside others are part of them."""

    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _began: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def began(self, phase: str, *, still: bool) -> None:
        self._began.append((phase, self.clock()))

    def reached(self, item: str, number: int, of: int, done: float) -> None:
        """A log has no use for what is over soon."""

    def ended(self) -> None:
        phase, began = self._began.pop()
        seconds = self.clock() - began
        if not self._began and seconds >= SHORT:
            _write(self.stream, f"dovetail: {phase} took {seconds_text(seconds)}\n")

    def noticed(self, words: str) -> None:
        _write(self.stream, f"dovetail: {visible(words)}\n")

    def clear(self) -> None:
        """Lines of a log stay."""

    def redraw(self) -> None:
        """They need not be written again."""


class Shown(Listener, Protocol):
    """A listener that shows what it hears."""

    def clear(self) -> None:
        """Leave the stream ready for a line of somebody else."""
        ...

    def redraw(self) -> None:
        """That line is written."""
        ...


_shown: list[Shown] = []
"""What is being shown now; others that write to stderr ask it to make room."""


@contextmanager
def shown_progress(stream: TextIO | None, *, quiet: bool) -> Generator[None]:
    """Show progress of what is done inside, unless it is to be quiet."""
    if stream is None or quiet:
        yield
        return
    listener = Drawing(stream) if redraws(stream) else Log(stream)
    over = threading.Event()
    ticker = threading.Thread(target=_ticking, args=(listener, over), name="progress", daemon=True)
    if isinstance(listener, Drawing):
        ticker.start()
    _shown.append(listener)
    try:
        with listening(listener):
            yield
    finally:
        over.set()
        _shown.remove(listener)
        listener.clear()


def _ticking(drawing: Drawing, over: threading.Event) -> None:
    while not over.wait(_TICK):
        drawing.tick()


def tell(words: str) -> None:
    """A line for people on stderr, in the place of a progress line that stands there."""
    for listener in _shown:
        listener.clear()
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]  # none where the shell closed it
        _write(sys.stderr, "\n".join([*map(visible, words.split("\n")), ""]))
    for listener in _shown:
        listener.redraw()


def _write(stream: TextIO, text: str) -> None:
    """Text to a stream. Nobody is to fail because progress cannot be shown."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        pass


__all__ = ["Drawing", "Log", "shown_progress", "tell"]
