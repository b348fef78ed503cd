"""A command of the command line: its arguments as data, and what it answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError

SCHEMA_VERSION = 1
"""Of the JSON that commands print, but for `explain`, whose report has a version of its own."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: a positional by its name, an option by its flag; `how` goes to argparse."""

    name: str
    doc: str
    how: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def usage(self) -> str:
        """The argument as a line of usage shows it."""
        shown = self.how.get("metavar") or ("|".join(self.how["choices"]) if "choices" in self.how else self.name)
        if not self.name.startswith("-"):
            return {"?": f"[{shown}]", "*": f"[{shown}] …"}.get(self.how.get("nargs", ""), shown)
        shown = f"[{shown} …]" if self.how.get("nargs") == "*" else shown
        word = self.name if self.how.get("action") == "store_true" else f"{self.name} {shown}"
        return f"[{word}]" + (" …" if self.how.get("action") == "append" else "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes to stdout, and the failure that decides the exit code once it is written."""

    text: str
    failure: DovetailError | None = None
    painted: bool = False
    """Whether the text is made for the terminal it goes to; other text is made plain on its way."""
    pieces: Iterable[str] = ()
    """What is written before the text, piece by piece as it comes."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: `dovetail name …`."""

    name: str
    doc: str
    arguments: tuple[Argument, ...]
    run: Callable[[argparse.Namespace], Answer]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        for argument in self.arguments:
            parser.add_argument(argument.name, help=argument.doc.replace("%", "%%"), **argument.how)
        parser.set_defaults(run=self.run)
