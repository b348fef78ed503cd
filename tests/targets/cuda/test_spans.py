"""Stream-K: blocks that share the rounds of all tiles, the kernel that finishes tiles, and where that is chosen."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.ir.dim import Size, symbol
from dovetail.ir.dtype import DType, f16, f32, f64, i32
from dovetail.kernels.gpu.gemm import fma
from dovetail.kernels.gpu.gemm.fma_tile_choice import SHAPES, FmaChoice, fma_tile_of
from dovetail.kernels.gpu.gemm.stream_k import Spans
from dovetail.kernels.request import LAUNCH, Request, Role
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import CudaGraph, kernels_of
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.judged import check, feeds_of, in_lockstep
from tests.targets.cuda.simulated import SimulatedDriver

SMALL = SHAPES[-1]
ADDED = replace(H200, sum_cycles=H200.timings.gemm.sum_launch)
"""The device where a second kernel adds up what several blocks have of a tile."""


@contextmanager
def _spans(groups: int, shape: int = -1) -> Generator[None]:
    """Split all products without tensor cores into this many spans."""

    def chosen(
        batch: Size, rows: Size, columns: Size, depth: Size, streams: int, dtype: DType, *_: object
    ) -> FmaChoice:
        sizes = [n for n in (batch, rows, columns, depth) if isinstance(n, int)]
        count, down, across, deep = sizes
        tile = SHAPES[shape].in_rounds(deep, 1)
        down, across = -(-down // tile.rows), -(-across // tile.columns)
        return FmaChoice(tile, spans=Spans(count * down, down, across, -(-deep // tile.depth), groups))

    with patch.object(fma, "fma_tile_of", chosen):
        yield


def _product(dtype: DType, rows: int, depth: int, columns: int) -> Value:
    return ops.matmul(x_of(dtype, rows, depth), x_of(dtype, depth, columns, name="w"))


def _epilogue() -> Value:
    x, w, b = x_of(f32, 35, 140), x_of(f32, 140, 72, name="w"), x_of(f32, 72, name="b")
    return library.linear(x, w, b, act="gelu")


def _swiglu() -> Value:
    return library.swiglu(x_of(f32, 33, 100), x_of(f32, 100, 72, name="gate"), x_of(f32, 100, 72, name="up"))


CASES = {
    "odd": (_product(f32, 37, 300, 67), 5),
    "doubles": (_product(f64, 37, 140, 66), 3),
    "epilogue": (_epilogue(), 4),
    "two_streams": (_swiglu(), 3),
    "batch": (ops.matmul(x_of(f32, 3, 20, 96), x_of(f32, 3, 96, 36, name="w")), 4),
    "more_groups_than_bands": (_product(f32, 20, 500, 36), 7),
    "convolution": (
        library.conv_bias_act(x_of(f32, 2, 24, 9, 7), x_of(f32, 20, 24, 3, 3, name="w"), x_of(f32, 20, 1, 1, name="b")),
        5,
    ),
    "along_k": (ops.matmul(x_of(f32, 40, 148), ops.permute(x_of(f32, 72, 148, name="w"), order=(-1, -2))), 3),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_products_in_spans_are_near_float64(name: str) -> None:
    value, groups = CASES[name]
    case = Case({"y": value})
    feeds = feeds_of(Graph.of(case.outputs), {})
    with _spans(groups):
        made = [one for _, one in kernels_of(make_plan(Graph.of(case.outputs), target="cuda"))]
        assert [one.kernel.name.partition("_")[2] for one in made] == ["spans", "sum"]
        check(case, in_lockstep(case, feeds), feeds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_every_tile_goes_in_spans(shape: int) -> None:
    case = Case({"y": _product(f32, 100, 130, 140)})
    feeds = feeds_of(Graph.of(case.outputs), {})
    with _spans(5, shape):
        check(case, in_lockstep(case, feeds), feeds)


@pytest.mark.exhaustive
@pytest.mark.parametrize("groups", [2, 3, 4, 5, 7, 11])
def test_no_product_is_left_out_or_added_twice(groups: int) -> None:
    """Three bands of five K steps: spans end inside tiles and between them, and hold one tile, many, or less than
    one."""
    rng = np.random.default_rng(groups)
    x, w = (rng.integers(-9, 9, shape).astype(np.int32) for shape in ((70, 160), (160, 100)))
    with _spans(groups):
        found = in_lockstep(Case({"y": _product(i32, 70, 160, 100)}), {"x": x, "w": w})["y"]
    assert np.array_equal(found, x @ w)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [1, 40])
def test_equal_columns_have_equal_bits(rows: int) -> None:
    """Logits that are equal stay so: networks with large activations would amplify what differs in their last bits."""
    rng = np.random.default_rng(0)
    x, column = rng.normal(size=(rows, 500)).astype(np.float32), rng.normal(size=(500, 1)).astype(np.float32)
    with _spans(3):
        y = in_lockstep(Case({"y": _product(f32, rows, 500, 100)}), {"x": x, "w": np.repeat(column, 100, 1)})["y"]
    assert np.array_equal(y, np.repeat(y[:, :1], 100, 1))


def test_spans_are_about_equal() -> None:
    spans = Spans(bands=12, down=12, across=1, rounds=43, groups=132)
    starts = [group * spans.every // spans.groups for group in range(spans.groups + 1)]
    lengths = [end - start for start, end in pairwise(starts)]
    assert sum(lengths) == 12 * 43 and max(lengths) == spans.longest and min(lengths) >= spans.longest - 1
    inside = [start for start in starts[1:-1] if start % spans.rounds]
    assert len(inside) + spans.bands <= spans.parts, "there is a place for each part of a tile"


@pytest.mark.parametrize(
    ("sizes", "is_shared"),
    [
        ((777, 2000, 1500), True),
        ((128, 3072, 768), True),
        ((300, 8192, 700), True),
        ((64, 4096, 4096), True),
        ((4096, 4096, 4096), False),
        ((1024, 1024, 1024), False),
        ((4096, 768, 768), False),
        ((16, 64, 64), False),
    ],
)
def test_ragged_products_go_in_spans(sizes: tuple[int, int, int], is_shared: bool) -> None:
    """What each takes was measured on an H200."""
    rows, depth, columns = sizes
    spans = fma_tile_of(1, rows, columns, depth, 1, f32, ADDED).spans
    assert (spans is not None) is is_shared
    if spans is not None:
        assert spans.blocks % H200.multiprocessors in (0, *range(120, H200.multiprocessors)), "few have a block less"


@pytest.mark.parametrize(
    "wanted",
    [LAUNCH, Request(sum_cycles=H200.timings.gemm.joined_sum), Request(Role.PART, sum_cycles=ADDED.sum_cycles)],
    ids=["whole", "added_by_the_next_kernel", "part"],
)
def test_spans_need_a_second_kernel(wanted: Request) -> None:
    assert fma_tile_of(1, 777, 1500, 2000, 1, f32, H200, wanted).spans is None


def test_spans_need_known_sizes() -> None:
    assert fma_tile_of(1, symbol("n"), 2048, 4096, 1, f32, ADDED).spans is None


@pytest.mark.exhaustive
def test_a_program_has_spans_where_its_tiles_are_ragged() -> None:
    """They are chosen where all kernels of a program are known, and its results are those of the reference."""
    even = ops.matmul(x_of(f16, 32, 64, name="u"), x_of(f16, 64, 32, name="v"))
    graph = Graph.of({"y": _product(f32, 40, 1024, 40), "z": even})
    device = SimulatedDriver()
    device.description = replace(H200, cluster=8, multiprocessors=8)
    plan = make_plan(graph, target=CLAIMS)
    names = [made.kernel.name for _, made in kernels_of(plan, device=device.description)]
    assert names[:2] == ["contract_spans", "contract_sum"] and "contract_spans" not in names[2:]
    rng = np.random.default_rng(3)
    feeds = {
        str(v.attrs["name"]): rng.normal(size=[int(str(n)) for n in v.shape]).astype(v.dtype.numpy)
        for v in graph.inputs
    }
    found = CudaGraph(plan, lambda: device).bind({}).run(feeds)["y"]
    exact = feeds["x"].astype(np.float64) @ feeds["w"]
    assert np.linalg.norm(found - exact) <= 1e-6 * np.linalg.norm(exact)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(777, 2000, 1500), (64, 4096, 4096)])
def test_spans_spill_nothing(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    plan = make_plan(Graph.of({"y": _product(f32, *sizes)}), target="cuda")
    made = [one for _, one in kernels_of(plan, device=ADDED)]
    assert [one.kernel.name for one in made] == ["contract_spans", "contract_sum"]
    for one in made:
        assert spilled_bytes(assembled(one, "sm_90a", tmp_path)) == 0
