"""What a stream can show: colours and a width on a terminal, plain text anywhere else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import TextIO

from dovetail.report.paint import PLAIN, Look


def look_of(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> Look:
    """How to write to a stream. NO_COLOR (not empty) and TERM=dumb switch colours off."""
    if not is_terminal(stream):
        return PLAIN
    colour = not environ.get("NO_COLOR") and environ.get("TERM", "") not in ("", "dumb")
    return Look(width(environ), colour)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody looks at a stream; one that is closed is none."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def redraws(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a line can be drawn over."""
    return is_terminal(stream) and environ.get("TERM", "") not in ("", "dumb")


def width(environ: Mapping[str, str] = os.environ) -> int:
    """The columns of the terminal; COLUMNS says otherwise."""
    told = environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and 0 < int(told) < 10_000:
        return int(told)
    return shutil.get_terminal_size().columns


__all__ = ["is_terminal", "look_of", "redraws", "width"]
