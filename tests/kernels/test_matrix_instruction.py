"""Matrix instructions as records: their lane maps are what the vendors' manuals say, in formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dovetail.kernels.matrix_instruction import (
    MFMA_F8,
    MFMA_F16,
    MFMA_F32,
    MFMA_I8,
    MMA_BF16,
    MMA_F8,
    MMA_F16,
    MMA_I8,
    MMA_TF32,
    RECORDS,
    WGMMA,
    WMMA_11,
    WMMA_12,
    LinearLayout,
    MatrixInstruction,
)

Formula = Callable[[int, int], tuple[int, int]]


def _has(layout: LinearLayout | None, formula: Formula) -> None:
    assert layout is not None
    for lane in range(1 << len(layout.lanes)):
        for e in range(layout.count):
            assert layout.place(lane, e) == formula(lane, e), (lane, e)


@pytest.mark.parametrize("by", RECORDS, ids=lambda by: by.name)
def test_lanes_hold_every_element(by: MatrixInstruction) -> None:
    shapes = {"sums": (by.m, by.n), "left": (by.m, by.k), "right": (by.k, by.n)}
    for name, shape in shapes.items():
        layout: LinearLayout | None = getattr(by, name)
        if layout is None:
            assert by.by_warpgroup and name != "sums"
            continue
        assert layout.shape == shape
        lanes = range(1 << len(layout.lanes))
        places = [layout.place(lane, e) for lane in lanes for e in range(layout.count)]
        assert {*places} == {(i, j) for i in range(shape[0]) for j in range(shape[1])}
        copies = len(places) // (shape[0] * shape[1])
        assert copies == (2 if by in WMMA_11 and name != "sums" else 1)


@pytest.mark.parametrize("by", [MMA_F16, MMA_BF16], ids=lambda by: by.name)
def test_mma_of_16_bits(by: MatrixInstruction) -> None:
    """PTX: groupID = lane / 4, threadID_in_group = lane mod 4."""
    _has(by.sums, lambda lane, e: (lane // 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2))
    _has(by.left, lambda lane, e: (lane // 4 + 8 * (e // 2 % 2), 2 * (lane % 4) + e % 2 + 8 * (e // 4)))
    _has(by.right, lambda lane, e: (2 * (lane % 4) + e % 2 + 8 * (e // 2), lane // 4))


def test_mma_of_tf32() -> None:
    _has(MMA_TF32.left, lambda lane, e: (lane // 4 + 8 * (e % 2), lane % 4 + 4 * (e // 2)))
    _has(MMA_TF32.right, lambda lane, e: (lane % 4 + 4 * e, lane // 4))
    assert MMA_TF32.sums == MMA_F16.sums and MMA_TF32.k == 8


@pytest.mark.parametrize("by", [MMA_F8, MMA_I8], ids=lambda by: by.name)
def test_mma_of_8_bits(by: MatrixInstruction) -> None:
    _has(by.left, lambda lane, e: (lane // 4 + 8 * (e // 4 % 2), 4 * (lane % 4) + e % 4 + 16 * (e // 8)))
    _has(by.right, lambda lane, e: (4 * (lane % 4) + e % 4 + 16 * (e // 4), lane // 4))
    assert by.sums == MMA_F16.sums and by.k == 32


@pytest.mark.slow
def test_wgmma() -> None:
    """Warp w of a group has rows 16·w to 16·w + 15."""
    for by in WGMMA:
        _has(
            by.sums,
            lambda t, e: (16 * (t // 32) + t % 32 // 4 + 8 * (e // 2 % 2), 8 * (e // 4) + 2 * (t % 4) + e % 2),
        )


@pytest.mark.parametrize(("by", "each"), [(MFMA_F16, 4), (MFMA_F32, 1), (MFMA_I8, 8), (MFMA_F8, 8)])
def test_mfma_of_16_by_16(by: MatrixInstruction, each: int) -> None:
    """CDNA 3: four groups of 16 lanes have pieces of k, and four rows of the sums."""
    _has(by.left, lambda lane, e: (lane % 16, each * (lane // 16) + e))
    _has(by.right, lambda lane, e: (each * (lane // 16) + e, lane % 16))
    _has(by.sums, lambda lane, e: (4 * (lane // 16) + e, lane % 16))


def test_wmma() -> None:
    _has(WMMA_11[0].left, lambda lane, e: (lane % 16, e))
    _has(WMMA_11[0].sums, lambda lane, e: (2 * e + lane // 16, lane % 16))
    _has(WMMA_12[0].left, lambda lane, e: (lane % 16, 8 * (lane // 16) + e))
    _has(WMMA_12[0].right, lambda lane, e: (8 * (lane // 16) + e, lane % 16))
    _has(WMMA_12[0].sums, lambda lane, e: (8 * (lane // 16) + e, lane % 16))


def test_runs_of_bits_say_where_a_lane_is() -> None:
    """What kernels compute of a lane's number is what its bits say."""
    for by in RECORDS:
        for layout in [one for one in (by.sums, by.left, by.right) if one is not None]:
            for lane in range(1 << len(layout.lanes)):
                for axis in (0, 1):
                    moved = [(lane >> first) % (1 << count) * step for first, count, step in layout.runs(axis)]
                    assert sum(moved) == layout.place(lane, 0)[axis]
