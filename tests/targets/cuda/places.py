"""Integers of threads of which a part is known before a block runs, and memory at such places.

What is known is looked at once: its bounds, how it is aligned, and whether no two threads have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dovetail.ir.literal import Array

if TYPE_CHECKING:
    from tests.targets.cuda.expressions import Function

MOST = 256
"""Integers that are remembered with one from which they follow."""


class Known:
    """An i64 of each thread that follows from the number of the thread."""

    __slots__ = ("__dict__", "_made", "_words", "bits", "first", "high", "low")

    def __init__(self, first: Array) -> None:
        self.first = first
        first.flags.writeable = False
        self.low, self.high = int(first.min()), int(first.max())
        self.bits = int(np.bitwise_or.reduce(first))
        self._made: dict[tuple[str, Any], Known] = {}
        self._words: dict[tuple[int, int], Array] = {}

    @cached_property
    def is_distinct(self) -> bool:
        """Whether no two threads have the same."""
        return len(np.unique(self.first)) == len(self.first)

    def words(self, shared: int, count: int, word: int) -> Array:
        """The numbers of the words that `count` bytes of each thread take, after a place that all share."""
        found = self._words.get((count, word))
        if found is None:
            found = self._words[count, word] = places_of(self.first, count, word)
        return found + shared // word if shared else found

    def plus(self, other: Known) -> Known:
        # Both are remembered, so that no id becomes that of another one.
        found = self._made.get(("plus", other))
        return self._kept("plus", other, self.first + other.first) if found is None else found

    def times(self, by: int) -> Known:
        found = self._made.get(("times", by))
        return self._kept("times", by, self.first * by) if found is None else found

    def over(self, by: int) -> Known:
        """The quotient, rounded down."""
        found = self._made.get(("over", by))
        return self._kept("over", by, self.first // by) if found is None else found

    def modulo(self, by: int) -> Known:
        """What rounding down leaves."""
        found = self._made.get(("modulo", by))
        return self._kept("modulo", by, self.first % by) if found is None else found

    def xor(self, other: Known | int) -> Known:
        found = self._made.get(("xor", other))
        if found is None:
            found = self._kept("xor", other, self.first ^ (other if isinstance(other, int) else other.first))
        return found

    def at_most(self, by: int) -> Known:
        found = self._made.get(("at most", by))
        return self._kept("at most", by, np.minimum(self.first, by)) if found is None else found

    def _kept(self, how: str, other: Any, first: Array) -> Known:
        made = Known(first)
        if len(self._made) < MOST:
            self._made[how, other] = made
        return made


class Affine:
    """What is known of each thread, and an integer that is added in all of them."""

    __slots__ = ("known", "shared")

    def __init__(self, known: Known, shared: int) -> None:
        self.known, self.shared = known, shared

    @property
    def array(self) -> Array:
        return self.known.first + self.shared if self.shared else self.known.first

    @property
    def low(self) -> int:
        return self.known.low + self.shared

    @property
    def high(self) -> int:
        return self.known.high + self.shared


Value: TypeAlias = int | Affine | Array
"""One for all threads, or one for each."""


def affine(known: Known, shared: int) -> int | Affine:
    return shared + known.low if known.low == known.high else Affine(known, shared)


class Place:
    """A place in a tensor: its strides times what is known of its indices, and functions for the others."""

    def __init__(self, offset: int, terms: Sequence[tuple[int, Value | None, Function]], block: int) -> None:
        self._offset, known = offset, np.zeros(block, np.int64)
        for stride, constant, _ in terms:
            if isinstance(constant, int):
                self._offset += stride * constant
            elif constant is not None:
                known = known + stride * (constant.array if isinstance(constant, Affine) else constant)
        self._known = Known(known)
        self._terms = [(stride, function) for stride, constant, function in terms if constant is None and stride]

    def found(self, start: int, threads: Any, mask: Array) -> tuple[Known, int | Array]:
        """What is known of it, and the rest."""
        known, shared, other = self._known, start + self._offset, None
        for stride, function in self._terms:
            value = function(threads, mask)
            if isinstance(value, int):
                shared += stride * value
            elif isinstance(value, Affine):
                shared += stride * value.shared
                known = known.plus(value.known.times(stride))
            else:
                other = stride * value if other is None else other + stride * value
        return known, shared if other is None else other + shared


def gathered(buffer: Array, first: Array, count: int) -> Array:
    """That many bytes from each of these places."""
    word = _widest(int(np.bitwise_or.reduce(first)), len(buffer), count)
    return buffer.view(_WORDS[word])[places_of(first, count, word)].view(np.uint8).reshape(-1, count)


def gathered_by(buffer: Array, known: Known, shared: int, count: int) -> Array:
    """The same for places of which a part is known, for all threads."""
    word = _widest(known.bits | shared, len(buffer), count)
    return buffer.view(_WORDS[word])[known.words(shared, count, word)].view(np.uint8).reshape(-1, count)


def scatter(buffer: Array, first: Array, raw: Array) -> bool:
    """Write bytes to each of these places; whether they are there afterwards."""
    word = _widest(int(np.bitwise_or.reduce(first)), len(buffer), raw.shape[1])
    places, words, wide = places_of(first, raw.shape[1], word), raw.view(_WORDS[word]), buffer.view(_WORDS[word])
    words = words.reshape(places.shape)
    wide[places] = words
    return bool((wide[places] == words).all())


def scatter_by(buffer: Array, known: Known, shared: int, raw: Array, mask: Array | None) -> bool:
    """The same for places of which a part is known, for the threads of a mask or for all."""
    count = raw.shape[1]
    word = _widest(known.bits | shared, len(buffer), count)
    places, words, wide = known.words(shared, count, word), raw.view(_WORDS[word]), buffer.view(_WORDS[word])
    words = words.reshape(places.shape)
    if mask is not None:
        places, words = places[mask], words[mask]
    wide[places] = words
    # What is written to places of its own is there, where no element has words of two of them.
    return (word == count and known.is_distinct) or bool((wide[places] == words).all())


def places_of(first: Array, count: int, word: int) -> Array:
    """The numbers of the words that bytes from each place take."""
    places = first // word
    return places if count == word else places[:, None] + np.arange(count // word)


def _widest(*aligned: int) -> int:
    """Bytes of the widest words in which bytes can be copied."""
    low = 8
    for number in aligned:
        low |= number
    return low & -low


_WORDS = {np.dtype(kind).itemsize: np.dtype(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64)}

__all__ = ["Affine", "Known", "Place", "Value", "affine", "gathered", "gathered_by", "scatter", "scatter_by"]
