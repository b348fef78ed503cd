"""Traps 48 to 51: reports that cry wolf, keep silent, advise in vain or change from run to run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail import Graph, Value, bool_, f32, ops
from dovetail.declare import Cost, fused_op
from dovetail.derive.missed import COST, NEAR, PRIVATE
from dovetail.ir.leaf import input, param
from dovetail.library.layer_norm import layer_norm
from dovetail.library.rms_norm import rms_norm
from dovetail.library.silu import silu
from dovetail.ops.build import reshape
from dovetail.passes.regions import LIMIT
from dovetail.report.record import MissedEntry
from dovetail.report.report import Report
from dovetail.runtime.compile import scan
from tests.library.judge import one

Outputs = Value | Mapping[str, Value]

X, W, B = input("x", f32[64, 128]), param("w", f32[128, 128]), param("b", f32[128])
PRODUCT = X @ W


def report_of(outputs: Outputs, **options: Any) -> Report:
    """The report of what declared ops match alone: steps that do not would join a kernel as its epilogue."""
    options["without"] = (*options.get("without", ()), "fuse_epilogues")
    return scan(Graph.of(outputs), **options)


def misses(report: Report) -> set[tuple[str, str]]:
    return {(m.rule, m.reason) for m in report.missed}


def test_trap_48_a_matmul_without_a_bias_is_no_miss() -> None:
    """A report that flags every matmul for the bias it does not have hides the misses that cost something.

    Matmuls alone, in chains, as outputs, with an activation or none, in models without biases: nothing to report.
    """
    other, batched = param("other", f32[128, 128]), input("z", f32[4, 128, 64])
    for outputs in (
        PRODUCT,
        PRODUCT @ other,
        {"y": PRODUCT, "z": PRODUCT @ other},
        {"y": PRODUCT, "z": X @ other},
        batched @ input("v", f32[4, 64, 32]),
        ops.exp(PRODUCT),
        ops.relu(PRODUCT),
        ops.reduce_sum(PRODUCT, axes=(-1,)),
        ops.relu(PRODUCT + B) @ other,
        PRODUCT * silu(X @ other),
    ):
        for target in ("cpu", "cuda", "reference"):
            report = report_of(outputs, target=target)
            assert misses(report) == set()
            assert report.is_clean and "MISSED" not in str(report)


def told(report: Report, rule: str, reason: str) -> MissedEntry:
    """The one miss of a rule for a reason; it says what was found and what it costs."""
    listed = [m for m in report.missed if (m.rule, m.reason) == (rule, reason)]
    assert len(listed) == 1, f"{rule} is not missed once for {reason}: {misses(report)}"
    found = listed[0]
    assert found.message and found.node.op
    assert found.bytes > 0
    # Where apart is estimated faster, nothing is lost.
    assert (found.seconds > 0) == (reason != COST) == (not report.is_clean)
    assert f"{reason}: {found.message}" in str(report)
    return found


@fused_op(shapes="x[*, m, k] w[k, n]")
def slow(x: Value, w: Value) -> Value:
    """relu(x @ w), slower than apart."""
    return ops.relu(x @ w)


@slow.cost
def a_second(x: Value, w: Value) -> Cost:
    return Cost(10**11, 0)


def test_trap_49_what_matched_and_did_not_fuse_is_reported() -> None:
    """A report with a matcher of its own is silent about what the real matcher found and refused.

    A guard, a second reader, the cost, a limit of the target or one op that differs: each is told by its name.
    """
    square = param("square", f32[1, 128])
    told(report_of(ops.relu(PRODUCT + square)), "linear", "bias_is_a_vector")
    told(report_of({"y": ops.relu(PRODUCT + B), "z": PRODUCT}), "linear", PRIVATE)
    near = told(report_of(ops.sinh(PRODUCT + B)), "linear", NEAR)
    assert "found sinh" in near.message
    long: Value = X
    for _ in range(20):
        long = ops.exp(long) * 0.5
    told(report_of(long, target="cuda"), "region", LIMIT)
    told(report_of(ops.relu(PRODUCT), ops=[slow], without=["linear"]), "slow", COST)
    gate = param("gate", f32[128, 1])
    told(report_of(PRODUCT * silu(X @ gate)), "swiglu", "weights_are_equally_wide")
    # Whatever was matched and refused stands between two kernels, and the boundary names the same reason.
    for outputs in (ops.relu(PRODUCT + square), PRODUCT * silu(X @ gate)):
        report = report_of(outputs, without=["matmul_add", "mark_regions"])
        named = {b.reason for b in report.boundaries}
        assert {m.reason for m in report.missed} <= named


@dataclass(frozen=True, slots=True)
class Advice:
    """A miss with its hint, and the same model once somebody has followed it."""

    rule: str
    reason: str
    hint: str
    before: Outputs
    after: Outputs


def probabilities(x: Value) -> Value:
    raised = ops.exp(x - ops.reduce_max(x, axes=(-1,)))
    return raised / ops.reduce_sum(raised, axes=(-1,))


def attended(k: Value, v: Value, fill: float = float("-inf")) -> Value:
    scores = (input("q", f32[2, 3, 4, 8]) @ ops.permute(k, order=(-1, -2))) * 0.5
    return probabilities(ops.where(input("keep", bool_[2, 1, 1, 4]), scores, fill)) @ v


def rotated(cos: Value, sin: Value) -> Value:
    x = input("x", f32[2, 3, 4, 8])
    first, second = (ops.part(x, axis=-1, index=i, parts=2) for i in (0, 1))
    return x * cos + ops.concat(-second, first, axis=-1) * sin


ROW, SMALL = param("row", f32[1, 128]), (input("r", f32[1, 128]), input("r", f32[64, 128]))
KEYS, VALUES = input("k", f32[2, 3, 4, 8]), input("v", f32[2, 3, 4, 8])
NARROW, GAINS = param("narrow", f32[128, 1]), (param("gain", f32[64, 128]), param("gain", f32[128]))

FOLLOWED: tuple[Advice, ...] = (
    Advice(
        "linear",
        "bias_is_a_vector",
        "reshape the bias to [n], or leave the add outside",
        ops.relu(PRODUCT + ROW),
        ops.relu(PRODUCT + reshape(ROW, (128,))),
    ),
    Advice(
        "linear",
        PRIVATE,
        "drop the other use, or accept the separate kernels",
        {"y": ops.relu(PRODUCT + B), "z": PRODUCT},
        ops.relu(PRODUCT + B),
    ),
    Advice(
        "linear",
        NEAR,
        "write it with relu, or add a spelling to linear",
        ops.sinh(PRODUCT + B),
        ops.relu(PRODUCT + B),
    ),
    Advice(
        "matmul_add",
        "addend_has_the_product_shape",
        "pass the addend in the shape of the product, or leave the add outside",
        PRODUCT + SMALL[0],
        PRODUCT + SMALL[1],
    ),
    Advice(
        "residual_rms_norm",
        "operands_have_one_shape",
        "pass the smaller operand in the shape of the other, or leave the add outside",
        one(rms_norm.body(X + SMALL[0], eps=1e-5)),
        one(rms_norm.body(X + SMALL[1], eps=1e-5)),
    ),
    Advice(
        "layer_norm",
        "gain_is_a_vector",
        "give the gain the shape [n] of the last axis, or multiply by it outside",
        one(layer_norm.body(X, GAINS[0], eps=1e-5)),
        one(layer_norm.body(X, GAINS[1], eps=1e-5)),
    ),
    Advice(
        "swiglu",
        "weights_are_equally_wide",
        "widen the narrower weight, or leave the product outside",
        PRODUCT * silu(X @ NARROW),
        PRODUCT * silu(X @ ops.expand(NARROW, axis=-1, size=128)),
    ),
    Advice(
        "attention",
        "leading_axes_agree",
        "pass all three with the same leading axes, or k and v with one batch",
        attended(input("k", f32[1, 3, 4, 8]), VALUES),
        attended(KEYS, VALUES),
    ),
    Advice(
        "attention",
        "fill_hides",
        "fill with -inf or with the lowest number of the dtype",
        attended(KEYS, VALUES, fill=-100.0),
        attended(KEYS, VALUES, fill=float(np.finfo(np.float32).min)),
    ),
    Advice(
        "rope",
        "angles_are_as_wide_as_x",
        "pass cos and sin as wide as x, each angle at both features of its pair",
        rotated(input("cos", f32[4, 1]), input("sin", f32[4, 1])),
        rotated(input("cos", f32[4, 8]), input("sin", f32[4, 8])),
    ),
)


def test_trap_50_hints_are_true() -> None:
    """Hints outlive the code they were written for: a user expands an operand, and a pass takes the expansion back.

    Whoever does what the report says gets the fusion that it promised, and a model with fewer kernels.
    """
    for advice in FOLLOWED:
        before, after = report_of(advice.before), report_of(advice.after)
        found = told(before, advice.rule, advice.reason)
        assert found.hint == advice.hint
        assert (advice.rule, advice.reason) not in misses(after)
        assert after.count(advice.rule) == 1, advice
        assert len(after.kernels) < len(before.kernels)
    # What another rule has made good needs no hint.
    assert report_of(PRODUCT + input("d", f32[64, 128])).is_clean


FIRST = ""
"""What each process does before all else."""
SCRIPT = """
import json
from dovetail import Graph, f32, ops
from dovetail.ir.leaf import input, param
from dovetail.models import BertShape, bert
from dovetail.report.json_form import as_dict
from dovetail.runtime.compile import scan
x, w = input("x", f32[64, 128]), param("w", f32[128, 128])
products = {str(i): ops.sinh(x @ param(f"w{i}", f32[128, 128]) + param(f"b{i}", f32[1, 128])) for i in range(5)}
layer = bert(BertShape(layers=1, hidden=16, heads=4, inner=32, vocabulary=50))
for graph, target in ((layer, "cuda"), (Graph.of({**products, "z": x @ w}), "cpu")):
    report = scan(graph, target=target)
    told = as_dict(report)
    for entry in told["passes"]:
        entry["seconds"] = 0
    print(json.dumps(told), str(report))
"""


def test_trap_51_a_report_says_the_same_in_every_process() -> None:
    """Where a report walks over sets, its order hangs on addresses and on the seed of hashes, and no two are alike.

    Two processes with different seeds write the same report, letter for letter.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST + SCRIPT],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
        )
        for seed in ("1", "4711")
    ]
    said = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], said[0][1] + said[1][1]
    assert said[0][0] == said[1][0]
    told = said[0][0]
    assert told.count('"schema_version": 1') == 2
    assert all(mark in told for mark in ("FUSED", "MISSED", "APART"))
