"""A private folder of files: owned by this user, writable by no other, and never reached through a link.

Every file is opened from the folder's descriptor, so that nothing that is swapped in on the way is followed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dovetail.dataclass import dataclass

PART = ".part"
"""How the names of files end that are still written."""
FORGOTTEN = 3600.0
"""Seconds after which a file that is still written was left by a process that died."""

_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Opening a pipe would wait for its writer.
_READ = os.O_RDONLY | _FLAGS | getattr(os, "O_NONBLOCK", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Unsafe(Exception):
    """A folder that is not ours alone, with the reason in words."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the folder."""

    name: str
    size: int
    used: float
    """When it was last written or used, to the minute."""


class Folder:
    """Open the folder of a path; create it if it is missing, and check it."""

    def __init__(self, path: Path) -> None:
        """Raises `Unsafe` where it is not ours alone, OSError where it cannot be created or opened."""
        if not hasattr(os, "geteuid") or os.open not in os.supports_dir_fd:
            raise Unsafe("this system does not tell who owns a file")
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        if path.is_symlink():
            raise Unsafe(f"{path} is a link")
        self._at = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        why = _not_ours(os.fstat(self._at))
        if why:
            os.close(self._at)
            raise Unsafe(f"{path} {why}")

    def read(self, name: str, *, use: bool = False) -> bytes | None:
        """The bytes of a file; None where there is none, or one that is not ours alone. `use` notes the time."""
        try:
            file = os.open(name, _READ, dir_fd=self._at)
        except OSError:
            return None
        try:
            state = os.fstat(file)
            if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1 or _not_ours(state):
                return None
            if use and time.time() - state.st_mtime > 60.0:
                os.utime(file)
            with os.fdopen(os.dup(file), "rb") as stream:
                return stream.read()
        except OSError:
            return None
        finally:
            os.close(file)

    def write(self, name: str, pieces: Sequence[bytes]) -> None:
        """A file of these bytes: whole, or not there. Raises OSError where it cannot be written."""
        part = f".{name}.{os.urandom(8).hex()}{PART}"
        file = os.open(part, _WRITE, 0o600, dir_fd=self._at)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.writelines(pieces)
            os.rename(part, name, src_dir_fd=self._at, dst_dir_fd=self._at)
        except BaseException:
            self.remove(part)
            raise

    def append(self, name: str, line: bytes) -> None:
        """Add a short line to a file; what several processes add does not mix."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _FLAGS
        file = os.open(name, flags, 0o600, dir_fd=self._at)
        try:
            if not _not_ours(os.fstat(file)):
                os.write(file, line)
        finally:
            os.close(file)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; a link is removed, not what it leads to."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._at)

    def files(self) -> Iterator[File]:
        """Every plain file, those that are still written included."""
        with os.scandir(self._at) as entries:
            for entry in entries:
                with suppress(OSError):
                    state = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(state.st_mode):
                        yield File(entry.name, state.st_size, state.st_mtime)

    def close(self) -> None:
        os.close(self._at)


def _not_ours(state: os.stat_result) -> str:
    """Why a file or folder cannot be trusted; empty where it can."""
    if state.st_uid != os.geteuid():
        return f"belongs to the user {state.st_uid}"
    if state.st_mode & _OF_OTHERS:
        return f"can be written by others (mode {stat.S_IMODE(state.st_mode):o}); take that right away with chmod go-w"
    return ""
