"""Widths of tiles: a kernel of a known number of queries has the widths that its tiles take, and no other."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import input
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.shape import most_vectors, widths
from tests.kernels.machines import AVX2, NEON, VNNI
from tests.tolerances import assert_close

MACHINES = {"avx512": VNNI, "avx2": AVX2, "neon": NEON}


def taken(device: CpuDevice, queries: int) -> set[int]:
    """The fewest vectors, of 1, 2, 4 and so on, that hold each tile's queries."""
    most = most_vectors(device) * device.lanes
    tiles = [min(most, queries - first) for first in range(0, queries, most)]
    return {next(w for w in (1, 2, 4, 8) if w * device.lanes >= rows) for rows in tiles}


@pytest.mark.parametrize("machine", MACHINES)
def test_widths_are_those_of_the_tiles(machine: str) -> None:
    device = MACHINES[machine].device
    for queries in range(1, 70):
        assert set(widths(device, queries)) == taken(device, queries), queries
    assert widths(device, symbol("n"))[-1] == most_vectors(device)
    assert len(widths(device, symbol("n"))) == most_vectors(device).bit_length()


@pytest.mark.parametrize("queries", [5, 8, 16, 21, 25, 41])
def test_known_numbers_of_queries_attend_to_all_keys(queries: int) -> None:
    q, k, v = (input(name, f32[2, size, 8]) for name, size in (("q", queries), ("k", 19), ("v", 19)))
    program = dovetail.compile(Graph.of(library.attention(q, k, v, scale=0.5)))
    rng = np.random.default_rng(queries)
    sizes = {"q": queries, "k": 19, "v": 19}
    x = {name: rng.standard_normal((2, size, 8)).astype(np.float32) for name, size in sizes.items()}
    wide = {name: array.astype(np.float64) for name, array in x.items()}
    weights = np.exp(wide["q"] @ wide["k"].swapaxes(-1, -2) * 0.5)
    assert_close(program.run(x)["y"], weights / weights.sum(-1, keepdims=True) @ wide["v"], f32)
