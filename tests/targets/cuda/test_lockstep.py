"""The machine in NumPy computes what primitives mean and refuses what a GPU would do wrong, however it gets there:
places that follow from the thread take another way than those that a kernel loads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.ir.dtype import bool_, f32, i32, i64
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    mul,
)
from tests.targets.cuda.arithmetic import BITS, COMPARISONS, INTEGERS, apply
from tests.targets.cuda.fake_graph import SizedMachine
from tests.targets.cuda.lockstep import Machine
from tests.targets.cuda.places import Affine, Known, Value

THREADS = 64
THREAD = ThreadIndex("thread")
INDICES = Tensor("indices", i64, (8,))
LOADED = Load(INDICES, (THREAD,))
WAYS: dict[str, Expr] = {"follows": THREAD, "loaded": LOADED}
"""The number of a thread: known before blocks run, and loaded."""


def _run(*body: Statement, elements: int = THREADS) -> Array:
    """What a kernel of one block leaves in `y`, which holds -1 before."""
    y = np.full(elements, -1, np.int32)
    buffers = {"y": (y.view(np.uint8), 0), "indices": (np.arange(THREADS).view(np.uint8), 0)}
    Machine(Kernel("one", ("indices", "y"), ("y",), "tile", body, launch=Launch(1, THREADS)), buffers, {}).run()
    return y


def _store(at: Expr, value: Expr) -> Store:
    return Store(Tensor("y", i32, (4,)), (at,), Call("cast", (value,), i32))


def _below(count: int, *body: Statement) -> When:
    return When(Call("less", (THREAD, Extent(count)), bool_), body)


@pytest.mark.parametrize("way", WAYS)
def test_threads_write_their_own_places(way: str) -> None:
    assert _run(_store(WAYS[way], mul(THREAD, Extent(3)))).tolist() == [*range(0, 192, 3)]
    some = _run(_below(40, _store(WAYS[way], THREAD)))
    assert some.tolist() == [*range(40), *[-1] * 24]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("by", [1, -1])
def test_a_place_outside_is_an_error(way: str, by: int) -> None:
    for place in (add(WAYS[way], Extent(by)), add(Extent(63 if by > 0 else 0), Extent(by))):
        with pytest.raises(AssertionError, match=r"y is addressed at (-4|256) of 256"):
            _run(_store(place, Number(5, i64)))
        with pytest.raises(AssertionError, match=r"y is addressed at (-4|256) of 256"):
            _run(Set("x", Load(Tensor("y", i32, (4,)), (place,))))


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_do_not_take_part_have_no_place(way: str) -> None:
    y = Tensor("y", i32, (4,))
    found = _run(_below(40, Set("x", Load(y, (WAYS[way],))), Store(y, (WAYS[way],), Name("x", i32))), elements=40)
    assert found.tolist() == [-1] * 40
    with pytest.raises(AssertionError, match="y is addressed at 160 of 160"):
        _run(_below(41, _store(WAYS[way], THREAD)), elements=40)


@pytest.mark.parametrize("way", WAYS)
def test_two_threads_that_store_different_values_in_a_place_are_an_error(way: str) -> None:
    half = Call("div", (WAYS[way], Extent(2)), i64)
    assert _run(_store(half, half)).tolist() == [*range(32), *[-1] * 32]
    for body in (_store(half, THREAD), _below(2, _store(half, THREAD)), _store(Extent(0), THREAD)):
        with pytest.raises(AssertionError, match="two threads store different values in y"):
            _run(body)


def test_loops_go_on_for_the_threads_that_have_iterations_left() -> None:
    count = Set("n", Number(0, i64))
    grow = Set("n", add(Name("n"), Extent(1)))
    every = _run(count, Loop("i", Extent(100), (grow,), kind="thread"), _store(THREAD, Name("n")))
    assert every.tolist() == [2] * 36 + [1] * 28
    own = _run(count, Loop("i", THREAD, (grow,)), _store(THREAD, Name("n")))
    assert own.tolist() == [*range(64)]


def _kinds() -> list[Value]:
    """Integers of four threads: shared, those that follow from the thread, and arrays."""
    arrays = [np.array(x) for x in ([0, 1, 2, 3], [-8, -3, 0, 5], [6, 7, 8, 9], [4, 4, 5, 5])]
    return [0, 1, 4, 7, -3, *arrays, *[Affine(Known(x.copy()), by) for x in arrays for by in (0, 4, 5, -7)]]


def _each(x: Value) -> Array:
    return np.full(4, x) if isinstance(x, int) else x.array if isinstance(x, Affine) else x


@pytest.mark.parametrize("op", [*INTEGERS, *COMPARISONS, *BITS])
def test_integers_are_what_primitives_mean(op: str) -> None:
    do: Any = (INTEGERS | COMPARISONS | BITS)[op]
    dtype = bool_ if op in COMPARISONS else i64
    with np.errstate(all="ignore"):
        for x in _kinds():
            for y in _kinds():
                found = do(x, y)
                assert _each(found).tolist() == apply(op, (_each(x), _each(y)), dtype).tolist(), (
                    op,
                    _each(x),
                    _each(y),
                )
                assert not isinstance(found, Affine) or found.known.low < found.known.high, "a shared one is a number"


def test_an_index_that_overflows_is_an_error() -> None:
    large = Extent(1 << 62)
    with pytest.raises(AssertionError, match="an index is an i64"):
        _run(Set("n", Extent(2)), Set("x", Call("mul", (Name("n"), large), i64)))


def test_a_name_keeps_the_values_of_other_threads() -> None:
    body = (Set("x", Number(7, i64)), _below(10, Set("x", THREAD)), _store(THREAD, Name("x")))
    assert _run(*body).tolist() == [*range(10), *[7] * 54]


def test_a_number_that_is_not_one_is_computed_as_arrays() -> None:
    y = Tensor("y", f32, (4,))
    value = Call("mul", (Call("cast", (THREAD,), f32), Number(-0.0, f32)), f32)
    assert np.signbit(_run(Store(y, (THREAD,), value)).view(np.float32)).all()


@pytest.mark.parametrize("blocks", [5, 8, 12])
def test_a_kernel_of_equal_text_has_the_blocks_of_its_launch_and_its_own_numbers(blocks: int) -> None:
    """8 is the grid of the kernel that was compiled, and how far apart the elements are that blocks store."""
    y = np.full(12 * 8, -1, np.int32)
    store = _store(mul(Name("number"), Extent(8)), ThreadIndex("block"))
    body = (Loop("number", Extent(8), (When(Call("equal", (THREAD, Extent(0)), bool_), (store,)),), kind="block"),)
    kernel = Kernel("one", ("y",), ("y",), "tile", body, launch=Launch(8, THREADS))
    SizedMachine(kernel, {"y": (y.view(np.uint8), 0)}, blocks, {}).run()
    np.testing.assert_array_equal(y[::8], [*range(blocks), *[-1] * (12 - blocks)])
