"""Factors of tensor cores in registers of their own: whatever reads them finds them there."""

from __future__ import annotations

import pytest

from dovetail.ir.dtype import bf16, f32
from dovetail.kernels.loops.ir import (
    Extent,
    Load,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    Name,
    Set,
    Statement,
    Tensor,
)
from dovetail.kernels.loops.persistent.words import held
from dovetail.kernels.matrix_instruction import MMA_BF16

SUMS = Tensor("sums", f32, (4,), space="private")
WEIGHTS, ROWS = (Tensor(name, bf16, (2,), space="shared") for name in ("weights", "rows"))
FACTOR, OTHER = (Tensor(name, bf16, (2,), space="private") for name in ("factor", "other"))
ZERO = (Extent(0),)


def _loaded(target: Tensor, source: Tensor) -> LoadMatrices:
    return LoadMatrices(target, ZERO, source, (Name("step"),))


def _products(*more: Statement, is_left: bool) -> Loop:
    left, right = (FACTOR, OTHER) if is_left else (OTHER, FACTOR)
    product = MultiplyMatrices(SUMS, ZERO, left, ZERO, right, ZERO, MMA_BF16)
    loads = _loaded(FACTOR, WEIGHTS), _loaded(OTHER, ROWS)
    return Loop("step", Extent(2), (*loads, *more, product), kind="unrolled")


@pytest.mark.parametrize("is_left", [True, False], ids=["left", "right"])
def test_either_factor_of_a_product_is_found_in_its_registers(is_left: bool) -> None:
    found = held(_products(is_left=is_left), lambda x, variable: True, lambda tensor: tensor is WEIGHTS)
    assert found is not None
    (load,), (other, product) = found.loads.body, found.rest.body
    assert isinstance(load, LoadMatrices) and isinstance(product, MultiplyMatrices) and other == _loaded(OTHER, ROWS)
    factor, at = (product.left, product.left_at) if is_left else (product.right, product.right_at)
    assert (factor, at) == (load.target, load.target_at) and factor.pointer != FACTOR.pointer


def test_a_factor_that_is_read_in_another_way_stays() -> None:
    read = Set("element", Load(FACTOR, ZERO))
    assert held(_products(read, is_left=True), lambda x, variable: True, lambda tensor: tensor is WEIGHTS) is None
