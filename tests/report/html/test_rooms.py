"""Rooms: the ops of a kernel lie inside it, in the order of who reads whom."""

from __future__ import annotations

import pytest

from dovetail.ir.text_print import local_names
from dovetail.report.html.rooms import HEAD, Room, Rooms, lines_inside
from dovetail.report.kernels import kernel_map
from tests.report.html.models import compiled


def overlap(room: Room) -> bool:
    chips = room.chips
    return any(
        abs(a[1] - b[1]) < 18 and a[0] < b[0] + b[2] and b[0] < a[0] + a[2]
        for i, a in enumerate(chips)
        for b in chips[:i]
    )


@pytest.mark.parametrize("count", [0, 1, 3, 10, 60, 300])
def test_chips_lie_inside_and_apart(count: int) -> None:
    rooms = Rooms()
    ops = [("add", "reduce_mean", "mul")[i % 3] for i in range(count)]
    room = rooms.shapes[rooms.of("residual_layer_norm", ops, [(i, i + 1) for i in range(count - 1)])]
    assert not overlap(room)
    for x, y, width in room.chips:
        assert x >= 0 and x + width <= room.width and y >= HEAD and y + 18 <= room.height


def test_what_stands_side_by_side_reads_the_same() -> None:
    rooms = Rooms()
    room = rooms.shapes[rooms.of("linear", ["matmul", "matmul", "add"], [(0, 2), (1, 2)])]
    (a, b, c) = room.chips
    assert a[0] == b[0] and a[1] != b[1] and c[0] > a[0] + a[2]
    assert room.lines == ((0, 2, "beside"), (1, 2, "beside"))


def test_kernels_that_look_alike_share_a_drawing() -> None:
    rooms = Rooms()
    assert rooms.of("linear", ["matmul"], []) == rooms.of("linear", ["matmul"], [])
    assert rooms.of("linear", ["matmul", "add"], [(0, 1)]) == 1 and len(rooms.shapes) == 2


def test_lines_follow_the_graph_as_written() -> None:
    """In a layer of a transformer every op of a kernel but the first is tied to another one."""
    made = compiled("bert")
    written = made.lowered.written
    kernels = kernel_map(written, made.plan, made.lowered.places)
    lines = lines_inside(written, kernels, local_names(written, written.values))
    for kernel in kernels.kernels:
        tied = {n for pair in lines[kernel] for n in pair}
        if kernel.op.name == "residual_layer_norm":
            assert tied == set(range(len(kernels.nodes[kernel])))
        assert all(a < b for a, b in lines[kernel])
