"""Software pipelines compute in lockstep what NumPy does, by each way to fill stages, whatever steps and stages are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dovetail.codegen.llvm.amdgpu.printer import module
from dovetail.ir.dim import Dim, Size, floordiv, symbol
from dovetail.ir.dtype import bool_, f16, i32, i64
from dovetail.ir.literal import Array
from dovetail.kernels.gpu.gemm.fragments import SharedTile
from dovetail.kernels.gpu.pipeline import (
    ARRIVED,
    FULL,
    PRODUCER,
    Boxes,
    Bulk,
    Copies,
    CopyGroups,
    HeldOperands,
    Pipeline,
    StagedOperand,
    StepBody,
    Stores,
    pipeline,
)
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllocBarriers,
    Barrier,
    Call,
    CopyAsync,
    CopyBox,
    CopyBulk,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Roles,
    Set,
    Statement,
    Store,
    Tensor,
    TensorMap,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    everything,
    mul,
    sizes_in,
)
from tests.codegen import amd
from tests.targets.cuda.lockstep import Machine

THREADS = 64
LINE = 4 * THREADS
"""Elements of a step: a copy of 16 bytes for each thread."""
THREAD = ThreadIndex("thread")
OTHER = Call("sub", (Extent(THREADS - 1), THREAD), i64)
"""The thread whose copies a thread reads."""
COUNT = symbol("n")
STAGES = range(1, 6)
STEPS = (1, 2, 3, 4, 7, 10)
MOST = 10
"""Steps whose operands there are."""


def _stage_at(name: str, stage: Expr, element: Expr) -> tuple[Tensor, tuple[Expr, ...]]:
    return Tensor(name, i32, (4 * LINE, 4), space="shared"), (stage, element)


def _own(thread: Expr, number: int) -> Expr:
    return add(mul(thread, Extent(4)), Extent(number))


def _inside(step: Expr, count: Size) -> Expr:
    return Call("less", (step, Extent(count)), bool_)


def _source(name: str) -> Tensor:
    return Tensor(name, i32, (4 * LINE, 4))


def _copied(name: str, count: Size) -> StepBody:
    def fill(step: Expr, stage: Expr) -> list[Statement]:
        target = _stage_at(f"{name}_tile", stage, _own(THREAD, 0))
        return [CopyAsync(*target, _source(name), (step, _own(THREAD, 0)), _inside(step, count))]

    return fill


def _stored(name: str) -> StepBody:
    def fill(step: Expr, stage: Expr) -> list[Statement]:
        tile = f"{name}_tile"
        each = [(_stage_at(tile, stage, _own(THREAD, e)), (step, _own(THREAD, e))) for e in range(4)]
        return [Store(*target, Load(_source(name), at)) for target, at in each]

    return fill


def _used(name: str, total: str = "total") -> StepBody:
    """total = 3 · total + the four elements that another thread has copied: the order of steps decides."""

    def use(step: Expr, stage: Expr) -> list[Statement]:
        value: Expr = Call("mul", (Name(total, i64), Number(3, i64)), i64)
        for e in range(4):
            load = Load(*_stage_at(f"{name}_tile", stage, _own(OTHER, e)))
            value = Call("add", (value, Call("cast", (load,), i64)), i64)
        return [Set(total, value)]

    return use


def _kernel(body: Sequence[Statement], names: Sequence[str], stages: int, early: Sequence[Statement] = ()) -> Kernel:
    store = Store(Tensor("y", i64, (8,)), (THREAD,), Name("total", i64))
    tiles = [Alloc(f"{name}_tile", i32, stages * LINE, "shared") for name in names]
    start = Set("total", Number(0, i64))
    if early:
        made = (*tiles, *early)
        body = (*tiles, start, *body, store)
    else:
        made, body = (), (*tiles, start, *body, store)
    sizes = sizes_in((*made, *body))
    return Kernel(
        "steps", (*names, "y"), ("y",), "tile", tuple(body), sizes=sizes, launch=Launch(1, THREADS), early=made
    )


def _ran(kernel: Kernel, inputs: dict[str, Array], count: int) -> Array:
    y = np.full(kernel.launch.block if kernel.launch else 0, -1, np.int64)
    buffers = {"y": (y.view(np.uint8), 0), **{n: (x.view(np.uint8).reshape(-1), 0) for n, x in inputs.items()}}
    Machine(kernel, buffers, {"n": count}).run()
    return y


def _lines(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 100, (MOST, THREADS, 4)).astype(np.int32)


def _totals(*operands: Array, count: int) -> Array:
    found = np.zeros(THREADS, np.int64)
    for step in range(count):
        for lines in operands:
            found = 3 * found + lines[step, ::-1].sum(-1)
    return found


def _known(count: int, *, known: bool) -> Size:
    return count if known else COUNT


def _nothing(step: Expr, stage: Expr) -> tuple[Statement, ...]:
    return ()


GROUPS: dict[str, CopyGroups] = {
    "between": CopyGroups(),
    "before": CopyGroups(refill="before"),
    "after": CopyGroups(refill="after"),
    "by_warpgroups": CopyGroups(is_fenced=True, starts_rolled=True),
}


@pytest.mark.parametrize("known", [True, False], ids=["known", "run_time"])
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_copies(name: str, stages: int, known: bool) -> None:
    for count in STEPS:
        steps = _known(count, known=known)
        made = pipeline(stages, steps, _copied("x", steps), _used("x"), GROUPS[name])
        x = _lines()
        assert (_ran(_kernel(made.all(), ["x"], stages), {"x": x}, count) == _totals(x, count=count)).all()


@pytest.mark.parametrize("stages", [3, 4, 5])
def test_fewer_copies_ahead_than_stages_allow(stages: int) -> None:
    """As where a product by warpgroups may still read the stage of the step before."""
    x = _lines()
    for count in STEPS:
        made = pipeline(stages, count, _copied("x", count), _used("x"), CopyGroups(stages - 2))
        assert (_ran(_kernel(made.all(), ["x"], stages), {"x": x}, count) == _totals(x, count=count)).all()


@pytest.mark.parametrize("stages", STAGES)
def test_each_step_has_a_stage(stages: int) -> None:
    x = _lines()
    for is_named in (False, True):
        made = pipeline(stages, stages, _copied("x", stages), _used("x"), CopyGroups(refill="never"), is_named=is_named)
        assert (_ran(_kernel(made.all(), ["x"], stages), {"x": x}, stages) == _totals(x, count=stages)).all()


@pytest.mark.parametrize("refill", ["between", "after"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_operands_have_stages_of_their_own(refill: str, stages: int) -> None:
    """Keys and values: one is filled while the other is used, with one stage each."""
    x, z = _lines(), _lines(1)
    for count in STEPS:
        every = [StagedOperand(_copied(name, count), _used(name)) for name in "xz"]
        by = CopyGroups(refill="between") if refill == "between" else CopyGroups(refill="after", barrier=WarpBarrier())
        made = Pipeline(stages, count, every, by)
        if refill == "after":  # lanes of a warp read what lanes of another one have copied
            made = replace(made, by=replace(by, barrier=Barrier()))
        found = _ran(_kernel(made.all(), ["x", "z"], stages), {"x": x, "z": z}, count)
        assert (found == _totals(x, z, count=count)).all()


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_constants_start_early(stages: int) -> None:
    """One operand is constant: its first copies are part of groups that are committed later."""
    x, w = _lines(), _lines(1)

    def used(step: Expr, stage: Expr) -> list[Statement]:
        return [*_used("x")(step, stage), *_used("w")(step, stage)]

    def both(step: Expr, stage: Expr) -> list[Statement]:
        return [*_copied("x", count)(step, stage), *_copied("w", count)(step, stage)]

    for count in STEPS:
        made = pipeline(
            stages, count, both, used, CopyGroups(), constants=_copied("w", count), first=_copied("x", count)
        )
        kernel = replace(_kernel(made.all(), ["x", "w"], stages, made.early()), constants=("w",))
        assert (_ran(kernel, {"x": x, "w": w}, count) == _totals(x, w, count=count)).all()


@pytest.mark.parametrize("known", [True, False], ids=["known", "run_time"])
@pytest.mark.parametrize("by", [CopyGroups(), Stores()], ids=["and_copies", "alone"])
@pytest.mark.parametrize("stages", [2, 3])
def test_operands_that_pass_through_registers(by: Copies, stages: int, known: bool) -> None:
    """They are loaded a step ahead, and stored after the use of a step."""
    x, z = _lines(), _lines(1)

    def loads(step: Expr) -> list[Statement]:
        last = Call("minimum", (step, Extent(MOST - 1)), i64)
        return [Set(f"z{e}", Load(_source("z"), (last, _own(THREAD, e)))) for e in range(4)]

    def stores(step: Expr, stage: Expr) -> list[Statement]:
        return [Store(*_stage_at("z_tile", stage, _own(THREAD, e)), Name(f"z{e}", i32)) for e in range(4)]

    def used(step: Expr, stage: Expr) -> list[Statement]:
        return [*(_used("x")(step, stage) if isinstance(by, CopyGroups) else ()), *_used("z")(step, stage)]

    for count in STEPS:
        steps = _known(count, known=known)
        fill = _copied("x", steps) if isinstance(by, CopyGroups) else _nothing
        made = pipeline(stages, steps, fill, used, by, held=HeldOperands(loads, stores))
        found = _ran(_kernel(made.all(), ["x", "z"], stages), {"x": x, "z": z}, count)
        assert (found == _totals(*([x, z] if isinstance(by, CopyGroups) else [z]), count=count)).all()


@pytest.mark.parametrize("known", [True, False], ids=["known", "run_time"])
def test_stores_take_turns_with_uses(known: bool) -> None:
    x = _lines()
    for count in STEPS:
        made = pipeline(1, _known(count, known=known), _stored("x"), _used("x"), Stores())
        assert (_ran(_kernel(made.all(), ["x"], 1), {"x": x}, count) == _totals(x, count=count)).all()


@pytest.mark.parametrize("known", [True, False], ids=["known", "run_time"])
@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("by_one", [True, False], ids=["one_thread", "all_threads"])
def test_bulk_copies(by_one: bool, stages: int, known: bool) -> None:
    x = _lines()

    def fill(step: Expr, stage: Expr) -> list[Statement]:
        part = mul(Name("part"), Extent(LINE // 4))
        copy = CopyBulk(*_stage_at("x_tile", stage, part), _source("x"), (step, part), LINE, ARRIVED, stage)
        return [Loop("part", Extent(4), (copy,), kind="serial" if by_one else "thread")]

    for count in STEPS:
        made = pipeline(stages, _known(count, known=known), fill, _used("x"), Bulk(by_one))
        (barriers,) = made.allocations
        body = [replace(barriers, is_new=True), *made.all()]
        assert (_ran(_kernel(body, ["x"], stages), {"x": x}, count) == _totals(x, count=count)).all()


CONSUMERS = 128
"""Threads that use two boxes of 8 lines of 64 elements: each has a chunk of 8."""


def _boxes(stages: int, steps: Size, *, at_once: bool, early: bool) -> Kernel:
    """Two tiles, one after the other, with as many steps each; warps go on from tile to tile."""
    tile = SharedTile("tiles", f16, 16, 8, stages)

    def box(half: int, step: Expr, stage: Expr) -> list[CopyBox]:
        matrix = TensorMap("x", 0, (64, 2 * MOST * 16), (128,), 8)
        line = add(mul(add(mul(Name("tile"), Extent(steps)), step), Extent(16)), Extent(8 * half))
        return [CopyBox(*tile.place(stage, Extent(8 * half), ZERO), matrix, (ZERO, line), FULL, stage)]

    def fill(step: Expr, stage: Expr) -> list[CopyBox]:
        return [*box(0, step, stage), *box(1, step, stage)]

    def use(step: Expr, stage: Expr) -> list[Statement]:
        value: Expr = Call("mul", (Name("total", i64), Number(3, i64)), i64)
        for e in range(8):
            line, chunk = (Call(op, (THREAD, Extent(8)), i64) for op in ("div", "rem"))
            load = Load(*tile.place(stage, line, chunk, Extent(e)))
            value = Call("add", (value, Call("cast", (load,), i64)), i64)
        return [Set("total", value)]

    by = Boxes(CONSUMERS // 32, is_at_once=at_once)
    constants, others = (partial(box, 0), partial(box, 1)) if early else (None, None)
    made = pipeline(stages, steps, fill, use, by, constants=constants, first=others)
    tiles = 1 if at_once else 2
    store = Store(Tensor("y", i64, (8,)), (THREAD,), Name("total", i64))
    consume = (*made.state(), Set("total", Number(0, i64)), Loop("tile", Extent(tiles), tuple(made.rounds())), store)
    one = Call("equal", (THREAD, Extent(CONSUMERS)), bool_)
    produce = (*made.state(), When(one, (Loop("tile", Extent(tiles), tuple(made.fills())),)))
    allocations = (Alloc("tiles", f16, tile.count, "shared"), *made.allocations)
    body = (*allocations, Roles(CONSUMERS // 32, consume, produce))
    new = [replace(a, is_new=True) if isinstance(a, AllocBarriers) else a for a in allocations]
    first = (*new, Set("tile", ZERO), *made.early(CONSUMERS)) if early else ()
    launch, sizes = Launch(1, CONSUMERS + PRODUCER), sizes_in(body)
    return Kernel("boxes", ("x", "y"), ("y",), "tile", body, sizes=sizes, launch=launch, early=first, constants=("x",))


def _boxed(count: int, tiles: int) -> tuple[Array, Array]:
    x = np.random.default_rng(3).integers(0, 50, (2 * MOST, 16, 8, 8)).astype(np.float16)
    found = np.zeros(CONSUMERS, np.int64)
    for number in range(tiles * count):
        found = 3 * found + x[number].astype(np.int64).sum(-1).reshape(-1)
    return x, found


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["known", "run_time"])
@pytest.mark.parametrize("stages", STAGES)
def test_boxes_by_a_producer(stages: int, known: bool) -> None:
    for count in STEPS:
        x, expected = _boxed(count, 2)
        steps: int | Dim = _known(count, known=known)
        for early in (False, True) if known else (False,):
            found = _ran(_boxes(stages, steps, at_once=False, early=early), {"x": x}, count)
            assert (found[:CONSUMERS] == expected).all(), (count, early)


@pytest.mark.parametrize("stages", STAGES)
def test_boxes_with_a_stage_for_each_step(stages: int) -> None:
    x, expected = _boxed(stages, 1)
    for early in (False, True):
        found = _ran(_boxes(stages, stages, at_once=True, early=early), {"x": x}, stages)
        assert (found[:CONSUMERS] == expected).all()


def test_work_between_the_first_steps() -> None:
    """Such as results of the tile before."""
    made = pipeline(3, 5, _nothing, _used("x"), Boxes(2))
    for works in range(1, 6):
        body = made.overlapped([[Set(f"work{n}", ZERO)] for n in range(works)])
        sets = [s.name for s in everything(body) if isinstance(s, Set) and s.name[:4] in ("work", "tota")]
        rest = ["total"] if works < 5 else []
        assert sets == [*(name for n in range(works) for name in ("total", f"work{n}")), *rest]


def test_bytes_of_a_stage_are_counted() -> None:
    part = CopyBulk(*_stage_at("x_tile", ZERO, ZERO), _source("x"), (ZERO, ZERO), 64, ARRIVED, ZERO)
    loop = Loop("part", Extent(6), (part,), kind="thread")
    made = pipeline(1, 1, lambda step, stage: (loop, part), _used("x"), Bulk(by_one=False))
    (expected,) = [s for s in everything(made.start()) if type(s).__name__ == "ExpectBytes"]
    assert getattr(expected, "count", 0) == 7 * 64


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx1100"])
@pytest.mark.skipif(bool(amd.missing()), reason="LLVM makes no code for AMD GPUs")
def test_groups_are_loads_and_stores_without_copies_in_flight(architecture: str) -> None:
    steps = floordiv(COUNT, 2)
    made = pipeline(3, steps, _copied("x", steps), _used("x"), CopyGroups())
    kernel = _kernel(made.all(), ["x"], 3)
    kernel = replace(kernel, launch=Launch(1, THREADS, warp=amd.DEVICES[architecture].warp))
    text = module(kernel, {"x": 16, "y": 16}, architecture)
    assert "s.barrier" in text and amd.assembled(text, architecture)
