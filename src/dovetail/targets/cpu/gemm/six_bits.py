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
_LOW, _HIGH = _HALVES * 2 * _WORDS, _HALVES * 3 * _WORDS
"""Words before the high bits, and after them."""


def _all(byte: int) -> np.uint32:
    """A byte in every byte of a word."""
    return np.uint32(byte * 0x01010101)


def six_bits_whole(words: Array) -> Array:
    """Words of blocks [..., words] in the order of kernels."""
    found = np.array(words, order="C")
    low, high = found[..., :_LOW], found[..., _LOW:_HIGH]
    some = low.reshape(*low.shape[:-1], _HALVES, 2, _WORDS).copy()
    above = high.reshape(*high.shape[:-1], _HALVES, _WORDS).copy()
    first, second = some[..., 0, :], some[..., 1, :]
    target = found[..., :_HIGH].reshape(*low.shape[:-1], _HALVES, 3, _WORDS)
    target[..., 0, :] = (first & _all(0x0F)) | (above & _all(0x03)) << np.uint32(4) | (above & _all(0xC0))
    target[..., 1, :] = (second & _all(0xCF)) | (above & _all(0x0C)) << np.uint32(2)
    target[..., 2, :] = (
        (first >> np.uint32(4) & _all(0x0F)) | (above & _all(0x30)) | (second & _all(0x30)) << np.uint32(2)
    )
    found[..., :_HIGH] = target.reshape(*low.shape[:-1], _HIGH)
    return found


def six_bits_apart(words: Array) -> Array:
    """The same in the order of the file, again."""
    found = np.array(words, order="C")
    target = found[..., :_HIGH].reshape(*words.shape[:-1], _HALVES, 3, _WORDS)
    one, two, three = (target[..., i, :] for i in range(3))
    first = (one & _all(0x0F)) | (three & _all(0x0F)) << np.uint32(4)
    second = (two & _all(0xCF)) | (three >> np.uint32(2) & _all(0x30))
    above = (
        (one >> np.uint32(4) & _all(0x03))
        | (two >> np.uint32(2) & _all(0x0C))
        | (three & _all(0x30))
        | (one & _all(0xC0))
    )
    low = np.stack([first, second], axis=-2).reshape(*words.shape[:-1], _LOW)
    found[..., :_LOW], found[..., _LOW:_HIGH] = low, above.reshape(*words.shape[:-1], _HIGH - _LOW)
    return found


__all__ = ["SIX_BITS", "six_bits_apart", "six_bits_whole"]
