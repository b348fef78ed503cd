"""Codes of six bits that the file has as four and two: packed, three of four codes are whole.

Q6_K has the low four bits of codes in one half of a byte, and the high two of four codes in another. As many bytes hold
three codes, with two bits of the fourth above each: one AND takes a code out, and three shifts the fourth, where the
order of the file takes two to three instructions for each.
"""

from __future__ import annotations

import numpy as np

from dovetail.ir.literal import Array

SIX_BITS = frozenset({"q6_k"})
"""Formats whose words start so: for each half of a block 16 words of low bits; then 8 words of high bits for each."""
_HALVES, _WORDS = 2, 8
_LOW = _HALVES * 2 * _WORDS
"""Words before the high bits."""


def _all(byte: int) -> np.uint32:
    """A byte in every byte of a word."""
    return np.uint32(byte * 0x01010101)


def six_bits_whole(words: Array) -> None:
    """Bring words of blocks [..., words, columns] into the order of kernels."""
    parts = _parts(words)
    # NumPy computes with arrays in one piece several times as fast.
    first, second, above = (np.array(part, order="C") for part in parts)
    one = first & _all(0x0F)
    one |= above & _all(0xC0)
    one |= (above & _all(0x03)) << np.uint32(4)
    parts[0][...] = one
    two = second & _all(0xCF)
    two |= (above & _all(0x0C)) << np.uint32(2)
    parts[1][...] = two
    first >>= np.uint32(4)
    first &= _all(0x0F)
    above &= _all(0x30)
    second &= _all(0x30)
    second <<= np.uint32(2)
    first |= above
    first |= second
    parts[2][...] = first


def six_bits_apart(words: Array) -> None:
    """Bring such words into the order of the file again."""
    parts = _parts(words)
    one, two, three = (np.array(part, order="C") for part in parts)
    parts[0][...] = one & _all(0x0F) | (three & _all(0x0F)) << np.uint32(4)
    parts[1][...] = two & _all(0xCF) | three >> np.uint32(2) & _all(0x30)
    parts[2][...] = (
        one & _all(0xC0) | three & _all(0x30) | one >> np.uint32(4) & _all(0x03) | two >> np.uint32(2) & _all(0x0C)
    )


def _parts(words: Array) -> tuple[Array, Array, Array]:
    """Words of low bits, those of the other codes, and of high bits; three of four codes take their places."""
    *many, _, columns = words.shape
    low = words[..., :_LOW, :].reshape(*many, _HALVES, 2, _WORDS, columns)
    above = words[..., _LOW : _LOW + _HALVES * _WORDS, :].reshape(*many, _HALVES, _WORDS, columns)
    return low[..., 0, :, :], low[..., 1, :, :], above


__all__ = ["SIX_BITS", "six_bits_apart", "six_bits_whole"]
