"""Where values of a backward pass belong: to the places of the forward values, marked."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from dovetail.ir.origin import Origin, Recorder, recording
from dovetail.ir.value import Value

MARK = "backward of "


class BackwardPlaces:
    """Notes the origins of values that a walk makes."""

    def __init__(self, known: Mapping[Value, tuple[Origin, ...]]) -> None:
        self.known = known
        self.recorder = Recorder(lines=False)

    @contextmanager
    def recording(self) -> Generator[None]:
        """Values made inside are noted."""
        with recording(self.recorder):
            yield

    @contextmanager
    def at(self, value: Value) -> Generator[None]:
        """Values made inside belong to the place of this value; one without a place leaves them where they are."""
        origins = self.known.get(value)
        before = self.recorder.place
        if origins:
            self.recorder.place = tuple([marked(o) for o in origins])
        try:
            yield
        finally:
            self.recorder.place = before

    def where(self, value: Value) -> str:
        """Return the place of a forward value, for messages."""
        return ", ".join(str(o) for o in self.known.get(value, ())[:3])

    def fresh_origins(self) -> dict[Value, tuple[Origin, ...]]:
        """Return the origins of values that had none before."""
        return {v: o for v, o in self.recorder.origins.items() if v not in self.known}


def marked(origin: Origin) -> Origin:
    """Return the place of the gradient of a value."""
    return replace(origin, name=MARK + origin.name)


__all__ = ["MARK", "BackwardPlaces", "marked"]
