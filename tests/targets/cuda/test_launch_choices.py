"""Reports tell which steps have no launch of their own, and of others the condition that refused it and its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, bf16, f16, f32, i64
from dovetail.ir.leaf import input, param
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm import tile as tiles
from dovetail.kernels.gpu.gemm.tile import BlockTile
from dovetail.plan.plan import make_plan
from dovetail.report.text import as_text
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.runs.run import choices_of
from dovetail.targets.target import Considered
from tests.targets.cuda import test_head_rows as heads
from tests.targets.cuda import test_near_launches as near
from tests.targets.cuda import test_normed_products as few
from tests.targets.cuda import test_norms_between as between
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.targets.cuda.timed import with_timings

Rows = Mapping[str, Considered]


def _told(graph: Graph, device: GpuDevice, op: str, *, strict: bool = False) -> list[Rows]:
    """What is told of each step of an op, by way."""
    plan = make_plan(graph, target=CLAIMS, options={"strict": strict})
    rows = zip(plan.phase("run"), choices_of(plan, device), strict=True)
    return [{row.name: row for row in some} for step, some in rows if step.value.op.name == op]


def _taken(rows: Rows) -> set[str]:
    return {name for name, row in rows.items() if row.taken}


def _is_told(row: Considered) -> bool:
    """Whether a way that is not taken says all that others say."""
    words = row.condition.replace("_", " "), row.found, row.expected
    return not row.taken and all([word and word in row.reason for word in words]) and bool(row.hint)


@pytest.fixture
def tile() -> object:
    with patch.object(tiles, "PIPELINED_TILES", (between.TILE,)):
        yield


def _between(dtype: DType = bf16) -> Value:
    return between.between(64, 64, 136, 72, dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("tile")
def test_norms_between_products_are_told() -> None:
    ((rows),) = _told(Graph.of({"y": _between()}), between.DEVICE, "rms_norm")
    assert _taken(rows) == {"between_products"} and "leaves squares" in rows["launch"].reason


def _gathered() -> dict[str, Value]:
    """Rows of a table, which no product makes."""
    x = ops.gather(input("table", bf16[100, 136]), input("ids", i64[64]), axis=-2)
    return {"y": between.normed(x) @ param("second", bf16[136, 72])}


def _first() -> dict[str, Value]:
    return {"y": between.normed(input("x", bf16[64, 136])) @ param("second", bf16[136, 72])}


def _read_twice() -> dict[str, Value]:
    normed = between.normed(between.rows_of(64, 64, 136))
    return {"y": normed @ param("second", bf16[136, 72]), "z": ops.exp(normed)}


def _given() -> dict[str, Value]:
    normed = library.rms_norm(between.rows_of(64, 64, 136), input("gain", bf16[136]), eps=1e-6)
    return {"y": normed @ param("second", bf16[136, 72])}


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize(
    ("outputs", "condition"),
    [
        (_gathered(), "a_product_makes_the_rows"),
        (_read_twice(), "one_product_reads_it"),
        (_given(), "gain_is_constant"),
        ({"y": _between(f16)}, "rows_have_the_range"),
        ({"y": _between(f32)}, "rows_are_bf16"),
        (_first(), "a_product_makes_the_rows"),
    ],
    ids=["no_product", "two_readers", "given", "f16", "f32", "first"],
)
def test_what_refuses_a_norm_between_products_is_told(outputs: dict[str, Value], condition: str) -> None:
    ((rows),) = _told(Graph.of(outputs), between.DEVICE, "rms_norm")
    assert _is_told(rows["between_products"]) and rows["between_products"].condition == condition
    assert _taken(rows) <= {"launch", "prologue"}


def test_products_without_tensor_maps_are_told() -> None:
    with patch.object(tiles, "PIPELINED_TILES", ()):
        ((rows),) = _told(Graph.of({"y": _between()}), between.DEVICE, "rms_norm")
    assert _is_told(rows["between_products"])
    assert rows["between_products"].condition == "products_copy_by_tensor_maps"


@pytest.mark.usefixtures("tile")
def test_strict_arithmetic_scales_no_sums() -> None:
    ((rows),) = _told(Graph.of({"y": _between()}), between.DEVICE, "rms_norm", strict=True)
    assert _is_told(rows["between_products"]) and rows["between_products"].condition == "sums_may_be_scaled"


@pytest.mark.slow
def test_heads_that_their_product_norms_rotates_and_appends_are_told() -> None:
    with patch.object(tiles, "PIPELINED_TILES", (heads.HEAD,)):
        graph = heads.graph_of_heads(heads.head_outputs())
        for op, count in (("rope", 2), ("scatter_elements", 2)):
            found = _told(graph, heads.DEVICE, op)
            assert len(found) == count and all(_taken(rows) == {"with_heads_of_product"} for rows in found)
        norms = [_taken(rows) for rows in _told(graph, heads.DEVICE, "rms_norm")]
        assert norms == [{"between_products"}, {"with_heads_of_product"}, {"with_heads_of_product"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tile", "condition"),
    [
        (BlockTile(64, 64, 4, 1, 2, by_warpgroup=True), "a_tile_is_a_head"),
        (heads.HEAD, "steps_alone_read_the_product"),
    ],
    ids=["narrow", "another_reader"],
)
def test_what_refuses_heads_is_told(tile: BlockTile, condition: str) -> None:
    outputs = heads.head_outputs()
    if tile is heads.HEAD:
        rotated = outputs["q"]
        outputs["more"] = ops.exp(rotated.operands[0])
    with patch.object(tiles, "PIPELINED_TILES", (tile,)):
        found = _told(heads.graph_of_heads(outputs), heads.DEVICE, "scatter_elements")
    assert found and all(_is_told(rows["with_heads_of_product"]) for rows in found)
    assert {rows["with_heads_of_product"].condition for rows in found} == {condition}


def _attended(graph: Graph, device: GpuDevice) -> Considered:
    driver = SimulatedDriver()
    driver.description = device
    plan = dovetail.compile(graph, target=target_of(driver)).plan
    rows = zip(plan.phase("run"), choices_of(plan, device), strict=True)
    return next(row for step, some in rows if step.value.op.name == "attention" for row in some)


_SLOW = with_timings(near.EARLY, "launches", dependent_launch=-2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "device", "condition"),
    [
        (1, near.EARLY, ""),
        (2, near.EARLY, "heads_are_columns_of_rows"),
        (1, replace(near.EARLY, dependent_intensity=0.0), "launches_depend_on_each_other"),
        (1, _SLOW, "fewer_launches_are_faster"),
    ],
    ids=["taken", "two_sequences", "in_order", "slower"],
)
def test_attentions_within_the_product_after_them_are_told(batch: int, device: GpuDevice, condition: str) -> None:
    row = _attended(near.layers_of_few_rows(12, batch=batch, count=1), device)
    assert row.name == "within_product" and row.condition == condition
    assert row.taken if not condition else _is_told(row)


def _few(dtype: DType, device: GpuDevice = few.BULK) -> Rows:
    w = param("w", dtype[512, 320])
    graph = Graph.of({"y": few.norm_of(input("x", dtype[4, 512]), dtype) @ w})
    ((found),) = _told(graph, replace(device, multiprocessors=20), "rms_norm")
    return found


def test_norms_within_products_of_few_rows_are_told() -> None:
    assert _taken(_few(bf16)) == {"scaled_sums"}
    half = _few(f16)
    assert half["scaled_sums"].condition == "rows_have_the_range" and _is_told(half["scaled_sums"])
    assert _taken(half) == {"prologue"}
    many = _few(bf16, device=replace(few.BULK, bulk_copies=False))
    assert many["scaled_sums"].condition == "tile_takes_a_norm" and _is_told(many["scaled_sums"])


@pytest.mark.slow
@pytest.mark.usefixtures("tile")
def test_the_text_names_what_is_taken_and_what_refuses() -> None:
    driver = SimulatedDriver()
    driver.description = between.DEVICE
    text = [" ".join(as_text(_report(x, driver), everything=True).split()) for x in (_between(), _between(f16))]
    assert "LAUNCHES 1 × rms_norm between products" in text[0]
    assert "between products not: rows have the range (found rows in f16, a gain in f16" in text[1]
    assert "hint: bf16 in place of f16" in text[1]


def _report(y: Value, driver: SimulatedDriver) -> dovetail.Report:
    return dovetail.compile(Graph.of({"y": y}), target=target_of(driver)).report
