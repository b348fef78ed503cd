"""From the words of a command line to a command, and from its answer to the streams."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn, TextIO

from dovetail.cli import (
    bench,
    bisect,
    cache,
    catalog,
    chat,
    compile,
    completion,
    diff,
    doctor,
    explain,
    export,
    generate,
    lock,
    operators,
    perplexity,
    place,
    plan,
    profile,
    quantize,
    run,
    serve,
    show,
    trace,
    train,
    verify,
    what_if,
    why,
)
from dovetail.cli.command import Answer, Command, current_words
from dovetail.cli.old_spellings import split_explain
from dovetail.cli.progress import shown_progress, tell
from dovetail.errors import DovetailError, LoadError, OptionError
from dovetail.nearest import nearest
from dovetail.renamed import REMOVED_IN
from dovetail.runtime.hosts import Reporter
from dovetail.sanitize import sanitize, visible
from dovetail.version import __version__

GROUPS: Mapping[str, tuple[Command, ...]] = {
    "Explain": (explain.COMMAND, why.COMMAND, what_if.COMMAND, place.COMMAND, show.COMMAND, plan.COMMAND),
    "Run": (run.COMMAND, profile.COMMAND, trace.COMMAND, bench.COMMAND),
    "Keep and judge": (lock.LOCK, lock.CHECK, diff.COMMAND, verify.COMMAND, bisect.COMMAND),
    "Change": (train.COMMAND, quantize.COMMAND, export.COMMAND, compile.COMMAND),
    "Language models": (generate.COMMAND, chat.COMMAND, serve.COMMAND, perplexity.COMMAND),
    "Look up": (catalog.COMMAND, operators.COMMAND, cache.COMMAND, doctor.COMMAND),
}
"""The commands, as help groups them."""
_GROUPED = tuple(command for group in GROUPS.values() for command in group)
COMMANDS: tuple[Command, ...] = (*_GROUPED, completion.command(_GROUPED))
_FIRST = {
    "explain": "what fused, what did not, why, and what both cost",
    "why": "one node: which rules were tried, and what refused each",
    "run": "the outputs of a model for arrays from files",
    "check": "fail if a model has lost a fusion that its lock names",
    "doctor": "what is installed, what is missing, and the command that adds it",
}
"""The commands to begin with."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would exit with 2, which here means "unsupported".
        raise OptionError(message, hint=f"{self.prog} --help lists what there is")


def help_text() -> str:
    """What `dovetail` alone says: it fits a terminal of 24 lines and 80 columns."""
    lines = ["usage: dovetail COMMAND [OPTION …]", "", "Fuse a model, and say what fused, what did not, and why.", ""]
    lines += [f"  {name:<9}{words}" for name, words in _FIRST.items()]
    lines.append("")
    for title, group in GROUPS.items():
        lines.append(f"  {title + ':':<17}{' '.join(command.name for command in group)}")
    return "\n".join([*lines, "", *_END]) + "\n"


_END = (
    "dovetail COMMAND --help lists its options; dovetail --version says the version.",
    "dovetail completion bash|zsh|fish prints what completes command lines.",
)


class _TopParser(_Parser):
    def format_help(self) -> str:
        return help_text()


def _parser() -> argparse.ArgumentParser:
    parser = _TopParser(prog="dovetail", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        command.add_to(commands.add_parser(command.name, description=command.doc, allow_abbrev=False))
    return parser


def run_line(argv: Sequence[str] | None, reporter: Reporter | None) -> int:
    """Run one command line; the result is the exit code."""
    try:
        return _run(argv, reporter)
    except DovetailError as error:
        if reporter is not None:
            reporter.failed(error)
        else:
            _tell(str(error))
        return error.exit_code
    except MemoryError:
        _tell("there is not enough memory for this\n  hint: try smaller sizes, or a machine with more of it")
        return OptionError.exit_code


def words_of(argv: Sequence[str]) -> list[str]:
    """A command line in the spelling of this version; old spellings are said on stderr."""
    words, said = split_explain(argv)
    notes = [said] if said else []
    name = words[0] if words and not words[0].startswith("-") else ""
    if not name:
        return words
    command = next((one for one in COMMANDS if one.name == name), None)
    if command is None:
        command = next((one for one in COMMANDS if one.old == name), None)
        if command is None:
            near = nearest(name, [one.name for one in COMMANDS])
            hint = f"did you mean {near[0]}?" if near else "dovetail --help lists them"
            raise OptionError(f"there is no command {name!r}", hint=hint)
        notes.append(f"dovetail {name} is now dovetail {command.name}; the old name goes with dovetail {REMOVED_IN}")
    rest, more = current_words(command, words[1:])
    for note in (*notes, *more):
        _tell(note)
    return [command.name, *rest]


def _run(argv: Sequence[str] | None, reporter: Reporter | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    current = words_of(words)
    args, unknown = parser.parse_known_args(current)
    if unknown:
        _refuse(unknown, next((one for one in COMMANDS if current[0] == one.name), None))
    args.argv = words
    args.reporter = reporter
    if "run" not in args:
        parser.print_help(sys.stderr)
        return OptionError.exit_code
    command: Command = args.command
    command.check(args)
    with shown_progress(sys.stderr, quiet=getattr(args, "json", False)):
        answer: Answer = args.run(args)
    if reporter is not None and not reporter.is_first:
        return 0  # the first worker prints for all
    for piece in answer.pieces:
        _write(_visible(piece), end="")
    if answer.text or answer.pieces:
        _write(answer.text if answer.painted else _visible(answer.text))
    if answer.failure is not None:
        raise answer.failure
    return 0


def _refuse(unknown: Sequence[str], command: Command | None) -> NoReturn:
    """Refuse words that a command does not take, with the option that the first one resembles."""
    flag = unknown[0].partition("=")[0]
    flags = [argument.name for argument in command.arguments if not argument.hidden] if command is not None else []
    near = nearest(flag, [name for name in flags if name.startswith("-")])
    asked = f"dovetail {command.name}" if command is not None else "dovetail"
    hint = f"did you mean {near[0]}?" if near else f"{asked} --help lists what there is"
    raise OptionError(f"unrecognized arguments: {' '.join(unknown)}", hint=hint)


def _visible(text: str) -> str:
    """Text in which names of models cannot give a terminal orders."""
    return "\n".join(map(visible, text.split("\n")))


def _write(text: str, end: str = "\n") -> None:
    """Text to stdout, and how it ends. A reader that has gone is no failure: it has read what it wanted."""
    stream: TextIO | None = sys.stdout
    if stream is None:  # pyright: ignore[reportUnnecessaryComparison]  # Python has none where the shell closed it
        return
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.write("" if text.endswith("\n") else end)
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        raise LoadError(f"the output cannot be written: {error.strerror}", hint="check the disk") from error


def _silence(stream: TextIO) -> None:
    """What is still buffered would raise once more when Python shuts down."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _tell(text: str) -> None:
    """Words for people, to stderr."""
    tell(f"dovetail: {sanitize(text)}")
