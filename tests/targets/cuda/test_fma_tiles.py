"""Products without tensor cores: every tile with every way of bringing factors, and which tile suits a size."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.ir.dtype import DType, f32, f64, i8, i32
from dovetail.kernels.gpu.gemm import fma_tile_choice
from dovetail.kernels.gpu.gemm.fma import FmaTile
from dovetail.kernels.gpu.gemm.fma_tile_choice import SHAPES, FmaShape, fma_tile_of
from dovetail.kernels.gpu.gemm.fragments import Factor
from dovetail.kernels.loops.analysis import everything, shared_bytes
from dovetail.kernels.loops.ir import Call, CopyAsync, Expr, Extent, Tensor, ThreadIndex
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.code.ptx_compiler import to_ptx
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of
from dovetail.targets.gpu.kernel import GpuKernel
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import check, feeds_of, in_lockstep

TURNED = (-1, -2)
SPLIT = replace(H200, sum_cycles=50.0)
"""The device where blocks share the depth of a product."""


def _product(dtype: DType, rows: int | str, depth: int, columns: int, *, right: str = "row", left: str = "k") -> Value:
    """A product whose factors are dense along an axis."""
    x = x_of(dtype, rows, depth) if left == "k" else ops.permute(x_of(dtype, depth, rows), order=TURNED)
    w = x_of(dtype, depth, columns, name="w")
    w = w if right == "row" else ops.permute(x_of(dtype, columns, depth, name="w"), order=TURNED)
    return ops.matmul(x, w)


def _swiglu() -> Value:
    return library.swiglu(x_of(f32, 33, 40), x_of(f32, 40, 72, name="gate"), x_of(f32, 40, 72, name="up"))


def _normalised() -> Value:
    """A product and what is done with it."""
    x, w, b = x_of(f32, 35, 40), x_of(f32, 40, 72, name="w"), x_of(f32, 72, name="b")
    return library.linear(x, w, b, act="gelu")


CASES = {
    "whole": Case({"y": _product(f32, 64, 64, 128)}),
    "odd": Case({"y": _product(f32, 37, 41, 67)}),
    "right_along_k": Case({"y": _product(f32, 40, 48, 72, right="k")}),
    "left_along_rows": Case({"y": _product(f32, 40, 48, 72, left="row")}),
    "any_rows": Case({"y": _product(f32, "n", 36, 68)}, ({"n": 1}, {"n": 65})),
    "two_streams": Case({"y": _swiglu()}),
    "epilogue": Case({"y": _normalised()}),
    "batch": Case({"y": ops.matmul(x_of(f32, 3, 20, 24), x_of(f32, 3, 24, 36, name="w"))}),
    "doubles": Case({"y": _product(f64, 37, 40, 66)}),
    "integers": Case({"y": _product(i32, 37, 41, 67)}),
    "nothing_to_add": Case({"y": _product(f32, 5, 0, 9)}),
}


def _kernel(value: Value) -> GpuKernel:
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": value}), target="cuda"))
    return made


WITH_EVERY_TILE = ("odd", "two_streams")
"""Cases that all tiles have; others have the second one."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tile"),
    [(name, tile) for name in CASES for tile in (range(len(SHAPES)) if name in WITH_EVERY_TILE else [1])],
)
def test_products_are_near_float64(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES[tile]
    monkeypatch.setattr(fma_tile_choice, "SHAPES", (shape,))
    case = CASES[name]
    for sizes in case.sizes:
        feeds = feeds_of(Graph.of(case.outputs), sizes)
        check(case, in_lockstep(case, feeds), feeds)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("columns", "dtype"), [(64, f32), (67, f32), (64, f64)])
def test_sums_of_parts_are_near_float64(columns: int, dtype: DType) -> None:
    case = Case({"y": _product(dtype, 21, 700, columns)})
    made = kernels_of(make_plan(Graph.of(case.outputs), target="cuda"), device=SPLIT)
    assert [kernel.kernel.name for _, kernel in made] == ["contract_parts", "contract_sum"]
    feeds = feeds_of(Graph.of(case.outputs), {})
    check(case, in_lockstep(case, feeds, device=SPLIT), feeds)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "each"), [((1024, 1024, 1024), 2), ((128, 768, 768), 1), ((4096, 768, 3072), 6)])
def test_multiprocessors_have_equal_shares_of_blocks_that_start_early(sizes: tuple[int, int, int], each: int) -> None:
    """Blocks go to where the kernel before leaves room, as many as fit: some multiprocessors would have none."""
    plan = make_plan(Graph.of({"y": _product(f32, *sizes)}), target="cuda")
    for device in (H200, replace(H200, dependent_intensity=inf)):
        ((_, made),) = kernels_of(plan, device=device)
        launch = made.kernel.launch
        assert launch is not None and isinstance(launch.grid, int) and -(-launch.grid // H200.multiprocessors) == each
        fitting = (H200.shared_bytes + 1024) // (max(launch.shared_bytes, shared_bytes(made.kernel.body)) + 1024)
        if device.dependent_intensity and each < launch.resident:
            assert fitting == each
        else:
            assert fitting >= launch.resident and launch.shared_bytes in (0, shared_bytes(made.kernel.body))


@pytest.mark.slow
def test_neighbouring_rows_are_copied_at_once_and_others_one_by_one() -> None:
    def copies(value: Value) -> list[int]:
        return [s.nbytes for s in everything(_kernel(value).kernel.body) if isinstance(s, CopyAsync)]

    assert {*copies(_product(f32, 64, 64, 64))} == {4, 16}  # the left factor is dense along k
    assert {*copies(_product(f32, 64, 64, 64, left="row"))} == {16}
    assert {*copies(_product(f32, 64, 64, 64, right="k"))} == {4}
    assert {*copies(_product(f32, 64, 64, 67))} == {4}  # rows of 67 elements are not aligned
    assert {*copies(_product(f64, 64, 64, 64))} == {8, 16}
    assert {*copies(_product(i8, 64, 64, 64))} == {16}  # threads load the left factor: its elements are no words


def _at(expr: Expr, lane: int) -> int:
    """An index of a lane of the first warp."""
    match expr:
        case Extent(size):
            assert isinstance(size, int)
            return size
        case ThreadIndex(kind):
            return {"lane": lane, "warp": 0}[kind]
        case Call(name, operands):
            x, y = (_at(operand, lane) for operand in operands)
            return {"add": x + y, "mul": x * y, "div": x // max(1, y), "rem": x % max(1, y)}[name]
        case _:
            raise AssertionError(f"an index of a thread: {expr}")


def test_pairs_of_lanes_read_one_address() -> None:
    """A load of 16 bytes by a warp takes two turns of shared memory, not four, where all lanes whose numbers differ in
    one of their two lowest bits agree."""
    factor = Factor(Tensor("x", f32, (64, 4)), (), 64, 16)
    sides = FmaTile(SHAPES[0], f32, factor, [factor], ["", ""], 16).sides
    assert all(_at(sides[0].lane, lane) == _at(sides[0].lane, lane ^ 1) for lane in range(32))
    assert all(_at(sides[1].lane, lane) == _at(sides[1].lane, lane ^ 2) for lane in range(32))
    assert len({tuple(_at(side.lane, lane) for side in sides) for lane in range(32)}) == 32, "each has sums of its own"


@pytest.mark.slow
def test_sums_are_not_stored_as_vectors() -> None:
    """A vector of sums would be neighbouring registers, and most products would then read two of one bank."""
    plain, biased = (
        _product(f32, 512, 64, 512),
        library.linear(x_of(f32, 512, 64), x_of(f32, 64, 512, name="w"), x_of(f32, 512, name="b")),
    )
    plain_ptx, biased_ptx = (to_ptx(_kernel(value).text, "sm_90a") for value in (plain, biased))
    assert not re.search(r"st\.global\.v[24]", plain_ptx)
    assert re.search(r"st\.global\.v4", biased_ptx), "results that are no sums are stored together"


@pytest.mark.slow
def test_a_thread_reads_four_neighbours_at_once() -> None:
    ptx = to_ptx(_kernel(_product(f32, 512, 64, 512)).text, "sm_90a")
    assert "ld.shared.v4" in ptx and not re.search(r"ld\.shared\.[bf]32", ptx)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "shape", "value"),
    [
        ("sm_80", SHAPES[0], _product(f32, 512, 512, 512)),
        ("sm_90a", SHAPES[0], _product(f32, 509, 511, 503, right="k")),
        ("sm_90a", SHAPES[1], _product(f32, 512, 512, 512)),
        ("sm_90a", SHAPES[2], _swiglu()),
        ("sm_100", SHAPES[0], _swiglu()),
        ("sm_90a", SHAPES[3], _product(f64, 9, 19, 11)),
    ],
)
def test_tiles_spill_nothing(
    architecture: str, shape: FmaShape, value: Value, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fma_tile_choice, "SHAPES", (shape,))
    assert spilled_bytes(assembled(_kernel(value), architecture, tmp_path)) == 0


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((4096, 4096, 4096), (128, 128)),
        ((4096, 768, 3072), (128, 128)),
        ((1024, 1024, 1024), (64, 64)),
        ((512, 1024, 4096), (64, 64)),
        ((4096, 768, 768), (64, 64)),
        ((128, 768, 3072), (32, 64)),
        ((16, 384, 1536), (32, 64)),
    ],
)
def test_the_fastest_tile_is_chosen(sizes: tuple[int, int, int], tile: tuple[int, int]) -> None:
    """What each takes was measured on an H200; tiles within 3 % of the fastest count as such."""
    rows, depth, columns = sizes
    choice = fma_tile_of(1, rows, columns, depth, 1, f32, H200)
    assert (choice.shape.rows, choice.shape.columns) == tile and choice.is_whole and choice.cycles > 0


def test_blocks_share_the_depth_where_tiles_are_few() -> None:
    for dtype in (f32, f64, i32):
        choice = fma_tile_of(1, 128, 768, 3072, 1, dtype, SPLIT)
        assert choice.parts > 1 and choice.spans is None, "the step after it adds up parts, but no spans"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [i8, i32])
def test_integers_are_exact(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-2, 2, shape).astype(dtype.numpy) for shape in ((40, 24), (24, 68)))
    found = in_lockstep(Case({"y": _product(dtype, 40, 24, 68)}), {"x": x, "w": w})["y"]
    assert np.array_equal(found, x @ w)
