"""Messages about models of strangers: short, and printable wherever they are shown."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from dovetail.errors import DovetailError, LoadError

LONGEST_LINE = 400
MOST_LINES = 60


@contextmanager
def plain_errors() -> Generator[None]:
    """Errors that leave this say what they say in plain words, whatever names the model has."""
    try:
        yield
    except DovetailError as error:
        error.message, error.hint, error.where = plain(error.message), plain(error.hint), plain(error.where)
        error.args = (error.message, error.hint, error.where)
        raise
    except (MemoryError, RecursionError) as error:
        what = "more memory than there is" if isinstance(error, MemoryError) else "too deep a nesting"
        raise LoadError(f"importing this model takes {what}", hint="check how the model was written") from error


def plain(text: str) -> str:
    """The text with control characters spelled out, and with what is too long left out."""
    lines = text.split("\n")
    shown = [_line(line) for line in lines[:MOST_LINES]]
    return "\n".join(shown if len(lines) <= MOST_LINES else [*shown, f"  and {len(lines) - MOST_LINES:,} more lines"])


def printable(name: str) -> str:
    """A name that is short enough for a message."""
    return name if len(name) <= 120 else f"{name[:100]}… ({len(name)} characters)"


def text(written: str | bytes) -> str:
    """A string of a message; one that is not UTF-8 arrives as bytes."""
    return written if isinstance(written, str) else written.decode("utf-8", errors="replace")


def _line(line: str) -> str:
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE - 100]}… ({len(line):,} characters) …{line[-60:]}"
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
