"""Blocks of 256 elements as units of 32: the same numbers bit by bit, whatever formats they share a layout with."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.ir import leaf
from dovetail.ir.dtype import u8
from dovetail.ir.literal import Array
from dovetail.kernels.gpu.blocks.elements import traced
from dovetail.kernels.gpu.blocks.packed_blocks import PackedBlocks
from dovetail.kernels.gpu.blocks.packed_tiles import PackedTiles
from dovetail.kernels.gpu.blocks.units import Units, is_nested
from dovetail.library.block_formats import FORMATS
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.targets.runtime.calls.interpreter import evaluate_values
from tests.block_arrays import random_blocks

NESTED = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")


def _floats(kind: str, blocks: Array) -> Array:
    stored = leaf.input("blocks", u8[blocks.shape])
    return evaluate_values([dequantise_blocks(stored, format=kind)], {stored: blocks})[0]  # pyright: ignore[reportArgumentType]


def _numbers(units: Units, rows: Array, depth: int) -> Array:
    """What units mean, by their declaration in primitives."""
    words, integers, halves = units.split(rows, depth)
    whole = np.concatenate([words.view(np.uint8), integers, np.repeat(halves, 8, axis=1)], axis=-1)
    block, parts = traced(units.format)
    found: list[Array] = []
    for one in whole.reshape(-1, 1, whole.shape[-1]):
        kept = [part for part in (parts.codes, parts.scale, parts.below) if part is not None]
        codes, scale, *below = evaluate_values(kept, {block: one})
        floats = codes.astype(np.float32) * scale
        found.append((floats - below[0] if below else floats).reshape(-1))
    return np.stack(found).reshape(len(rows), depth)


def test_formats_whose_scales_are_integers_become_units() -> None:
    assert tuple(name for name in FORMATS if is_nested(name)) == NESTED
    assert Units.of(["q8_0"]) is None and Units.of(["q4_k", "q8_0"]) is None and Units.of([]) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("beside", ["", "q6_k", "q2_k"])
def test_units_have_the_numbers_of_the_format(kind: str, beside: str) -> None:
    units, rows = Units.of({kind, beside} - {""}), random_blocks(kind, 3, 512, 3)
    assert units is not None
    np.testing.assert_array_equal(_numbers(units, rows, 512), _floats(kind, rows))


def test_units_have_as_many_bits_as_all_formats_need() -> None:
    assert Units.of(["q4_k"]) == Units(4, 0, 32, True)
    assert Units.of(["q4_k", "q6_k"]) == Units(6, 32, 16, True)
    assert Units.of(["q3_k", "q5_k"]) == Units(6, 4, 16, True)


@pytest.mark.parametrize(
    ("kind", "most"), [("q4_k", 148), ("q5_k", 180), ("q6_k", 210), ("q3_k", 114), ("q2_k", 100), ("iq4_xs", 138)]
)
def test_units_take_few_bytes_more_than_blocks(kind: str, most: int) -> None:
    pack = PackedBlocks(kind, Units.of([kind]), 1024)
    rows = random_blocks(kind, 8, 1024)
    assert pack(rows).nbytes == pack.nbytes(8, 32) == 8 * 4 * most


def test_parts_of_a_matrix_may_have_different_formats() -> None:
    """A tile has columns of both."""
    few, more = random_blocks("q4_k", 4, 256, 1), random_blocks("q6_k", 4, 256, 2)
    pack = PackedBlocks("q4_k", Units.of(["q4_k", "q6_k"]), 256)
    own = [np.concatenate(some) for some in zip(pack.split(few), pack.split(more), strict=True)]
    packed = pack(few, more)
    assert packed.nbytes == sum(part.nbytes for part in own)
    words = packed[: own[0].nbytes].view(own[0].dtype).reshape(*own[0].shape[1:], 8)
    np.testing.assert_array_equal(words, own[0].transpose(1, 2, 0))
    tiles = PackedTiles(pack, 8, 2, 8)(few, more)
    np.testing.assert_array_equal(np.sort(tiles.reshape(-1)), np.sort(packed))
