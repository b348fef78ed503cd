"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from dovetail.errors import LoadError


def write_whole(path: str | os.PathLike[str], text: str, what: str) -> Path:
    """Write text beside its place and rename it, so that nobody meets half a file; `what` it is stands in errors."""
    name = None
    try:
        place = Path(path)
        if place.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        handle, name = tempfile.mkstemp(prefix=f".{place.name[:64]}.", dir=place.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, place)
    except (OSError, ValueError) as error:
        if name is not None:
            with suppress(OSError):
                os.unlink(name)
        why = error.strerror if isinstance(error, OSError) else str(error)
        hint = "name a file in a folder that exists and that may be written"
        raise LoadError(f"the {what} cannot be written: {why}", where=ascii(os.fspath(path)), hint=hint) from error
    return place


__all__ = ["write_whole"]
