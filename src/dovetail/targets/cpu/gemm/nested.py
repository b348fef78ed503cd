"""Codes of four bits that fast products multiply two at a time, a byte as it is.

A byte b has a code l in its low half and a code h in its high half: once its highest bit is flipped, it is the signed
number 16 (h - 8) + l. Its product with the x of h has l x too much. The number that l is for is rounded after x, less
x / 16, to an integer y: then 16 l y + b x is 16 times l (y + x / 16) + (h - 8) x, and y + x / 16 is as near to that
number as an integer would be. One instruction takes l out of its byte, and none takes h.

Both codes of a byte must share a scale. Q4_K has codes of two groups in its bytes: packed, they are of one.
"""

from __future__ import annotations

import numpy as np

from dovetail.ir.literal import Array

NESTED = {"q4_0": 0, "q4_1": 0, "q4_k": 3}
"""Formats of such codes, and the words of a block before them."""
TWO_GROUPS = frozenset({"q4_k"})
"""Those whose bytes have codes of two groups of 32."""
LEVELS = 119
"""What the largest number of a group becomes: y, which is off by a sixteenth of x, must fit a byte as well."""
_WORDS = 4
"""Of a group."""


def _all(byte: int) -> np.uint32:
    """A byte in every byte of a word."""
    return np.uint32(byte * 0x01010101)


def nest(name: str, words: Array) -> None:
    """Bring words of blocks [..., words, columns] into the order of kernels, and flip the highest bits of codes."""
    turn(name, words)
    words[..., NESTED[name] :, :] ^= _all(0x80)


def unnest(name: str, words: Array) -> None:
    """Bring such words into the order of the file again."""
    words[..., NESTED[name] :, :] ^= _all(0x80)
    turn(name, words)


def turn(name: str, words: Array) -> None:
    """Exchange the high halves of a group with the low halves of the other that it shares bytes with: twice is none."""
    if name not in TWO_GROUPS:
        return
    codes = words[..., NESTED[name] :, :]
    *many, count, columns = codes.shape
    pairs = codes.reshape(*many, count // (2 * _WORDS), 2, _WORDS, columns)
    first, second = (np.array(pairs[..., part, :, :], order="C") for part in range(2))
    pairs[..., 0, :, :] = first & _all(0x0F) | (second & _all(0x0F)) << np.uint32(4)
    pairs[..., 1, :, :] = first >> np.uint32(4) & _all(0x0F) | second & _all(0xF0)


__all__ = ["LEVELS", "NESTED", "nest", "turn", "unnest"]
