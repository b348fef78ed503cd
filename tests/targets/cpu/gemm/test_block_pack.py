"""Panels of blocks: what they were made of can be made again, to the last bit, so that no second copy is kept."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, u8
from dovetail.targets.cpu.gemm.block_pack import BlockLayout, BlockPanels
from dovetail.targets.cpu.gemm.blocks import block_dot
from dovetail.targets.cpu.isa import host_device
from tests.block_arrays import random_blocks

CUTS = {
    "one matrix": (((0, 0),), 40, (1,), [40]),
    "two operands": (((0, 0), (1, 0)), 24, (1, 1), [24, 24]),
    "two parts of a matrix of two": (((0, 0), (0, 24)), 24, (2,), [30, 18]),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["int4", "int4_low", "int8_low", "q8_0", "q4_1"])
def test_blocks_are_made_again_to_the_last_bit(name: str, cut: str) -> None:
    streams, size, counts, rows = CUTS[cut]
    given = [random_blocks(name, count, 64, i) for i, count in enumerate(rows)]
    shapes = [array.shape for array in given]
    for signed in (True, False):
        pack = BlockPanels(BlockLayout(name, 16, signed), streams, size, counts)
        assert pack.holds(shapes)
        again = pack.unpack(pack(*given), shapes)
        assert [a.tobytes() for a in again] == [g.tobytes() for g in given]


def test_columns_that_no_stream_has_cannot_be_made_again() -> None:
    pack = BlockPanels(BlockLayout("int4", 16, True), ((0, 0),), 24, (1,))
    assert not pack.holds([(40, 40)])
    assert not BlockPanels(BlockLayout("q6_k", 16, True), ((0, 0),), 40, (1,)).holds([(40, 210)])


@pytest.mark.skipif(block_dot(host_device()) is None, reason="this machine has no dot products of bytes")
def test_a_program_keeps_packed_weights_alone() -> None:
    blocks = random_blocks("int4", 40, 64)
    wanted, seen = blocks.tobytes(), weakref.ref(blocks)
    w = library.dequantise_blocks(leaf.param("w", u8[blocks.shape]), format="int4")
    graph = Graph.of({"y": leaf.input("x", f32[2, 64]) @ ops.permute(w, order=(-1, -2))})
    program = dovetail.compile(graph, cache="off").bind({"w": blocks})
    del blocks
    gc.collect()
    assert seen() is None, "the original is freed"
    assert np.asarray(program.params["w"]).tobytes() == wanted
