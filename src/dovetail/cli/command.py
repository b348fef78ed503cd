"""A command of the command line: its arguments as data, and what it answers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError, OptionError
from dovetail.renamed import REMOVED_IN

SCHEMA_VERSION = 1
"""Of the JSON that commands print, but for `explain`, whose report has a version of its own."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: a positional by its name, an option by its flag; `how` goes to argparse."""

    name: str
    doc: str
    how: Mapping[str, Any] = field(default_factory=dict[str, Any])
    old: str = ""
    """The flag that it had before: it works for one more version, and warns."""
    hidden: bool = False
    """Whether help and the page leave it out: for those who work on dovetail."""
    needs: str = ""
    """The flag without which this one would have no effect, and is refused."""
    group: str = ""
    """The heading that help lists it under."""

    @property
    def key(self) -> str:
        """Its name in a namespace."""
        return str(self.how.get("dest", self.name.lstrip("-").replace("-", "_")))

    def usage(self) -> str:
        """The argument as a line of usage shows it."""
        shown = self.how.get("metavar") or ("|".join(self.how["choices"]) if "choices" in self.how else self.name)
        if not self.name.startswith("-"):
            return {"?": f"[{shown}]", "*": f"[{shown}] …"}.get(self.how.get("nargs", ""), shown)
        shown = f"[{shown} …]" if self.how.get("nargs") == "*" else shown
        word = self.name if self.how.get("action") == "store_true" else f"{self.name} {shown}"
        if self.how.get("required"):
            return word
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
    old: str = ""
    """The name that it had before."""

    @property
    def prints_json(self) -> bool:
        """Whether it has data for programs, of which there is a schema."""
        return any(argument.name == "--json" for argument in self.arguments)

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        positionals = [a.usage() for a in self.arguments if a.name[0] != "-" or a.how.get("required")]
        parser.usage = " ".join(["dovetail", self.name, *positionals, "[OPTION …]"])
        groups: dict[str, Any] = {"": parser}
        for argument in self.arguments:
            into = groups.get(argument.group)
            if into is None:
                into = groups[argument.group] = parser.add_argument_group(argument.group)
            doc = argparse.SUPPRESS if argument.hidden else argument.doc.replace("%", "%%")
            into.add_argument(argument.name, help=doc, **argument.how)
        parser.set_defaults(run=self.run, command=self)

    def check(self, args: argparse.Namespace) -> None:
        """Refuse every option that would have no effect."""
        given = vars(args)
        flags = {argument.name: argument for argument in self.arguments}
        for argument in self.arguments:
            if not argument.needs:
                continue
            needed = flags[argument.needs]
            default = argument.how.get("default", False if argument.how.get("action") == "store_true" else None)
            if given[argument.key] != default and not _is_given(given[needed.key], needed):
                raise OptionError(
                    f"{argument.name} without {argument.needs}, which it belongs to",
                    hint=f"add {argument.needs}, or leave {argument.name} out",
                )


def _is_given(value: object, argument: Argument) -> bool:
    return value not in (None, False, []) and value != argument.how.get("default")


def current_words(command: Command, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words after a command with new flags in the place of old ones, and what to say of these."""
    names = {argument.old: argument.name for argument in command.arguments if argument.old}
    changed: list[str] = []
    said: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in names:
            said.append(f"{flag} is now {names[flag]}; the old name goes with dovetail {REMOVED_IN}")
            word = f"{names[flag]}{equals}{value}"
        changed.append(word)
    return changed, said
