"""The `dovetail` command. Exit codes: 0 ok, 1 user error, 2 unsupported, 3 verification failed, 4 gate failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from dovetail.errors import DovetailError, OptionError
from dovetail.version import __version__


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would exit with 2, which here means "unsupported".
        raise OptionError(message, hint=f"{self.prog} --help lists what there is")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="dovetail", description="Fuse a model, and say what fused, what did not, and why.")
    parser.add_argument("--version", action="version", version=f"dovetail {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the result is the exit code."""
    parser = _parser()
    try:
        parser.parse_args(argv)
    except DovetailError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    parser.print_help(sys.stderr)
    return OptionError.exit_code
