"""Programs of CUDA's toolkit: the assembler and the disassemblers, which nothing here needs to run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("/usr/local/cuda/bin",)
"""Where the toolkit is installed by default."""


def tool(name: str) -> str | None:
    """The path of a program: on the PATH, in the toolkit's folder, or in one of NVIDIA's wheels; None where there is
    none."""
    for folder in (None, *FOLDERS, *_wheels()):
        found = shutil.which(name, path=folder)
        if found is not None:
            return found
    return None


def _wheels() -> Iterator[str]:
    """Folders of programs in wheels, wherever Python imports from: ours may be installed elsewhere, or not at all."""
    for root in dict.fromkeys(sys.path):
        yield from map(str, sorted(Path(root).glob("nvidia/*/bin")))


__all__ = ["FOLDERS", "tool"]
