"""The `dovetail` command.

Exit codes: 0 ok, 1 user error, 2 unsupported, 3 verification failed, 4 gate failed, 5 results differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from dovetail.cli import (
    bench,
    bisect,
    cache,
    catalog,
    chat,
    diff,
    doctor,
    explain,
    export,
    generate,
    lock,
    operators,
    perplexity,
    plan,
    profile,
    quantize,
    run,
    serve,
    show,
    trace,
    train,
    verify,
    why,
)
from dovetail.cli.command import Answer, Command
from dovetail.cli.progress import shown_progress, tell
from dovetail.errors import DovetailError, LoadError, OptionError
from dovetail.process import claim
from dovetail.runtime.hosts.worker import Reporter
from dovetail.sanitize import sanitize, visible
from dovetail.version import __version__

COMMANDS: tuple[Command, ...] = (
    explain.COMMAND,
    why.COMMAND,
    show.COMMAND,
    plan.COMMAND,
    run.COMMAND,
    generate.COMMAND,
    chat.COMMAND,
    serve.COMMAND,
    perplexity.COMMAND,
    quantize.COMMAND,
    train.COMMAND,
    diff.COMMAND,
    export.COMMAND,
    lock.LOCK,
    lock.CHECK,
    verify.COMMAND,
    bisect.COMMAND,
    profile.COMMAND,
    trace.COMMAND,
    bench.COMMAND,
    catalog.COMMAND,
    operators.COMMAND,
    cache.COMMAND,
    doctor.COMMAND,
)
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would exit with 2, which here means "unsupported".
        raise OptionError(message, hint=f"{self.prog} --help lists what there is")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="dovetail", description="Fuse a model, and say what fused, what did not, and why.")
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        command.add_to(commands.add_parser(command.name, help=command.doc, description=command.doc))
    return parser


def main(argv: Sequence[str] | None = None, reporter: Reporter | None = None) -> int:
    """Run one command line; the result is the exit code. A worker of several hosts has a reporter."""
    if argv is None:
        claim()
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
    except KeyboardInterrupt:
        _tell("interrupted")
        return INTERRUPTED


def _run(argv: Sequence[str] | None, reporter: Reporter | None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    args.argv = list(sys.argv[1:] if argv is None else argv)
    args.reporter = reporter
    if "run" not in args:
        parser.print_help(sys.stderr)
        return OptionError.exit_code
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
