"""Ops of constants are computed while compiling only where that is cheap."""

from __future__ import annotations

import numpy as np

import dovetail
from dovetail import ops
from dovetail.ir import leaf
from dovetail.passes.fold_limit import LARGEST_NUMBER, is_cheap_to_fold


def test_numbers_decide() -> None:
    assert is_cheap_to_fold({"axes": (0, -1), "mode": "edge", "scale": 1e30, "size": LARGEST_NUMBER})
    assert not is_cheap_to_fold({"size": LARGEST_NUMBER + 1})
    assert not is_cheap_to_fold({"pads": ((0, 0), (-(2**40), 0))})


def test_a_constant_that_is_padded_far_is_not_folded() -> None:
    """The result has two numbers, and computing it would take a terabyte."""
    far = 2**40
    builder = dovetail.Builder("far")
    x = leaf.constant(np.ones((1, 1, 2), np.int8))
    builder.output("y", ops.max_pool(x, window=(far,), strides=(far,), padding=(far - 1, 0)))
    program = dovetail.compile(builder.graph(), target="reference")
    assert [step.value.op for step in program.plan.steps] == [ops.max_pool]
