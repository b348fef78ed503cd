"""Which threads have which tiles: kernels record it, and what asks for it does not read it off their loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dovetail.ir.dtype import bool_, f32, i64
from dovetail.kernels.loops import gpu_schedule
from dovetail.kernels.loops.gpu_schedule import GpuShape, TileBody, over_tiles, schedule, tile_of
from dovetail.kernels.loops.ir import (
    ZERO,
    Barrier,
    Call,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Number,
    Schedule,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    everything,
    rewrite,
)
from dovetail.kernels.loops.launch_fusion.row_prologue import RowKernel
from dovetail.kernels.loops.launch_fusion.stage_narrowing import Index, narrowed
from dovetail.kernels.loops.tiling import Flat

ROWS = 40


def row_sum(width: int) -> Kernel:
    """The sum of each row, in all of its columns."""
    item = f32.itemsize
    x, y = (Tensor(name, f32, (width * item, item)) for name in "xy")
    total, at = Name("total", f32), (Name("tile"), Name("j"))
    body: tuple[Statement, ...] = (
        Set("total", Number(0, f32)),
        Loop("j", Extent(width), (Set("total", Call("add", (total, Load(x, at)), f32)),), kind="parallel"),
        Loop("j", Extent(width), (Store(y, at, total),), kind="parallel"),
    )
    return Kernel("sum", ("x", "y"), ("y",), "tile", body)


BY_WIDTH = {8: Schedule("thread", ROWS, 128), 100: Schedule("warp", ROWS, 4), 5000: Schedule("block", ROWS)}


@pytest.mark.parametrize("width", BY_WIDTH)
def test_a_kernel_records_who_has_its_tiles(width: int) -> None:
    found = schedule(row_sum(width), ROWS, GpuShape())
    assert found.schedule is not None and found.schedule == BY_WIDTH[width]
    tile = tile_of(found.body, found.schedule)
    assert tile.number == "tile" and over_tiles(found.schedule, tile) == found.body
    assert found.launch is not None and found.launch.grid == -(-ROWS // found.schedule.each)
    assert not any([isinstance(s, Loop) and s.kind == "block" for s in everything(tile.body)])


def test_a_tile_is_found_after_what_its_block_does_first() -> None:
    found = schedule(row_sum(100), ROWS, GpuShape())
    assert found.schedule is not None
    assert tile_of((Barrier(), *found.body), found.schedule) == tile_of(found.body, found.schedule)


def test_a_schedule_of_another_body_is_no_tile() -> None:
    with pytest.raises(AssertionError, match="the schedule is that of the body"):
        tile_of((Barrier(),), Schedule("block", 1))
    with pytest.raises(AssertionError, match="the schedule is that of the body"):
        tile_of((Loop("tile", Extent(1), (Barrier(), Barrier()), kind="block"),), Schedule("warp", 1, 4))


def _strided(of: Schedule, tile: TileBody) -> tuple[Statement, ...]:
    """Tiles that are apart by blocks, under another condition and with other names."""
    if of.by == "block":
        return over_tiles(of, tile)
    assert isinstance(of.tiles, int)
    blocks = -(-of.tiles // of.each)
    number = Call("add", (Name("b"), Call("mul", (ThreadIndex(of.by), Extent(blocks)), i64)), i64)
    inside = Call("bit_not", (Call("less_equal", (Extent(of.tiles), Name(tile.number)), bool_),), bool_)
    return (Loop("b", Extent(blocks), (Set(tile.number, number), When(inside, tile.body)), kind="block"),)


@pytest.mark.parametrize("write", [over_tiles, _strided], ids=["as it is", "otherwise"])
def test_rows_are_found_however_the_scheduler_writes_them(
    write: Callable[[Schedule, TileBody], tuple[Statement, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the scheduler must not turn off what joins kernels of rows with others."""
    monkeypatch.setattr(gpu_schedule, "over_tiles", write)
    width = 100
    made = schedule(row_sum(width), ROWS, GpuShape())
    rows = RowKernel.of(made, width)
    assert rows is not None
    assert (rows.row, rows.rows, rows.warps, rows.width) == ("tile", ROWS, 4, width)
    assert Set("total", Number(0, f32)) in rows.body
    monkeypatch.undo()


def test_rows_are_those_of_warps_alone() -> None:
    for width in (8, 5000):
        assert RowKernel.of(schedule(row_sum(width), ROWS, GpuShape()), width) is None
    assert RowKernel.of(row_sum(100), 100) is None, "it has no schedule yet"
    apart = Kernel("k", ("y",), ("y",), "tile", (Store(Tensor("y", f32, (4,)), (ZERO,), Number(0, f32)),))
    assert RowKernel.of(schedule(apart, 1, GpuShape()), 1) is None


def _elementwise(rows: int, columns: int) -> Kernel:
    """A tensor of zeros, by tiles of 64 elements."""
    flat, item = Flat((rows, columns), 1, 64), f32.itemsize
    y = Tensor("y", f32, (columns * item, item), space="shared")
    body = (*flat.head(Name("tile")), *flat.nest([Store(y, flat.at, Number(0, f32))]))
    return schedule(Kernel("zeros", ("y",), ("y",), "tile", body), flat.tiles, GpuShape())


@pytest.mark.parametrize("extent", [None, Call("select_extent", (), i64)], ids=["as it is", "otherwise"])
def test_elements_of_a_slice_are_found_however_loops_are_written(extent: Call | None) -> None:
    body = _elementwise(6, 32).body

    def written(part: object) -> Loop | None:
        if not isinstance(part, Loop) or part.elements is None or extent is None:
            return None
        return replace(part, extent=extent)

    found = narrowed(rewrite(body, written), Index("j0", 2, ThreadIndex("block")))
    (loop,) = [s for s in everything(found) if isinstance(s, Loop) and s.kind == "thread"]
    assert loop.extent == Extent(64) and loop.elements is None, "two rows of 32"
