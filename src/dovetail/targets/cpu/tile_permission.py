"""Whether the system lets this process use the tiles of AMX.

Tiles are 8 KiB of registers that a system saves for each thread which uses them, so that Linux wants to be asked. What
is granted holds for the process, its threads and its children; without it, tiles are an illegal instruction.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Literal, TypeAlias

USES_TILES = True
"""Whether kernels use tiles where a system grants them."""
_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18
"""The system call of x86-64, ARCH_REQ_XCOMP_PERM, and the state of tiles."""

TileState: TypeAlias = Literal["granted", "refused", "not used"]


@cache
def tile_state() -> TileState:
    """What became of tiles on a machine that has them; asked once, before code that uses them is generated."""
    if not USES_TILES:
        return "not used"
    return "granted" if _is_granted() else "refused"


def without_tiles(features: str) -> str:
    """LLVM's features of a machine without those of tiles."""
    return ",".join([f"-{word[1:]}" if word.startswith("+amx") else word for word in features.split(",")])


def _is_granted() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0
    except (AttributeError, OSError):
        return False


__all__ = ["TileState", "tile_state", "without_tiles"]
