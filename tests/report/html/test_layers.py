"""A layered drawing: rows, order, places and wires."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.report.html.layers import Box, Drawing, draw

GAP, LANE = 10.0, 20.0


def drawing(rows: list[int], edges: list[tuple[int, int]], seed: int = 0) -> tuple[list[Box], Drawing]:
    rng = random.Random(seed)
    boxes = [Box(rng.randint(10, 80), rng.randint(10, 40), row) for row in rows]
    return boxes, draw(boxes, edges, gap=GAP, lane=LANE)


def test_nothing_is_nothing() -> None:
    assert draw([], [], gap=GAP, lane=LANE) == Drawing((), (), (), 0, 0)


def test_a_chain_stands_straight() -> None:
    boxes = [Box(30, 10, row) for row in range(5)]
    drawn = draw(boxes, [(i, i + 1) for i in range(4)], gap=GAP, lane=LANE)
    assert set(drawn.x) == {15} and drawn.y == (0, 30, 60, 90, 120)
    assert (drawn.width, drawn.height) == (30, 130)
    assert drawn.wires[0].points == (15, 10, 15, 30)


def test_wires_that_need_not_cross_do_not() -> None:
    boxes = [Box(20, 10, 0)] * 3 + [Box(20, 10, 1)] * 3
    drawn = draw(boxes, [(0, 5), (1, 4), (2, 3)], gap=GAP, lane=LANE)
    pairs = sorted((drawn.x[a], drawn.x[b]) for a, b in [(0, 5), (1, 4), (2, 3)])
    assert [b for _, b in pairs] == sorted(b for _, b in pairs)


def test_a_wire_past_a_row_goes_around_what_stands_there() -> None:
    boxes = [Box(40, 10, 0), Box(40, 10, 1), Box(40, 10, 2)]
    drawn = draw(boxes, [(0, 1), (1, 2), (0, 2)], gap=GAP, lane=LANE)
    (_, _, x, top, bottom, _, _) = drawn.wires[2].points
    assert abs(x - drawn.x[1]) >= 20 and (top, bottom) == (30, 40)


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_boxes_never_overlap_and_wires_go_down(seed: int, count: int) -> None:
    rng = random.Random(seed)
    rows: list[int] = []
    edges: list[tuple[int, int]] = []
    for i in range(count):
        read = [j for j in range(i) if rng.random() < 0.15]
        rows.append(max((rows[j] + 1 for j in read), default=0))
        edges += [(j, i) for j in read]
    boxes, drawn = drawing(rows, edges, seed)
    for i in range(count):
        assert drawn.x[i] - boxes[i].width / 2 + 1 >= 0 and drawn.x[i] + boxes[i].width / 2 <= drawn.width + 1
        for j in range(i):
            if rows[i] == rows[j]:
                # Places are whole numbers, so that up to one may be lost of the gap.
                assert abs(drawn.x[i] - drawn.x[j]) >= (boxes[i].width + boxes[j].width) / 2 + GAP - 1
    for wire, (source, target) in zip(drawn.wires, edges, strict=True):
        heights = [wire.points[1], *(h for k in range(2, len(wire.points) - 2, 3) for h in wire.points[k + 1 : k + 3])]
        heights.append(wire.points[-1])
        assert heights == sorted(heights)
        assert abs(wire.points[0] - drawn.x[source]) <= boxes[source].width / 2
        assert abs(wire.points[-2] - drawn.x[target]) <= boxes[target].width / 2
