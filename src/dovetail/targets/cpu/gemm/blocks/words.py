"""Where the bits of codes and scales are in the 32-bit words of a packed block.

Blocks of formats with scales in f16 are packed as they are: a word of each column is a lane of a vector. Which bits of
which word make up a code is found by setting each bit of a block alone and evaluating the format's own parts, so that
its declaration is the only one. Blocks of other formats are packed group by group, in words of their own. Two orders
differ from that of the file.

Codes of six bits. Q6_K has the low four bits of codes in one half of a byte, and the high two of four codes in another.
As many bytes hold three codes, with two bits of the fourth above each: one AND takes a code out, and three shifts the
fourth, where the order of the file takes two to three instructions for each.

Codes of four bits that fast products multiply two at a time, a byte as it is. A byte b has a code l in its low half and
a code h in its high half: once its highest bit is flipped, it is the signed number 16 (h - 8) + l. Its product with the
x of h has l x too much. The number that l is for is rounded after x, less x / 16, to an integer y: then 16 l y + b x is
16 times l (y + x / 16) + (h - 8) x, and y + x / 16 is as near to that number as an integer would be. One instruction
takes l out of its byte, and none takes h. Both codes of a byte must share a scale. Q4_K has codes of two groups in its
bytes: packed, they are of one.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import u8
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.library.block_formats import FORMATS, BlockParts
from dovetail.targets.runtime.calls.interpreter import evaluate_values

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


NESTED = {"q4_0": 0, "q4_1": 0, "q4_k": 3}
"""Formats of such codes, and the words of a block before them."""
TWO_GROUPS = frozenset({"q4_k"})
"""Those whose bytes have codes of two groups of 32."""
LEVELS = 119
"""What the largest number of a group becomes: y, which is off by a sixteenth of x, must fit a byte as well."""
_GROUP_WORDS = 4
"""Of a group."""


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
    pairs = codes.reshape(*many, count // (2 * _GROUP_WORDS), 2, _GROUP_WORDS, columns)
    first, second = (np.array(pairs[..., part, :, :], order="C") for part in range(2))
    pairs[..., 0, :, :] = first & _all(0x0F) | (second & _all(0x0F)) << np.uint32(4)
    pairs[..., 1, :, :] = first >> np.uint32(4) & _all(0x0F) | second & _all(0xF0)


SPREAD = {"q5_0": 2, "q5_1": 4}
"""Where four bytes have one bit of each of 32 codes, in order. Packed, a byte has those of every fourth code: the bits
of four codes that share a word are at the same place of its four bytes."""


@dataclass(frozen=True, slots=True)
class Term:
    """Some bits of a word, moved to where they count: `(word >> shift) & mask`; a negative shift goes left."""

    word: int
    shift: int
    mask: int


@dataclass(frozen=True, slots=True)
class Integer:
    """The sum of terms, taken as a signed integer of `sign` bits if that is not 0, plus a constant."""

    terms: tuple[Term, ...]
    sign: int
    offset: int


@dataclass(frozen=True, slots=True)
class BlockWords:
    """A packed block of one column."""

    count: int
    """Words."""
    codes: tuple[tuple[tuple[Term, ...], ...], ...]
    """For each group and each four codes along k of it, their bits in four bytes."""
    scales: tuple[Integer, ...] = ()
    """For each group what the block's scale is multiplied by; empty where the scale is that of the only group."""
    lows: tuple[Integer, ...] = ()
    """The integer of what is subtracted."""


@lru_cache(maxsize=len(FORMATS))
def traced(name: str) -> tuple[Value, BlockParts]:
    """The parts of a format, and the blocks that they are parts of."""
    blocks = leaf.input("blocks", u8["blocks", FORMATS[name].bytes])
    return blocks, FORMATS[name].parts(blocks)


@lru_cache(maxsize=2 * len(FORMATS))
def block_words(name: str, *, is_whole: bool = False, is_nested: bool = False) -> BlockWords:
    """The words of a packed block of a format; `is_whole` of one whose codes of six bits are, `is_nested` of four."""
    of = FORMATS[name]
    if not of.halves:
        halved = tuple([(Term(step // 2, 4 * (step % 2), 15),) for step in range(of.group // 4)])
        return BlockWords(of.group // 8, (halved,)) if of.bits <= 4 else expanded_words(name)
    blocks, parts = traced(name)
    size = of.bytes - 2 * len(of.halves)
    alone = np.zeros((1 + 8 * size, size), np.uint8)
    bits = np.arange(8 * size)
    alone[1 + bits, bits // 8] = 1 << (bits % 8)
    raw = np.zeros((len(alone), of.bytes), np.uint8)
    if is_whole:
        six_bits_apart(alone.view(np.uint32)[..., None])
    if is_nested:
        turn(name, alone.view(np.uint32)[..., None])
    raw[:, integer_bytes(name)] = alone
    if name in SPREAD:
        at = slice(SPREAD[name], SPREAD[name] + 4)
        raw[:, at] = gathered(raw[:, at])
    kept = [part for part in (parts.codes, parts.steps, parts.low_steps) if part is not None]
    values = evaluate_values(kept, {blocks: raw}, sizes={"blocks": len(raw)})
    codes, *integers = [np.asarray(x).reshape(len(raw), -1).astype(np.int64) for x in values]
    places = _places(codes)
    words = [[_four(places[first : first + 4]) for first in range(start, start + of.group, 4)]
             for start in range(0, of.elements, of.group)]  # fmt: skip
    decoded = [tuple([_integer(p, int(x[0, i])) for i, p in enumerate(_places(x))]) for x in integers]
    if is_nested:
        words = [[_whole_byte(terms) for terms in group] for group in words]
    return BlockWords(size // 4, tuple([tuple(group) for group in words]), *decoded)


def _whole_byte(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """High halves of bytes as the bytes that they are in."""
    return tuple([Term(term.word, 0, 255) if term.shift == 4 else term for term in terms])


@lru_cache(maxsize=len(FORMATS))
def expanded_words(name: str) -> BlockWords:
    """The words of a group whose codes are bytes."""
    steps = range(FORMATS[name].group // 4)
    return BlockWords(len(steps), (tuple([(Term(step, 0, 255),) for step in steps]),))


def integer_bytes(name: str) -> slice:
    """The bytes of a block that are not its f16."""
    of = FORMATS[name]
    taken = 2 * len(of.halves)
    return slice(taken, of.bytes) if of.halves[0] == 0 else slice(0, of.bytes - taken)


def _places(values: Array) -> list[list[tuple[int, int]]]:
    """For each integer the bits that it has, as (bit of the block, what it counts), by the block of each bit alone."""
    counts = values[1:] - values[0]
    return [[(int(bit), int(counts[bit, i])) for bit in np.flatnonzero(counts[:, i])] for i in range(values.shape[1])]


def _four(places: list[list[tuple[int, int]]]) -> tuple[Term, ...]:
    """Four codes of one word, each in a byte of its own."""
    counts: dict[tuple[int, int], int] = {}
    first, *others = [{(bit // 32, bit % 32 - 8 * i, count & 255) for bit, count in p} for i, p in enumerate(places)]
    assert all(other == first for other in others), "four codes are at the same place of the four bytes of a word"
    for word, bit, count in first:
        key = (word, bit - (count.bit_length() - 1))
        counts[key] = counts.get(key, 0) | count
    return tuple([Term(word, shift, mask) for (word, shift), mask in sorted(counts.items())])


def _integer(places: list[tuple[int, int]], offset: int) -> Integer:
    """One integer; the bit that counts less than nothing is its sign."""
    counts: dict[tuple[int, int], int] = {}
    for bit, count in places:
        key = (bit // 32, bit % 32 - (abs(count).bit_length() - 1))
        counts[key] = counts.get(key, 0) | abs(count)
    sign = max([abs(count).bit_length() for _, count in places if count < 0], default=0)
    return Integer(tuple([Term(word, shift, mask) for (word, shift), mask in sorted(counts.items())]), sign, offset)


def in_byte(integer: Integer) -> tuple[int, tuple[Term, ...]]:
    """The byte of words that has an integer, and its terms there."""
    place, *others = {(term.shift + (term.mask & -term.mask).bit_length() - 1) // 8 for term in integer.terms}
    assert not others, "bits of an integer are in the same byte of words"
    return place, tuple([Term(term.word, term.shift - 8 * place, term.mask) for term in integer.terms])


_ORDER = np.arange(32).reshape(8, 4).T.ravel()
"""The codes whose bits are at each place of four packed bytes: every fourth, eight of them in a byte."""


def gathered(packed: Array) -> Array:
    """Bits of 32 codes in order, from packed ones."""
    bits = np.unpackbits(packed, axis=-1, bitorder="little")
    reordered = np.empty_like(bits)
    reordered[..., _ORDER] = bits
    return np.packbits(reordered, axis=-1, bitorder="little")


@lru_cache(maxsize=1)
def _sixteen() -> Array:
    """Packed bits of the first 16 codes, for every value of them."""
    values = np.arange(1 << 16, dtype=np.uint32)
    bits = np.zeros_like(values)
    for place, code in enumerate(_ORDER.tolist()):
        if code < 16:
            bits |= ((values >> np.uint32(code)) & np.uint32(1)) << np.uint32(place)
    return bits


def spread(words: Array) -> Array:
    """Words with the bits of 32 codes in order, packed."""
    table = _sixteen()
    return table[words & np.uint32(0xFFFF)] | table[words >> np.uint32(16)] << np.uint32(4)


__all__ = [
    "LEVELS", "NESTED", "SIX_BITS", "SPREAD", "BlockWords", "Integer", "Term", "block_words", "expanded_words",
    "gathered", "in_byte", "integer_bytes", "nest", "six_bits_apart", "six_bits_whole", "spread", "traced", "unnest",
]  # fmt: skip
