"""Stages of a block by warps: a row goes through all of them in one warp, where no stage reads another row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.ir.dtype import bf16, f32, i64
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.gpu_schedule import TileBody, over_tiles
from dovetail.kernels.loops.ir import (
    ZERO,
    AllReduce,
    Barrier,
    Call,
    Elements,
    Expr,
    Extent,
    Load,
    LoadMatrices,
    Loop,
    Name,
    Number,
    Receive,
    Schedule,
    Set,
    Statement,
    Store,
    SubGrid,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    minimum,
    mul,
)
from dovetail.kernels.loops.launch_fusion.stage_narrowing import Body, Index
from dovetail.kernels.loops.launch_fusion.stage_warps import StageBody, by_warps
from dovetail.kernels.loops.repeated import Repeated
from tests.targets.cuda.test_attend_parts import attention_of, deep, resident_of

ROWS, COLUMNS, WARPS = 6, 32, 8
BLOCK = ThreadIndex("block")
ROW = Name("row")
BY_WARP, BY_BLOCK = Schedule("warp", ROWS, WARPS), Schedule("block", 3)


def _tensor(name: str, offset: int = 0, space: str = "shared") -> Tensor:
    found = Tensor(name, bf16, (2 * COLUMNS, 2), offset)
    return replace(found, space="shared") if space == "shared" else found


def _normed(source: str, target: str) -> Body:
    """A row for each warp: its largest element in all columns."""
    at = Name("row"), ThreadIndex("lane")
    inner = (
        Set("row", Name("tile")),
        Set("most", Call("cast", (Load(_tensor(source), at),), f32)),
        AllReduce("most", "maximum", f32),
        Store(_tensor(target), at, Call("cast", (Name("most", f32),), bf16)),
    )
    return over_tiles(BY_WARP, TileBody("tile", inner))


def _moved(source: Tensor, target: Tensor, row: Expr = ROW) -> Body:
    """An element for each thread."""
    flat = add(Name("start"), Name("j"))
    sets = (
        Set("row", Call("div", (flat, Extent(COLUMNS)), i64)),
        Set("column", Call("rem", (flat, Extent(COLUMNS)), i64)),
    )
    store = Store(target, (Name("row"), Name("column")), Load(source, (row, Name("column"))))
    left = Call("sub", (Extent(ROWS * COLUMNS), Name("start")), i64)
    elements = Elements(Name("start"), 64, ROWS * COLUMNS)
    loop = Loop("j", minimum(Extent(64), left), (*sets, store), kind="thread", elements=elements)
    return (Loop("tile", Extent(3), (Set("start", mul(Name("tile"), Extent(64))), loop), kind="block"),)


def _stages(count: int, second: Body | None = None) -> list[StageBody]:
    """Rows that are normed, then moved, and others that are moved at the same time."""
    index = Index("row", count, BLOCK)
    second = second or _moved(_tensor("y"), _tensor("z"))
    other = _moved(_tensor("v", space="global"), _tensor("w", space="global"))
    return [
        StageBody(_normed("x", "y"), index, frozenset(), BY_WARP),
        StageBody(second, index, frozenset({0}), BY_BLOCK),
        StageBody(other, replace(index, count=1), frozenset(), BY_BLOCK),
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_a_row_goes_through_its_stages_in_one_warp(count: int) -> None:
    found = by_warps(_stages(count), 32 * WARPS, 32)
    assert found is not None and len(found) == 2
    assert not any(isinstance(s, Barrier) for s in everything(found))
    chain, other = found
    assert isinstance(chain, When) and isinstance(other, When)
    assert sum(isinstance(s, WarpBarrier) for s in chain.body) == 1, "a warp waits for its lanes from stage to stage"
    assert not any(isinstance(s, Loop) and s.kind == "thread" for s in everything(found))
    (tile,) = [s.value for s in everything(chain.body) if isinstance(s, Set) and s.name == "tile"]
    assert tile == add(mul(BLOCK, Extent(count)), ThreadIndex("warp"))
    # The other rows are those of the next warps.
    assert Call("sub", (ThreadIndex("warp"), Extent(count)), i64) in [*_calls(other.condition)]


def _calls(expr: Expr) -> list[Expr]:
    return [expr, *(x for one in expr.operands for x in _calls(one))] if isinstance(expr, Call) else [expr]


@pytest.mark.parametrize("why", ["another row", "the next row", "global memory", "an unknown index", "overwritten"])
def test_stages_that_need_more_than_their_row_wait_for_the_block(why: str) -> None:
    y, z = _tensor("y"), _tensor("z")
    stages = _stages(1)
    match why:
        case "another row":
            stages = _stages(1, _moved(y, z, ZERO))
        case "the next row":
            stages = _stages(1, _moved(_tensor("y", 2 * COLUMNS), z))
        case "global memory":
            (loop,) = _normed("x", "y")
            first = _with_target(loop, _tensor("y", space="global"))
            stages[0] = replace(stages[0], body=(first,))
        case "an unknown index":
            stages[2] = replace(stages[2], index=None)
        case _:
            stages = _stages(1, _moved(y, _tensor("x")))
    assert by_warps(stages, 32 * WARPS, 32) is None


def _with_target(s: Statement, target: Tensor) -> Statement:
    if isinstance(s, Store):
        return replace(s, tensor=target)
    return replace(s, body=tuple([_with_target(x, target) for x in s.body])) if isinstance(s, (Loop, When)) else s


def test_rows_that_are_more_than_the_warps_wait_for_the_block() -> None:
    assert by_warps(_stages(2), 32, 32) is None


@pytest.mark.exhaustive
def test_attention_waits_for_its_block_once_between_words_and_keys() -> None:
    part: SubGrid = attention_of(resident_of(deep("qwen3")))
    first = next(i for i, s in enumerate(part.body) if isinstance(s, Receive))
    rest = [*everything(part.body[first:])]
    end = next(i for i, s in enumerate(rest) if isinstance(s, LoadMatrices))
    # One barrier is for the words, the other for what the stages of all warps found.
    assert sum(isinstance(s, Barrier) for s in rest[:end]) == 2


def test_what_is_the_same_for_all_elements_runs_once() -> None:
    position = Load(Tensor("position", i64, (0, 8)), (Name("column"), ZERO))
    store = Store(_tensor("y"), (Name("at"), Name("column")), Number(1, bf16))
    status = Store(Tensor("status", i64, ()), (), Number(1, i64))
    inside = When(Call("less", (ZERO, Extent(4)), i64), (Set("at", position), store, status))
    body = (Set("column", Name("j")), inside)
    found = Repeated("turn", 4).of(body, [Set("j", Name("turn"))])
    assert found is not None
    (when,) = found
    assert isinstance(when, When)
    at, loop, told = when.body
    assert at == Set("at", Load(Tensor("position", i64, (0, 8)), (ZERO, ZERO))) and told == status
    assert isinstance(loop, Loop) and loop.kind == "unrolled" and loop.body[-1] == store


@pytest.mark.parametrize("why", ["it differs later", "it leaves a condition", "a loop"])
def test_names_that_do_not_stay_the_same_are_not_repeated(why: str) -> None:
    column, store = Set("column", Name("j")), Store(_tensor("y"), (Name("k"), Name("j")), Number(1, bf16))
    bodies: dict[str, Body] = {
        "it differs later": (Set("k", ZERO), Set("k", add(Name("k"), Name("j"))), store),
        "it leaves a condition": (When(Call("less", (ZERO, Extent(4)), i64), (Set("k", Name("j")),)), store),
        "a loop": (Loop("k", Extent(2), (store,)),),
    }
    assert Repeated("turn", 4).of((column, *bodies[why]), [Set("j", Name("turn"))]) is None
