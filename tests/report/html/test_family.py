"""Kinds of work, which the page gives colours."""

from __future__ import annotations

import pytest

from dovetail import library, ops
from dovetail.ir.value import Op
from dovetail.ops.region import region
from dovetail.report.html.family import family_of, kernel_family

BY_NAME = {op.name: op for op in library.ALL}


@pytest.mark.parametrize(
    ("op", "family"),
    [
        (ops.matmul, "contract"),
        (ops.exp, "map"),
        (ops.reduce_max, "reduce"),
        (ops.permute, "move"),
        (region, "map"),
        (BY_NAME["rms_norm"], "reduce"),
        (BY_NAME["silu"], "map"),
        (BY_NAME["linear"], "contract"),
        (BY_NAME["residual_layer_norm"], "reduce"),
        (BY_NAME["attention"], "attend"),
        (BY_NAME["rope_attention"], "attend"),
    ],
    ids=str,
)
def test_families(op: Op, family: str) -> None:
    assert family_of(op) == family


def test_a_kernel_is_of_the_heaviest_kind_inside() -> None:
    assert kernel_family(region, [ops.exp, ops.reduce_max]) == "reduce"
    assert kernel_family(ops.matmul, []) == "contract"
