"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dovetail.errors import DovetailError, LoadError


def write_whole(path: str | os.PathLike[str], pieces: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write pieces next to a file, flush them to the disk, and rename: a kill leaves the file that was there."""
    target = Path(path)
    beside = target.parent / f".{target.name}.{os.urandom(8).hex()}.part"
    try:
        with open(beside, "xb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except DovetailError:
        raise
    except (OSError, ValueError) as error:
        raise LoadError(
            f"{target} cannot be written: {error}", hint="check the path and the space that is left"
        ) from error
    finally:
        with suppress(OSError, ValueError):
            beside.unlink()


__all__ = ["write_whole"]
