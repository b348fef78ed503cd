"""Where a value comes from in the user's words. Kept apart from identity, merged when values merge."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value, listening

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep


@dataclass(frozen=True, slots=True)
class Origin:
    """A place that the author of a model knows: a module path, a node of a file, a source line."""

    kind: Literal["module", "source", "onnx", "text"]
    name: str

    def __str__(self) -> str:
        return self.name


def merge(*groups: Iterable[Origin]) -> tuple[Origin, ...]:
    """Return the origins of several values that became one, each once, in order."""
    return tuple(dict.fromkeys(origin for group in groups for origin in group))


class Recorder:
    """Notes, while a graph is being built, which scope and line each value was written at."""

    def __init__(self, *, lines: bool = True) -> None:
        self.scopes: list[str] = []
        self.lines = lines
        self.place: tuple[Origin, ...] = ()
        """Where values come from that are read from a file; it goes before scopes and lines."""
        self.origins: dict[Value, tuple[Origin, ...]] = {}

    def note(self, value: Value) -> None:
        here = self._here()
        if here:
            known = self.origins.get(value)
            self.origins[value] = here if known is None else merge(known, here)

    def _here(self) -> tuple[Origin, ...]:
        if self.place:
            return self.place
        if self.scopes:
            return (Origin("module", ".".join(self.scopes)),)
        return _source_line() if self.lines else ()


def _source_line() -> tuple[Origin, ...]:
    """Return the innermost line that is not dovetail's own."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # the one way to see the caller
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return (Origin("source", f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"),)
        frame = frame.f_back
    return ()


def active() -> Recorder | None:
    """Return the recorder of this context."""
    recorder = listening.get()
    return recorder if isinstance(recorder, Recorder) else None


@contextmanager
def recording(recorder: Recorder) -> Generator[Recorder]:
    """Values made inside are noted in the recorder."""
    token = listening.set(recorder)
    try:
        yield recorder
    finally:
        listening.reset(token)


@contextmanager
def unrecorded() -> Generator[None]:
    """Values made inside belong to no place: traces that are kept would be noted where they happen to be made first."""
    token = listening.set(None)
    try:
        yield
    finally:
        listening.reset(token)


@contextmanager
def scope(name: str) -> Generator[None]:
    """Values made inside belong to the module `name`, below the scopes around it."""
    recorder = active()
    if recorder is None:
        yield
        return
    recorder.scopes.append(name)
    try:
        yield
    finally:
        recorder.scopes.pop()
