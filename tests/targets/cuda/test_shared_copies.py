"""Copies within shared memory that need not be made, and those that must be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.ir.dtype import bf16
from dovetail.kernels.loops.ir import (
    ZERO,
    AwaitCopies,
    AwaitPhase,
    Barrier,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
)
from dovetail.kernels.loops.launch_fusion.shared_copies import without_shared_copies

FILLED = Tensor("filled", bf16, (512, 2), space="shared")
ROWS = Tensor("rows", bf16, (2,), space="shared")
READ = Store(Tensor("y", bf16, (2,)), (Name("i"),), Load(ROWS, (Name("i"),)))
SIZES, ROOMS = {"rows": 256}, {"filled": 256}
INDEX = Name("e")
ARRIVE = AwaitPhase("arrived", ZERO, ZERO)


def _copy(source: Tensor = FILLED, index: Expr = INDEX) -> Loop:
    store = Store(ROWS, (INDEX,), Load(source, (ZERO, index)))
    return Loop("turn", Extent(1), (Set("e", ThreadIndex("thread")), store), kind="unrolled")


def test_a_copy_of_what_is_there_is_not_made_and_no_thread_waits_for_it() -> None:
    body: tuple[Statement, ...] = (Loop("tile", Extent(1), (_copy(), ARRIVE, Barrier(), READ)),)
    found, instead = without_shared_copies(body, SIZES, ROOMS)
    assert instead == {"rows": "filled"}
    assert found == (Loop("tile", Extent(1), (ARRIVE, READ)),)


def test_a_barrier_that_copies_of_others_need_stays() -> None:
    """Threads await their own asynchronous copies alone."""
    body = (_copy(), AwaitCopies(0), Barrier(), READ, Barrier())
    assert without_shared_copies(body, SIZES, ROOMS) == (
        (AwaitCopies(0), Barrier(), READ, Barrier()),
        {"rows": "filled"},
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((_copy(index=Number(3, bf16)), READ), id="another_place"),
        pytest.param((_copy(replace(FILLED, strides=(512, 4))), READ), id="another_stride"),
        pytest.param((_copy(replace(FILLED, offset=16)), READ), id="another_start"),
        pytest.param((_copy(replace(FILLED, space="global")), READ), id="not_in_shared_memory"),
        pytest.param((_copy(replace(FILLED, pointer="other")), READ), id="filled_by_others"),
        pytest.param((_copy(), Store(ROWS, (ZERO,), Number(0.0, bf16)), READ), id="changed_later"),
        pytest.param((_copy(), Store(FILLED, (ZERO, ZERO), Number(0.0, bf16)), READ), id="source_changed_later"),
        pytest.param((_copy(), replace(_copy(), variable="again"), READ), id="made_twice"),
    ],
)
def test_a_copy_that_differs_is_made(body: tuple[Statement, ...]) -> None:
    assert without_shared_copies(body, SIZES, ROOMS) == (body, {})


def test_a_copy_to_more_room_than_there_was_is_made() -> None:
    """What follows the elements that were filled may be another tensor."""
    body = (_copy(), READ)
    assert without_shared_copies(body, {"rows": 264}, ROOMS) == (body, {})
    assert without_shared_copies(body, {}, ROOMS) == (body, {})
