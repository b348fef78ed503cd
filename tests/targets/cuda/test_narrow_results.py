"""Results of 16 bits that warps put through shared memory: which products do, and that no two lanes want one bank."""

from __future__ import annotations

import pytest

from dovetail import Graph, library, ops
from dovetail.ir.dtype import DType, bf16, f32
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.kernels.gpu.gemm.narrow_results import WIDTHS
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Store
from dovetail.plan.plan import make_plan
from dovetail.targets.cuda.runs.run import kernels_of

BANKS, BANK_BYTES, LANES = 32, 4, 32
ITEM = bf16.itemsize


def _given(name: str, *shape: int) -> Value:
    return input(name, bf16[shape])


X, W = _given("x", 256, 128), _given("w", 128, 192)
NARROW = {
    "plain": ops.matmul(X, W),
    "bias": library.linear(X, W, _given("b", 192)),
    "gelu": library.linear(X, W, _given("b", 192), act="gelu"),
    "two_streams": library.swiglu(X, W, _given("u", 128, 192)),
}


def _staged(y: Value) -> set[DType]:
    """The dtypes of what goes through shared memory."""
    ((_, made),) = kernels_of(make_plan(Graph.of({"y": y}), target="cuda"))
    assert made.kernel.maps, "it has a producer"
    stores = [s for s in everything(made.kernel.body) if isinstance(s, Store)]
    return {s.tensor.dtype for s in stores if s.tensor.pointer == "staged"}


@pytest.mark.parametrize("name", NARROW)
def test_operands_that_all_rows_share_are_for_narrow_results(name: str) -> None:
    assert _staged(NARROW[name]) == {bf16}


def test_sums_go_through_shared_memory_where_each_row_has_operands() -> None:
    assert _staged(library.matmul_add(X, W, _given("z", 256, 192))) == {f32}


def _banks(address: int, nbytes: int) -> list[int]:
    return [(address // BANK_BYTES + i) % BANKS for i in range(nbytes // BANK_BYTES)]


@pytest.mark.parametrize("width", WIDTHS)
def test_lanes_that_store_together_have_different_banks(width: int) -> None:
    pitch = (width + CHUNK) * ITEM
    pairs = [_banks(lane // 4 * pitch + lane % 4 * BANK_BYTES, BANK_BYTES) for lane in range(LANES)]
    assert len({bank for banks in pairs for bank in banks}) == BANKS


def test_lanes_that_load_a_long_line_together_have_different_banks() -> None:
    width = max(WIDTHS)
    pitch, groups = (width + CHUNK) * ITEM, width // CHUNK
    chunks = [_banks(lane // groups * pitch + lane % groups * CHUNK * ITEM, CHUNK * ITEM) for lane in range(LANES)]
    for first in range(0, LANES, 8):  # 16 bytes for each of eight lanes are one turn
        assert len({bank for banks in chunks[first : first + 8] for bank in banks}) == BANKS
