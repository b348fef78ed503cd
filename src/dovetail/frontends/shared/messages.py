"""Messages about models of strangers: short, and printable wherever they are shown."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from dovetail.errors import DovetailError, LoadError
from dovetail.sanitize import sanitize


@contextmanager
def sanitized_errors() -> Generator[None]:
    """Errors that leave this say what they say in plain words, whatever names the model has."""
    try:
        yield
    except DovetailError as error:
        error.message, error.hint, error.where = sanitize(error.message), sanitize(error.hint), sanitize(error.where)
        error.args = (error.message, error.hint, error.where)
        raise
    except (MemoryError, RecursionError) as error:
        what = "more memory than there is" if isinstance(error, MemoryError) else "too deep a nesting"
        raise LoadError(f"importing this model takes {what}", hint="check how the model was written") from error


def printable(name: str) -> str:
    """A name that is short enough for a message."""
    return name if len(name) <= 120 else f"{name[:100]}… ({len(name)} characters)"


def text(written: str | bytes) -> str:
    """A string of a message; one that is not UTF-8 arrives as bytes."""
    return written if isinstance(written, str) else written.decode("utf-8", errors="replace")
