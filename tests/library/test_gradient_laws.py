"""The laws of backward ops over every declared op and variant."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import library, ops
from dovetail.declare import FusedOp, Variant, fused_op
from dovetail.derive.gradient_laws import check_backward, check_built_again
from dovetail.derive.laws import LawError, fitting
from dovetail.ir.value import Value
from dovetail.testing import lifted

CASES = [(op, variant) for op in library.ALL for variant in op.variants if not variant.spelling]
over = pytest.mark.parametrize(("op", "variant"), CASES, ids=[f"{op.name}[{v.label}]" for op, v in CASES])


@over
def test_backward_and_built_again(op: FusedOp[...], variant: Variant) -> None:
    """Both laws of the same arguments: to draw them takes longer than a law."""
    chosen = fitting(op, variant, seed=1)
    with np.errstate(all="ignore"):
        check_backward(op, variant, seed=1, evaluate=lifted, chosen=chosen)
    check_built_again(op, variant, seed=1, chosen=chosen)


def test_a_wrong_form_is_refused() -> None:
    @fused_op(shapes="x[m, n]")
    def doubled(x: Value) -> Value:
        """2 * x, less its sum."""
        return x * 2.0 - ops.reduce_sum(x, axes=(-1,))

    check_backward(doubled, doubled.variants[0], 1, lifted)

    @doubled.gradient
    def wrong(g: Value, y: Value, x: Value) -> tuple[Value]:
        return (g * 2.0,)

    assert wrong is doubled.form
    with pytest.raises(LawError, match="doubled_back"):
        check_backward(doubled, doubled.variants[0], 1, lifted)


def test_rows_keep_their_gradient() -> None:
    kept = {op.name for op in library.ALL if op.differentiates_by_row}
    norms = {"layer_norm", "rms_norm", "residual_layer_norm", "residual_rms_norm"}
    assert kept == {"softmax", "log_softmax", "log_sum_exp", *norms}
    assert {op.name for op in library.ALL if op.keeps_its_gradient} == kept | {"attention"}
