"""Panels of blocks: what they were made of can be made again, to the last bit, so that no second copy is kept."""

from __future__ import annotations

import gc
import mmap
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, i64, u8
from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu.gemm.blocks.kernel import block_dot
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout, BlockPanels
from dovetail.targets.cpu.gemm.blocks.words import NESTED
from dovetail.targets.cpu.isa import host_device
from tests.block_arrays import random_blocks

CUTS = {
    "one matrix": (((0, 0),), 40, (1,), [40]),
    "two operands": (((0, 0), (1, 0)), 24, (1, 1), [24, 24]),
    "two parts of a matrix of two": (((0, 0), (0, 24)), 24, (2,), [30, 18]),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["int4", "int4_low", "int8_low", *(n for n, of in FORMATS.items() if of.halves)])
def test_blocks_are_made_again_to_the_last_bit(name: str, cut: str) -> None:
    streams, size, counts, rows = CUTS[cut]
    given = [random_blocks(name, count, 512, i) for i, count in enumerate(rows)]
    shapes = [array.shape for array in given]
    layouts = [BlockLayout(name, 16, signed, by_lane=signed) for signed in (True, False)]
    if name in NESTED:
        layouts.append(BlockLayout(name, 16, True, by_lane=True, is_nested=True))
    for layout in layouts:
        pack = BlockPanels(layout, streams, size, counts)
        assert pack.holds(shapes)
        again = pack.unpack(pack(*given), shapes)
        assert [a.tobytes() for a in again] == [g.tobytes() for g in given]


def test_columns_that_no_stream_has_cannot_be_made_again() -> None:
    pack = BlockPanels(BlockLayout("int4", 16, True), ((0, 0),), 24, (1,))
    assert not pack.holds([(40, 40)])
    assert not BlockPanels(BlockLayout("iq4_xs", 16, True), ((0, 0),), 40, (1,)).holds([(40, 136)])


@pytest.mark.exhaustive
@pytest.mark.skipif(block_dot(host_device()) is None or sys.platform != "linux", reason="needs dot products and smaps")
def test_pages_of_a_mapped_file_that_were_packed_are_dropped(tmp_path: Path) -> None:
    """A table whose rows are gathered and which is a right factor, too, as tied embeddings are."""
    blocks = random_blocks("q6_k", 1 << 15, 512)
    path = tmp_path / "weights"
    blocks.tofile(path)
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8).reshape(blocks.shape)
    table = leaf.param("w", u8[blocks.shape])
    rows = library.dequantise_blocks(ops.gather(table, leaf.input("i", i64[2]), axis=0), format="q6_k")
    w = library.dequantise_blocks(table, format="q6_k")
    graph = Graph.of({"y": rows @ ops.permute(w, order=(-1, -2))})
    program = dovetail.compile(graph, cache="off").bind({"w": mapped})
    found = program.run({"i": np.asarray([5, 4000])})["y"]
    wanted = dovetail.evaluate(graph, {"i": np.asarray([5, 4000])}, params={"w": blocks}, lift=True)["y"]
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
    text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    _, _, rest = text.partition(f"{path}\n")
    held = int(next(line.split()[1] for line in rest.splitlines() if line.startswith("Rss:"))) << 10
    assert held < blocks.nbytes // 2, "but for pages around the rows that were read"


@pytest.mark.slow
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
