"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from dovetail.errors import LoadError


def write_whole(path: str | os.PathLike[str], text: str, what: str) -> Path:
    """Write text beside its place and rename it, so that nobody meets half a file; `what` it is stands in errors.

    A link, a pipe or a device is written to: a file in its place would take it away from everybody.
    """
    place = Path(path)
    beside = place.parent / f".{what}-{secrets.token_hex(8)}.part"
    try:
        if place.is_symlink() or (place.exists() and not place.is_file()):
            place.write_text(text, encoding="utf-8", newline="\n")
            return place
        with beside.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(beside, place)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            beside.unlink()
        why = error.strerror if isinstance(error, OSError) else str(error)
        hint = "name a file in a folder that exists and that may be written"
        raise LoadError(f"the {what} cannot be written: {why}", where=ascii(os.fspath(path)), hint=hint) from error
    return place


__all__ = ["write_whole"]
