"""Bits of blocks in other places: what a slow function of bytes does, found from what it does to each bit alone.

A function that puts each bit of its result together from bits of the block by exclusive or, as all do that only move
bits, and those that subtract half of what bits can count, is known once it has seen each bit alone. Then all blocks go
through it 32 bits at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array

_WORD = 32
_TRIED = 32
"""Random blocks that must be as the function has them."""


@dataclass(frozen=True, slots=True)
class _Term:
    """Bits of a word that are bits of another one."""

    source: int
    shift: int
    """Places to the left."""
    mask: int


@dataclass(frozen=True, slots=True)
class BitMoves:
    """The words of a result."""

    words: Sequence[tuple[int, Sequence[_Term]]]
    """What each one is for a block of zeros, and the bits that change it."""

    @staticmethod
    def of(slow: Callable[[Array], Array], size: int) -> BitMoves | None:
        """What a function does to blocks [blocks, size] of bytes; None where bits do not say it one by one."""
        bits = np.arange(8 * size)
        alone = np.zeros((1 + len(bits), size), np.uint8)
        alone[1 + bits, bits // 8] = 1 << (bits % 8)
        none, *each = np.unpackbits(slow(alone), axis=-1, bitorder="little")
        changed: dict[int, dict[tuple[int, int], int]] = {}
        for source, found in enumerate(each):
            for target in np.flatnonzero(found != none).tolist():
                key = source // _WORD, target % _WORD - source % _WORD
                masks = changed.setdefault(target // _WORD, {})
                masks[key] = masks.get(key, 0) | 1 << target % _WORD
        starts = np.packbits(none, bitorder="little").view(np.uint32).tolist()
        made = BitMoves(
            [
                (start, [_Term(word, shift, mask) for (word, shift), mask in changed.get(number, {}).items()])
                for number, start in enumerate(starts)
            ]
        )
        tried = np.random.default_rng(0).integers(0, 256, (_TRIED, size), dtype=np.uint8)
        return made if np.array_equal(made(tried), slow(tried)) else None

    def __call__(self, blocks: Array) -> Array:
        """The bytes of each result."""
        count, size = blocks.shape
        given = np.zeros((count, -(-size // 4) * 4), np.uint8)
        given[:, :size] = blocks
        source = np.ascontiguousarray(given.view(np.uint32).T)
        found = np.empty((len(self.words), count), np.uint32)
        moved = np.empty(count, np.uint32)
        for target, (start, terms) in zip(found, self.words, strict=True):
            target[...] = start
            for term in terms:
                move = np.left_shift if term.shift >= 0 else np.right_shift
                move(source[term.source], np.uint32(abs(term.shift)), out=moved)
                np.bitwise_and(moved, np.uint32(term.mask), out=moved)
                np.bitwise_xor(target, moved, out=target)
        return np.ascontiguousarray(found.T).view(np.uint8)


__all__ = ["BitMoves"]
