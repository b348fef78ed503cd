"""Gradients of a few operators of torch's database; `make torch-gradients` judges all."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")


@pytest.mark.slow
def test_gradients_of_a_few_operators() -> None:
    from tests.torch_operators.gradients import differentiable, full_name, gradient_verdicts

    names = {"softmax", "nn.functional.layer_norm", "cumsum", "where", "std", "sort", "native_layer_norm"}
    chosen = [op for op in differentiable() if full_name(op) in names]
    rows = list(gradient_verdicts(chosen, 2))
    assert {row.op for row in rows if row.verdict == "right"} == names
    assert not [row for row in rows if row.verdict not in ("right", "skipped")]


@pytest.mark.slow
def test_gradients_of_what_is_computed_from_bits_or_by_a_loop_or_on_one_side() -> None:
    from tests.torch_operators.gradients import differentiable, full_name, gradient_verdicts

    names = {"frexp", "nextafter", "matrix_exp", "special.i1", "linalg.norm.subgradients_at_zero", "linalg.det"}
    chosen = [op for op in differentiable() if full_name(op) in names]
    rows = list(gradient_verdicts(chosen, 3))
    assert {row.op for row in rows} == names
    assert not [row for row in rows if row.verdict != "right"]
