"""The build of dovetail that is running: compiled programs are valid for the files that made them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dovetail.version import __version__


def build_id() -> Mapping[str, str]:
    """The version, a digest of the names, sizes and times of the package's files, and what computes constants."""
    return {"dovetail": __version__, "files": _FILES, "numpy": np.__version__}


def _files() -> str:
    state = hashlib.blake2b(digest_size=12)
    root = Path(__file__).resolve().parent.parent
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    seen = entry.stat()
                    state.update(f"{entry.path[len(str(root)) :]} {seen.st_size} {seen.st_mtime_ns}\n".encode())
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return state.hexdigest()


_FILES = _files()
"""Read when the package is imported, so that files that are edited later do not count for code that is already here."""
