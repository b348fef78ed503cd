"""Bits of packed blocks: words hold the codes and scales that a format's own parts say, in the bytes of the file."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout, BlockPanels, spelled
from dovetail.targets.cpu.gemm.blocks.words import Integer, Term, gathered, spread
from tests.block_arrays import random_blocks

COLUMNS, DEEP = 16, 512
STORED = [name for name, of in FORMATS.items() if of.halves]
"""Formats whose blocks are packed as they are."""


def packed(name: str, by_lane: bool) -> tuple[BlockLayout, Array, Array]:
    """A layout, the rows of blocks of one panel, and the panel's words [block, word, column]."""
    layout = BlockLayout(name, COLUMNS, False, by_lane=by_lane)
    rows = random_blocks(name, COLUMNS, DEEP, 3)
    panel = BlockPanels(layout, ((0, 0),), COLUMNS, (1,))(rows)[0]
    return layout, rows, panel[:, layout.head_bytes :].view(np.uint32).reshape(len(panel), -1, COLUMNS)


def bits(words: Array, terms: tuple[Term, ...], factor: int = 1) -> Array:
    """The sum of terms; `factor` repeats their masks."""
    found = np.zeros_like(words[:, 0])
    for term in terms:
        word = words[:, term.word].astype(np.uint64)
        word = word >> np.uint64(term.shift) if term.shift >= 0 else word << np.uint64(-term.shift)
        found |= (word & np.uint64(term.mask * factor)).astype(np.uint32)
    return found


def integer(words: Array, of: Integer) -> Array:
    found = bits(words, of.terms).astype(np.int64)
    if of.sign:
        found -= (found >> (of.sign - 1)) << of.sign
    return found + of.offset


@pytest.mark.parametrize("by_lane", [False, True])
@pytest.mark.parametrize("name", STORED)
def test_words_hold_the_codes_of_the_declared_parts(name: str, by_lane: bool) -> None:
    layout, rows, words = packed(name, by_lane)
    codes = [np.stack([bits(words, terms, 0x01010101) for terms in group]) for group in layout.words.codes]
    found = np.stack(codes).transpose(3, 2, 0, 1)  # [column, block, group, step]
    stored = np.ascontiguousarray(found).view(np.uint8).reshape(COLUMNS, DEEP)
    wanted, _, _ = spelled(name, rows)
    assert (stored.astype(np.int64) - layout.zero == wanted).all()


@pytest.mark.parametrize("by_lane", [False, True])
@pytest.mark.parametrize("name", STORED)
def test_scales_of_blocks_times_integers_are_the_scales_of_groups(name: str, by_lane: bool) -> None:
    layout, rows, words = packed(name, by_lane)
    raw = rows.reshape(COLUMNS, -1, FORMATS[name].bytes)
    _, scale, low = spelled(name, rows)
    for at, integers, wanted in zip(
        FORMATS[name].halves, (layout.words.scales, layout.words.lows), (scale, low), strict=False
    ):
        half = np.ascontiguousarray(raw[..., at : at + 2]).view(np.float16).astype(np.float32)
        made = half
        if integers:
            steps = np.stack([integer(words, of) for of in integers]).transpose(2, 1, 0)
            made = half * steps.astype(np.float32) * np.float32(1 if wanted is scale else -1)
        assert wanted is not None
        assert made.reshape(COLUMNS, -1).tobytes() == wanted.tobytes() or (made.reshape(COLUMNS, -1) == wanted).all()
    assert bool(layout.words.scales) == (layout.groups > 1), "groups of a block have scales of their own"


@pytest.mark.parametrize("name", STORED)
def test_panels_take_the_bytes_of_the_file(name: str) -> None:
    rows = random_blocks(name, 3 * COLUMNS, DEEP)
    for signed in (True, False):
        panels = BlockPanels(BlockLayout(name, COLUMNS, signed, by_lane=signed), ((0, 0),), 3 * COLUMNS, (1,))(rows)
        assert panels.nbytes == rows.nbytes


def test_single_bits_are_spread_and_gathered_again() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, 1000, dtype=np.uint32)
    again = gathered(spread(words).view(np.uint8).reshape(-1, 4))
    assert again.tobytes() == words.tobytes()
    assert spread(np.asarray([1 << 21], np.uint32)) == 1 << 8 + 5, "code 21 is the sixth of every fourth, of byte 1"
