"""Traps 1 to 5: values that a fusion swallows and that someone else wants too."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.declare import Machine, fused_op
from dovetail.derive.fuse import fuse
from dovetail.derive.join import join
from dovetail.derive.missed import CYCLE, PRIVATE
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.library import ALL, GROUPS
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.rms_norm import rms_norm
from dovetail.library.silu import silu
from dovetail.ops.region import region
from dovetail.passes.regions import mark_regions
from tests.library import judge
from tests.library.judge import names, near, numbers, one, run

ONLY_LAUNCHES = Machine(flops_per_second=1e30, bytes_per_second=1e30, launch_seconds=1.0)
"""A machine where computing twice costs next to nothing, so that it pays to fuse over shared inner values."""


def test_trap_01_an_inner_value_that_is_an_output_keeps_its_own_value() -> None:
    """Systems that let a fused kernel answer for the names it swallowed hand out relu(x@w + b) where x@w was asked.

    Whatever inner value is an output too, it comes out as itself, also where it pays to fuse over it.
    """
    x, w, b = input("x", f32[5, 6]), param("w", f32[6, 6]), param("b", f32[6])
    up, gate = param("up", f32[6, 6]), param("gate", f32[6, 6])
    product, gated = x @ w, silu(x @ gate)
    first, second = (ops.part(x, axis=-1, index=i, parts=2) for i in (0, 1))
    arrays = numbers(Graph.of({"a": product + b, "b": (x @ up) * gated}))
    n_product, n_gated = arrays["x"] @ arrays["w"], judge.silu(arrays["x"] @ arrays["gate"])
    n_sum, (n_first, n_second) = n_product + arrays["b"], np.split(arrays["x"], 2, -1)
    cases = [
        ("linear", ops.relu(product + b), product, judge.relu(n_sum), n_product),
        ("linear", silu(product + b), product + b, judge.silu(n_sum), n_sum),
        ("swiglu", (x @ up) * gated, gated, arrays["x"] @ arrays["up"] * n_gated, n_gated),
        ("gated_product", first * silu(second), first, n_first * judge.silu(n_second), n_first),
        ("gated_product", first * silu(second), second, n_first * judge.silu(n_second), n_second),
    ]
    for rule, y, inner, wanted_y, wanted_inner in cases:
        fused = fuse(Graph.of({"y": y, "inner": inner}), ALL, machine=ONLY_LAUNCHES)
        assert [a.rule for a in fused.applied] == [rule]
        for graph in (fused.graph, mark_regions(fused.graph).graph):
            got = run(graph, arrays)
            near(got["y"], wanted_y)
            near(got["inner"], wanted_inner)


def test_trap_02_every_pass_counts_uses_in_the_same_way() -> None:
    """Where one pass counts readers and another counts reads, `t*t` is private here and shared there.

    A use is a read, with multiplicity, or being an output; fusing and regions ask the same count.
    """

    @fused_op(shapes="x[*, n] y[*, n]")
    def squared_sum(x: Value, y: Value) -> Value:
        """(x + y) times itself."""
        return (x + y) * (x + y)

    t = input("a", f32[3, 4]) + input("b", f32[3, 4])
    cases = [
        ({"y": t * t}, 2, True),
        ({"y": t * t, "z": ops.exp(t)}, 3, False),
        ({"y": t * t, "t": t}, 3, False),
        ({"y": t * t, "t": t, "again": t}, 4, False),
    ]
    for outputs, count, private in cases:
        graph = Graph.of(outputs)
        reads = Counter(v for value in graph.values for v in value.operands) + Counter(outputs.values())
        assert [graph.uses.count(v) for v in graph.values] == [reads[v] for v in graph.values]
        assert graph.uses.count(t) == count
        fused, marked = fuse(graph, [squared_sum], machine=ONLY_LAUNCHES), mark_regions(graph).graph
        assert (fused.graph.count(squared_sum), fused.graph.count(ops.add)) == ((1, 0) if private else (0, 1))
        assert [m.reason for m in fused.missed] == ([] if private else [PRIVATE])
        assert (marked.count(region), marked.count(ops.add)) == ((1, 0) if private else (0, 1))


def test_trap_03_one_parameter_of_each_name_after_fusing() -> None:
    """Systems that hoist an operand above its consumer copy it for each consumer: two params share one name.

    However often a parameter is declared and wherever it is read, there is one value of its name.
    """
    x = input("x", f32[64, 48])
    q, k, v = x @ param("wq", f32[48, 48]), x @ param("wk", f32[48, 48]), x @ param("wv", f32[48, 48])
    late = param("b", f32[48])
    first, second = ops.relu(q + late), ops.tanh(k + param("b", f32[48]))
    third = v @ param("wq", f32[48, 48])
    fused = fuse(Graph.of({"first": first, "second": second, "third": third}), ALL).graph
    joined = join(fused, GROUPS).graph
    for graph in (fused, joined, mark_regions(joined).graph):
        declared = Counter(p.attrs["name"] for p in graph.parameters)
        assert declared == {"wq": 1, "wk": 1, "wv": 1, "b": 1}
        arrays = numbers(graph)
        got = run(graph, arrays)
        near(got["first"], judge.relu(arrays["x"] @ arrays["wq"] + arrays["b"]))
        near(got["second"], np.tanh(arrays["x"] @ arrays["wk"] + arrays["b"]))
        near(got["third"], arrays["x"] @ arrays["wv"] @ arrays["wq"])


@pytest.mark.slow
def test_trap_04_an_operand_that_is_also_the_partner() -> None:
    """In `mm + mm` the operand to swallow is the partner too: taken apart by position it is lost or computed twice.

    Such values come out right on every machine, and the product is made once.
    """
    x, w = input("x", f32[6, 8]), param("w", f32[8, 8])
    product = x @ w
    arrays = numbers(Graph.of(product))
    n_product, n_silu = arrays["x"] @ arrays["w"], judge.silu(arrays["x"])
    cases = [
        (product + product, 2 * n_product),
        (ops.relu(product + product), judge.relu(2 * n_product)),
        (product * silu(product), n_product * judge.silu(n_product)),
        (x * ops.sigmoid(x) * (x * ops.sigmoid(x)), n_silu * n_silu),
        (silu(x) * silu(x), n_silu * n_silu),
        (one(rms_norm.body(product + product, eps=1e-5)), judge.rms_norm(2 * n_product, 1e-5)),
    ]
    for value, wanted in cases:
        for machine in (ONLY_LAUNCHES, Machine(1e11, 2e10, 1e-6)):
            for always in (False, True):
                fused = fuse(Graph.of(value), ALL, machine=machine, always=always).graph
                near(run(fused, arrays)["y"], wanted)
                assert sum("matmul" in name or name in ("linear", "swiglu") for name in names(fused)) <= 1


def test_trap_05_a_sum_that_also_feeds_the_gain_of_its_own_norm() -> None:
    """A residual norm that hands out its sum cannot take a gain that is made from that sum: it would read itself.

    The values stay right, and the report says why the two stay apart; a gain from elsewhere fuses.
    """
    x, r, gain = input("x", f32[6, 8]), input("r", f32[6, 8]), param("gain", f32[8])
    total = x + r
    own = ops.squeeze(ops.reduce_mean(total, axes=(-2,)), axes=(-2,))
    arrays = numbers(Graph.of(total * gain))
    n_total = arrays["x"] + arrays["r"]
    for scale, n_scale in ((own, n_total.mean(0)), (gain, arrays["gain"])):
        graph = Graph.of({"y": one(rms_norm.body(total, scale, eps=1e-5)), "next": ops.exp(total)})
        fused = fuse(graph, ALL, machine=ONLY_LAUNCHES)
        assert fused.graph.count(residual_rms_norm) == (scale is gain)
        if scale is own:
            (missed,) = (m for m in fused.missed if m.rule == "residual_rms_norm")
            assert missed.reason in (CYCLE, PRIVATE)
        got = run(fused.graph, arrays)
        near(got["y"], judge.rms_norm(n_total, 1e-5) * n_scale)
        near(got["next"], np.exp(n_total))
