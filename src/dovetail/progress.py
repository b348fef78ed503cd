"""Progress: what takes long says what it is doing, to whoever listens.

Nobody does unless `listening` says so, and telling costs next to nothing then. Threads have no listener of their own.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol


class Listener(Protocol):
    """Hears of phases as they begin and end, one inside the other."""

    def began(self, phase: str, *, still: bool) -> None:
        """A phase began. `still`: it is measured, and nothing may disturb it."""
        ...

    def reached(self, item: str, number: int, of: int, done: float) -> None:
        """The innermost phase is at its item `number`, counted from 1, and has done this share of its work."""
        ...

    def ended(self) -> None:
        """The innermost phase ended."""
        ...

    def noticed(self, words: str) -> None:
        """Something happened that people who wait would like to know."""
        ...


_listener: ContextVar[Listener | None] = ContextVar("dovetail_listener", default=None)


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """The listener hears of all that is done inside, in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Phase:
    """One thing that may take a while. As a context it begins and ends."""

    __slots__ = ("_listener", "_name", "_still")

    def __init__(self, listener: Listener | None, name: str, still: bool) -> None:
        self._listener = listener
        self._name = name
        self._still = still

    def __enter__(self) -> Phase:
        if self._listener is not None:
            self._listener.began(self._name, still=self._still)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            self._listener.ended()

    def at(self, number: int, of: int, item: str = "", *, done: float | None = None) -> None:
        """It is at item `number` of so many, counted from 1. `done` is the share of the work that lies behind it."""
        if self._listener is not None:
            self._listener.reached(item, number, of, (number - 1) / of if done is None else done)


def phase(name: str, *, still: bool = False) -> Phase:
    """A phase to go through: `with phase("plan"): …`."""
    listener = _listener.get()
    return Phase(listener, name, still)


def notice(words: str) -> None:
    """Say something that explains why this takes as long as it does."""
    listener = _listener.get()
    if listener is not None:
        listener.noticed(words)


def seconds_text(seconds: float) -> str:
    """A duration for people."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60} s"


__all__ = ["Listener", "Phase", "listening", "notice", "phase"]
