"""Moves keep every bit, whatever the dtype and wherever the operands lie."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.codegen.llvm.loops import function
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import ALL, DType, bf16, bool_, f16, f32, f64, i8
from dovetail.ir.leaf import constant, input
from dovetail.kernels.choice import Offer, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Kernel, Loop, Store
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.ops import build
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.transpose import offer_transpose
from tests.kernels.native import bits, compiled, native_of, same_bits

SIZES = (1, 2, 3, 7, 15, 16, 17, 31, 33, 100)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype(dtype: DType) -> None:
    x, y = input("x", dtype[3, 5]), input("y", dtype[3, 2])
    number = constant(np.ones((), dtype.numpy))
    made = {
        "merged": ops.merge(ops.permute(x, order=(-1, -2)), axis=-1),
        "joined": ops.concat(x, y, x, axis=-1),
        "padded": ops.pad(x, number, axis=-1, before=2, after=3),
    }
    same_bits(compiled(made), {"x": bits(dtype, 3, 5), "y": bits(dtype, 3, 2)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [bool_, f16, f32, f64], ids=str)
def test_transposes_of_every_size(dtype: DType) -> None:
    m, n = symbol("m"), symbol("n")
    x = input("x", dtype["m", "n"])
    runner = compiled(ops.merge(ops.permute(x, order=(-1, -2)), axis=-1))
    assert (m, n) == x.shape
    for rows in SIZES:
        for columns in (*SIZES, 300):
            same_bits(runner, {"x": bits(dtype, rows, columns)})


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 7, 1, 9), (70, 2, 3, 65), (3, 129, 2, 1), (64, 1, 200, 2)])
@pytest.mark.parametrize("order", [(-1, -2, -3, -4), (-4, -2, -3, -1), (-4, -3, -1, -2), (-2, -4, -1, -3)])
def test_permutations(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    x = input("x", f32[shape])
    same_bits(compiled(ops.merge(ops.permute(x, order=order), axis=-1, count=4)), {"x": bits(f32, *shape)})


def flat(x: Value) -> Value:
    """All axes as one, which cannot be told by strides if they do not lie densely."""
    return ops.merge(x, axis=-1, count=x.rank)


@pytest.mark.slow
def test_views_of_all_kinds() -> None:
    x = input("x", f32[6, 7, 8])
    made = {
        "flipped": flat(ops.flip(x, axes=(-1, -3))),
        "sliced": flat(ops.slice_(x, axis=-2, start=1, stop=6)),
        "stepped": flat(ops.slice_(x, axis=-1, start=1, stop=8, step=3)),
        "expanded": flat(ops.expand(ops.unsqueeze(x, axes=(-1,)), axis=-1, size=5)),
        "repeated": build.repeat(x, 3, axis=1),
        "tiled": build.tile(x, (2, 3, 2)),
        "part": flat(ops.part(x, axis=-1, index=1, parts=4)),
    }
    same_bits(compiled(made), {"x": bits(f32, 6, 7, 8)})


@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_joins_of_strided_and_empty_pieces(axis: int) -> None:
    sizes = [5, 0, 3, 17]
    shapes = [tuple(n if a == axis else 4 for a in (-3, -2, -1)) for n in sizes]
    pieces = [input(f"x{i}", f32[shape]) for i, shape in enumerate(shapes)]
    feeds = {f"x{i}": bits(f32, *shape, seed=i) for i, shape in enumerate(shapes)}
    turned = ops.flip(pieces[3], axes=(axis,))
    same_bits(compiled(ops.concat(*pieces, turned, pieces[0], axis=axis)), feeds)


@pytest.mark.slow
def test_sizes_that_are_known_later() -> None:
    x, y = input("x", f32["b", "h", "s", 8]), input("y", f32["b", "h", "t", 8])
    made = {
        "joined": ops.concat(x, y, axis=-2),
        "turned": ops.merge(ops.permute(x, order=(-2, -3, -1)), axis=-1),
        "padded": ops.pad(x, 0.5, axis=-2, before=symbol("t"), after=1),
    }
    runner = compiled(made)
    for b, h, s, t in ((1, 1, 1, 1), (2, 3, 7, 0), (3, 2, 0, 5), (1, 4, 100, 33), (0, 2, 3, 4), (2, 2, 1000, 3)):
        same_bits(runner, {"x": bits(f32, b, h, s, 8), "y": bits(f32, b, h, t, 8, seed=1)})


@pytest.mark.slow
def test_many_pieces() -> None:
    xs = [input(f"x{i}", i8[3]) for i in range(40)]
    same_bits(compiled(build.stack(xs, axis=1)), {f"x{i}": bits(i8, 3, seed=i) for i in range(40)})


def _window(x: Value, row: int, column: int, size: int, step: int = 1) -> Value:
    """Rows and columns from a place on, at every second one where the step is 2."""
    end = (size - 1) * step + 1
    x = ops.slice_(x, axis=-2, start=row, stop=row + end, step=step)
    return ops.unsqueeze(ops.slice_(x, axis=-1, start=column, stop=column + end, step=step), axes=(-3,))


_TAPS = [(row, column) for row in range(3) for column in range(3)]


@pytest.mark.parametrize(
    ("places", "step", "loops"),
    [
        (_TAPS, 1, 1),
        (_TAPS, 2, 1),
        (_TAPS[::-1], 1, 1),
        ([(0, 0)] * 4, 1, 1),
        ([(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, 2)], 1, 6),
        (_TAPS[:7], 1, 7),
    ],
    ids=["taps", "strides", "backwards", "repeated", "irregular", "incomplete"],
)
def test_pieces_at_regular_distances_are_one_loop_nest(places: list[tuple[int, int]], step: int, loops: int) -> None:
    x = input("x", f32[2, 13, 14])
    made = ops.concat(*[_window(x, row, column, 5, step) for row, column in places], axis=-3)
    native = native_of(made)
    (job,) = [job for part in native.sections for job in part.jobs if isinstance(job, Job)]
    assert isinstance(job.kernel, Kernel)
    assert sum(isinstance(s, Store) for s in everything(job.kernel.body)) == loops
    given, end = bits(f32, 2, 13, 14), 4 * step + 1
    expected = np.stack([given[:, r : r + end : step, c : c + end : step] for r, c in places], 1)
    assert same_bits(native.bind({}), {"x": given})["y"].tobytes() == expected.tobytes()


def test_equal_joins_of_other_places_have_kernels_of_their_own() -> None:
    """Where pieces start is part of a folded kernel, so that steps with other places may not share it."""
    x = input("x", f32[2, 13, 14])
    made = {f"y{gap}": ops.concat(*[_window(x, gap * i, 0, 5) for i in range(3)], axis=-3) for gap in (1, 2, 4)}
    given = bits(f32, 2, 13, 14)
    found = compiled(made).run({"x": given})
    for gap in (1, 2, 4):
        expected = np.stack([given[:, gap * i : gap * i + 5, :5] for i in range(3)], 1)
        assert found[f"y{gap}"].tobytes() == expected.tobytes()


@pytest.mark.slow
def test_loops_of_several_parts_are_not_unrolled() -> None:
    xs = [input(f"x{i}", f32[4, 16, 8, 8]) for i in range(9)]
    windows = [ops.slice_(ops.slice_(x, axis=-1, start=1, stop=7), axis=-2, start=0, stop=6) for x in xs]
    native = native_of(ops.concat(*windows, axis=-3))
    (job,) = [job for part in native.sections for job in part.jobs if isinstance(job, Job)]
    assert isinstance(job.kernel, Kernel)
    text, _ = function(job.kernel)
    loops = [s for s in everything(job.kernel.body) if isinstance(s, Loop)]
    assert text.count("llvm.loop.unroll.disable") == len(loops) >= 9
    same_bits(native.bind({}), {f"x{i}": bits(f32, 4, 16, 8, 8, seed=i) for i in range(9)})


def test_padding_by_a_computed_number() -> None:
    x, number = input("x", bf16[5, 33]), input("n", bf16[()])
    runner = compiled(ops.pad(ops.permute(x, order=(-1, -2)), number, axis=-2, before=3, after=70))
    same_bits(runner, {"x": bits(bf16, 5, 33), "n": np.array(2.5, bf16.numpy)})


def test_one_thread_and_two_write_the_same() -> None:
    x = input("x", f32[300, 200])
    made = ops.concat(ops.permute(x, order=(-1, -2)), ops.permute(x, order=(-1, -2)), axis=-2)
    feeds = {"x": bits(f32, 300, 200)}
    one, two = (same_bits(compiled(made, threads=n), feeds)["y"] for n in (1, 2))
    assert one.tobytes() == two.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_squares_for_vectors_of_every_width(lanes: int) -> None:
    x = input("x", f32[2, 70, 3, 130])
    made = ops.merge(ops.permute(x, order=(-4, -1, -2, -3)), axis=-1, count=4)
    plan = make_plan(Graph.of(made), target=CPU)
    (step,) = plan.phase("run")
    device = CpuDevice(32 * lanes, 32)
    offer = offer_transpose(StepProblem(step, TensorLocations(plan.locate, (), target=loops_of(device)), device))
    assert isinstance(offer, Offer)
    job = offer.build()
    assert isinstance(job, Job)
    (function,) = BACKEND.code.functions([job])
    array = bits(f32, 2, 70, 3, 130)
    found = np.empty(array.size, np.float32)
    words = np.array([array.ctypes.data, found.ctypes.data, *job.sizes], np.int64)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    kind(function.address)(words.ctypes.data, 0, job.tiled.tiles, None)
    assert found.tobytes() == array.transpose(0, 3, 2, 1).tobytes()
