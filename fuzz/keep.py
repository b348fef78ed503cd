"""Folders of what failed."""

from __future__ import annotations

from pathlib import Path


def remove(folder: Path) -> None:
    """Delete a folder of plain files, where there is one."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
    if folder.exists():
        folder.rmdir()
