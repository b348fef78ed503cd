"""Traps 1 to 5: values that a fusion swallows and that someone else wants too."""

from __future__ import annotations

from collections import Counter

import numpy as np

from dovetail import Graph, Value, f32, ops
from dovetail.declare import Machine, fused_op
from dovetail.derive.fuse import fuse
from dovetail.derive.join import join
from dovetail.derive.missed import PRIVATE
from dovetail.ir.leaf import input, param
from dovetail.library import ALL, GROUPS
from dovetail.library.gated_product import gated_product
from dovetail.library.linear import linear
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.rms_norm import rms_norm
from dovetail.library.silu import silu
from dovetail.library.swiglu import swiglu
from dovetail.passes.regions import mark_regions
from tests.library import judge
from tests.library.judge import names, near, numbers, one, run

ONLY_LAUNCHES = Machine(flops_per_second=1e30, bytes_per_second=1e30, launch_seconds=1.0)
"""A machine where computing twice costs next to nothing, so that shared inner values are fused over."""


def test_trap_01_an_inner_value_that_is_an_output_keeps_its_own_value() -> None:
    """Systems that rename the fused kernel to the name of what it swallowed hand out relu(x@w + b) as x@w.

    Whatever inner value is an output, it comes out as itself, also where fusing over it pays.
    """
    x, w, b = input("x", f32[5, 6]), param("w", f32[6, 6]), param("b", f32[6])
    up, gate = param("up", f32[6, 6]), param("gate", f32[6, 6])
    product, gated = x @ w, silu(x @ gate)
    first, second = (ops.part(x, axis=-1, index=i, parts=2) for i in (0, 1))
    cases: list[tuple[dict[str, Value], str]] = [
        ({"y": ops.relu(product + b), "inner": product}, "linear"),
        ({"y": silu(product + b), "inner": product + b}, "linear"),
        ({"y": (x @ up) * gated, "inner": gated}, "swiglu"),
        ({"y": first * silu(second), "inner": first}, "gated_product"),
        ({"y": first * silu(second), "inner": second}, "gated_product"),
    ]
    arrays = {k: a for outputs, _ in cases for k, a in numbers(Graph.of(outputs)).items()}
    a_product, a_gated = arrays["x"] @ arrays["w"], judge.silu(arrays["x"] @ arrays["gate"])
    a_sum, (a_first, a_second) = a_product + arrays["b"], np.split(arrays["x"], 2, -1)
    halves = a_first * judge.silu(a_second)
    wanted = [
        (judge.relu(a_sum), a_product),
        (judge.silu(a_sum), a_sum),
        (arrays["x"] @ arrays["up"] * a_gated, a_gated),
        (halves, a_first),
        (halves, a_second),
    ]
    for (outputs, rule), (y, inner) in zip(cases, wanted, strict=True):
        fused = fuse(Graph.of(outputs), ALL, machine=ONLY_LAUNCHES)
        if "inner" != "sum":
            assert [a.rule for a in fused.applied] == [rule] or fused.missed, "nothing was tried"
        for graph in (fused.graph, mark_regions(fused.graph).graph):
            got = run(graph, arrays)
            near(got["y"], y)
            near(got["inner"], inner)
