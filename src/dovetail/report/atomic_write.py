"""Atomic writes: a file is written completely or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dovetail.errors import LoadError


def write_atomically(path: str | os.PathLike[str], text: str, what: str) -> Path:
    """Write text to a temporary file and rename it, so that no reader sees half a file; errors name `what` it is.

    A link, a pipe or a device is written to: a rename would replace it by a file.
    """
    place = Path(path)
    temporary = place.parent / f".{what}-{os.urandom(8).hex()}.part"
    try:
        if place.is_symlink() or (place.exists() and not place.is_file()):
            place.write_text(text, encoding="utf-8", newline="\n")
            return place
        with temporary.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, place)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            temporary.unlink()
        why = error.strerror if isinstance(error, OSError) else str(error)
        hint = "name a file in a folder that exists and that may be written"
        raise LoadError(f"the {what} cannot be written: {why}", where=ascii(os.fspath(path)), hint=hint) from error
    return place


__all__ = ["write_atomically"]
