"""Traps 48 to 51: reports that cry wolf, keep silent, advise in vain or change from run to run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from dovetail import Graph, Value, ops
from dovetail.declare import Cost, fused_op
from dovetail.derive.missed import COST, NEAR, PRIVATE
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.library.rms_norm import rms_norm
from dovetail.library.silu import silu
from dovetail.passes.regions import LIMIT
from dovetail.report.record import MissedEntry
from dovetail.report.report import Report
from dovetail.runtime.compile import explain
from tests.hints import followed
from tests.library.judge import one

Outputs = Value | Mapping[str, Value]

X, W, B = input("x", f32[64, 128]), param("w", f32[128, 128]), param("b", f32[128])
PRODUCT = X @ W


def report_of(outputs: Outputs, **options: Any) -> Report:
    """The report of what declared ops match alone: steps that do not would join a kernel as its epilogue."""
    options["without"] = (*options.get("without", ()), "fuse_epilogues")
    return explain(Graph.of(outputs), **options)


def misses(report: Report) -> set[tuple[str, str]]:
    return {(m.rule, m.reason) for m in report.missed}


@pytest.mark.slow
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
            assert report.is_clean and "MISSED" not in str(report) and not report.near


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


@pytest.mark.slow
def test_trap_49_what_matched_and_did_not_fuse_is_reported() -> None:
    """A report with a matcher of its own is silent about what the real matcher found and refused.

    A guard, a second reader, the cost, a limit of the target or one op that differs: each is told by its name.
    """
    square = param("square", f32[64, 1])
    told(report_of(ops.relu(PRODUCT + square)), "linear", "bias_is_a_vector")
    told(report_of({"y": ops.relu(PRODUCT + B), "z": PRODUCT}), "linear", PRIVATE)
    nearly = report_of(ops.sinh(PRODUCT + B))
    assert [m.reason for m in nearly.near] == [NEAR] and nearly.is_clean and not nearly.missed
    assert "found sinh" in nearly.near[0].message and not nearly.near[0].hint
    long: Value = X
    for _ in range(20):
        long = ops.exp(long) * 0.5
    told(report_of(long, target="cuda"), "region", LIMIT)
    told(report_of(ops.relu(PRODUCT), ops=[slow], without=["linear"]), "slow", COST)
    gate = param("gate", f32[128, 1])
    narrow = [m for m in report_of(PRODUCT * silu(X @ gate)).missed if m.rule == "swiglu"]
    assert [(m.reason, m.seconds, m.hint) for m in narrow] == [("weights_are_equally_wide", 0.0, "")]
    # Whatever was matched and refused stands between two kernels, and the boundary names the same reason.
    for outputs in (ops.relu(PRODUCT + square), PRODUCT * silu(X @ gate)):
        report = report_of(outputs, without=["matmul_add", "mark_regions"])
        named = {b.reason for b in report.boundaries}
        assert {m.reason for m in report.missed} <= named


ROW, MANY = input("r", f32[64, 128]), input("many", f32[4, 64, 128])
FOLLOWED: tuple[tuple[str, str, Outputs], ...] = (
    ("matmul_add", "addend_has_the_product_shape", MANY @ W + ROW),
    (
        "residual_rms_norm",
        "operands_have_one_shape",
        one(rms_norm.body(MANY + ROW, eps=1e-5)),
    ),
    ("linear", "bias_is_a_vector", ops.relu(PRODUCT + input("b", f32[1]))),
)


@pytest.mark.slow
def test_trap_50_hints_are_true() -> None:
    """Hints outlive the code they were written for: a user expands an operand, and a pass takes the expansion back.

    Whoever does what the report says gets the fusion that it promised, the same numbers, and a faster model.
    """
    for rule, reason, outputs in FOLLOWED:
        before = report_of(outputs, target="cuda")
        found = told(before, rule, reason)
        assert found.hint and found.gain_seconds > 0
        after = explain(followed(Graph.of(outputs), found.changes), target="cuda")
        assert (rule, reason) not in misses(after)
        assert after.count(rule) == 1 and len(after.kernels) < len(before.kernels)
        assert after.predicted_seconds < before.predicted_seconds
    # What another rule has made good needs no hint, and neither has one a change that would not pay.
    assert report_of(PRODUCT + input("d", f32[64, 128])).is_clean


FIRST = ""
"""What each process does before all else."""
SCRIPT = """
import json
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.models import BertShape, bert
from dovetail.report.json_form import as_dict
from dovetail.runtime.compile import explain
x, w = input("x", f32[64, 128]), param("w", f32[128, 128])
products = {str(i): ops.sinh(x @ param(f"w{i}", f32[128, 128]) + param(f"b{i}", f32[1, 128])) for i in range(5)}
layer = bert(BertShape(layers=1, hidden=16, heads=4, inner=32, vocabulary=50))
for graph, target in ((layer, "cuda"), (Graph.of({**products, "z": x @ w}), "cpu")):
    report = explain(graph, target=target)
    told = as_dict(report)
    for entry in told["passes"]:
        entry["seconds"] = 0
    print(json.dumps(told), str(report))
"""


@pytest.mark.heavy
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
