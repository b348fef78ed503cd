"""What imports of all front ends share: the graph that grows, names of open sizes, places of errors, missing rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

from dovetail.errors import DovetailError, LoadError, UnsupportedError
from dovetail.frontends.shared.contents import Follower
from dovetail.frontends.shared.messages import printable
from dovetail.ir.dim import Dim, symbol
from dovetail.ir.graph import Builder
from dovetail.ir.origin import Origin

MOST_LISTED = 40
"""Operators without a rule that a message names."""


class Importer:
    """One import."""

    def __init__(self, name: str) -> None:
        self.builder = Builder(name, lines=False)
        self.follower = Follower()
        """What is known about contents of values."""
        self.symbols: set[str] = set()
        """The names of sizes that are taken."""
        self._counts: dict[str, int] = {}
        """How many symbols there are of one stem."""

    def fresh(self, name: str) -> Dim:
        """A symbol that no other size has."""
        stem = re.sub(r"\W", "_", name, flags=re.ASCII)[:64] or "n"
        stem = stem if not stem[0].isdigit() else f"n_{stem}"
        chosen, count = stem, self._counts.get(stem, 0)
        while chosen in self.symbols:
            count += 1
            chosen = f"{stem}_{count}"
        self._counts[stem] = count
        self.symbols.add(chosen)
        return symbol(chosen)

    @contextmanager
    def step(self, op: str, where: Callable[[], str], origins: tuple[Origin, ...] | None) -> Generator[None]:
        """While an operator is imported: its values come from these origins, and its errors name its place.

        Without origins, values come from where those around them come from.
        """
        recorder = self.builder.recorder
        around = recorder.place
        recorder.place = around if origins is None else origins
        try:
            yield
        except DovetailError as error:
            error.where = error.where or where()
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise LoadError(
                f"{op} cannot be imported: {error}",
                hint="check its inputs and attributes; report it where the framework takes them",
                where=where(),
            ) from error
        finally:
            recorder.place = around


def refuse(lacking: Iterable[tuple[str, str]], hint: str) -> None:
    """Refuse operators without a rule, each with its place, as one error; without any, do nothing."""
    places: dict[str, list[str]] = {}
    for op, where in lacking:
        places.setdefault(op, []).append(where)
    if not places:
        return
    ranked = sorted(places, key=lambda op: (-len(places[op]), op))
    lines = [f"  {printable(op)}: {_places(places[op])}" for op in ranked[:MOST_LISTED]]
    more = [f"  and {len(ranked) - MOST_LISTED} more operators"] if len(ranked) > MOST_LISTED else []
    what = "1 operator of this model is" if len(ranked) == 1 else f"{len(ranked)} operators of this model are"
    raise UnsupportedError("\n".join([f"{what} not supported:", *lines, *more]), hint=hint)


def _places(where: list[str]) -> str:
    """How often an operator is used, and where first."""
    count = f"{len(where)} time{'s' * (len(where) > 1)}"
    named = list(dict.fromkeys(place for place in where if place))[:3]
    return f"{count}, {'first ' * (len(named) < len(where))}at {', '.join(named)}" if named else count


__all__ = ["MOST_LISTED", "Importer", "refuse"]
