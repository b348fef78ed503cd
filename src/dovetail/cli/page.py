"""The page of the command line, generated from the commands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from dovetail.cli.command import Argument, Command
from dovetail.cli.model import BUILDERS, known_options

_START = """# The command line

`dovetail COMMAND …`, also as `python -m dovetail COMMAND …`. Results go to stdout, messages about them
to stderr. A terminal gets colours, unless `NO_COLOR` is set or `TERM` is `dumb`, and lines that fit it.
`dovetail completion bash|zsh|fish` prints what completes command lines: `source <(dovetail completion bash)`.
An option that has no effect in a command line is refused. An old spelling works for one version; stderr has the
new one. With `--json` a command prints one object with a `schema_version`, whose JSON Schema is in the package, as
`dovetail/cli/schemas/COMMAND.json`. Progress of slow phases goes to stderr: on a terminal
one line with the time left, which goes away, in a log one line for each such phase,
with `--json` nothing. Names of a model are shown with control characters spelled out.

| exit code | means |
|---|---|
| 0 | ok |
| 1 | the command line, a file, its data or a size is wrong, or a loss is not finite; stderr says what, and what to do |
| 2 | an operator, a type or a target that there is not |
| 3 | a graph that does not verify, or a rule that is wrong on a model (`verify`) |
| 4 | a gate: a required fusion is missing (`--require`), or one was missed (`--require-clean`) |
| 5 | a check: float64 says that results are off by more than rounding explains (`run --check`, `verify`) |
| 130 | interrupted by Ctrl-C |
"""

_AFTER_CODES = "Other programs that use argparse exit with 2 where the command line is wrong; dovetail exits with 1.\n"


def _line(argument: Argument) -> str:
    """The line of an argument: what it takes, whether it may be repeated, and what it belongs to."""
    usage = argument.usage().strip("[]").replace("] …", " …") if argument.name[0] == "-" else argument.usage()
    needs = f" (with `{argument.needs}`)" if argument.needs else ""
    return f"- `{usage}`{needs}: {argument.doc}."


def describe(commands: Iterable[Command]) -> str:
    """Every command with its arguments, and the built-in models with their options, as Markdown."""
    lines = [_START, _AFTER_CODES]
    for command in commands:
        shown = [argument for argument in command.arguments if not argument.hidden]
        usage = "\n".join(_usage(command, shown))
        lines += [f"## dovetail {command.name}", "", command.doc, "", "```text", usage, "```", ""]
        lines += [_line(argument) for argument in shown]
        lines.append("")
    lines += ["## Built-in models", "", "Each option with its default; a name as a size is symbolic.", ""]
    for name, builder in BUILDERS.items():
        lines.append(f"- `{name}:{','.join(map(str, known_options(builder).values()))}`")
    return "\n".join(lines) + "\n"


def _usage(command: Command, shown: Iterable[Argument]) -> list[str]:
    """Return a command with its arguments, in lines that a page shows whole; an argument is never broken."""
    words = [argument.usage().replace(" ", "\xa0") for argument in shown]
    text = " ".join([f"dovetail {command.name}", *words])
    lines = textwrap.wrap(text, 100, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]
