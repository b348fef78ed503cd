"""The cycles in which no block of a resident kernel looks for words: one number for each level.

Words of a level come some 0.4 µs after the last block has sent them, and loads of those that look too early delay them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Cycles, Receive, Statement

PAUSE, EARLY = "pause_", "early_"
"""Before the number of a level: for words of this pass, and for those that the pass before has sent."""
_FEW_BYTES = 48 << 10
"""Weights of a block below which all blocks end a level at almost the same time."""


def pause_of(level: int, *, is_early: bool) -> str:
    """The name of the pause of a level."""
    return f"{EARLY if is_early else PAUSE}{level}"


def pauses(
    body: Sequence[Statement], cycles: int, weights: Callable[[int], int], layers: int, passes: int
) -> tuple[Cycles, ...]:
    """The pauses of a body, where most take some `cycles`: fewer where the level before had few bytes of `weights`, and
    none for what the pass before has sent, which is there by the time that the next one has started."""
    names = dict.fromkeys([s.pause for s in everything(body) if isinstance(s, Receive) and s.pause])
    found: list[Cycles] = []
    for name in names:
        level = int(name.removeprefix(PAUSE).removeprefix(EARLY))
        count = cycles * 3 // 5 if 0 < weights(level - 1) < _FEW_BYTES else cycles
        found.append(Cycles(name, 0 if name.startswith(EARLY) else count, passes if level < layers else 1))
    return tuple(found)


__all__ = ["EARLY", "PAUSE", "pause_of", "pauses"]
