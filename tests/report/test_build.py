"""What a report says of small graphs, with every number worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.errors import GateError
from dovetail.ir.graph import Builder
from dovetail.ir.leaf import input, param
from dovetail.ir.origin import scope
from dovetail.library.silu import silu
from dovetail.report.json_form import as_dict
from dovetail.report.report import Report
from dovetail.runtime.compile import compile, explain
from dovetail.targets.cpu.claims import CLAIMS as CPU

X, W, B = input("x", f32[4, 8]), param("w", f32[8, 16]), param("b", f32[16])
GATE = param("gate", f32[8, 16])


def report_of(outputs: Value | Mapping[str, Value], **options: Any) -> Report:
    return explain(Graph.of(outputs), **options)


def test_bytes_that_a_dense_layer_saves() -> None:
    """Two tensors of 4 by 16 numbers are neither written nor read back."""
    (fused,) = report_of(ops.relu(X @ W + B)).fused
    assert (fused.rule, fused.chain) == ("linear", ("linear",))
    assert [n.op for n in fused.nodes] == ["matmul", "add", "relu"]
    assert fused.bytes_saved == 2 * 2 * 4 * 16 * 4
    machine = CPU.machine
    wanted = fused.bytes_saved / machine.levels[0].bytes_per_second + 2 * machine.launch_seconds
    assert math.isclose(fused.seconds_saved, wanted)


def test_bytes_that_a_gated_product_saves() -> None:
    """Up, sigmoid and silu are written and read once, the gate is read twice, and x once instead of twice."""
    gate = X @ GATE
    (fused,) = report_of((X @ W) * (gate * ops.sigmoid(gate))).fused
    assert (fused.rule, fused.chain) == ("swiglu", ("silu", "swiglu"))
    assert fused.bytes_saved == (3 * 2 + 3) * 4 * 16 * 4 + 4 * 8 * 4


def test_matmuls_that_were_joined_are_told() -> None:
    """Three products are one kernel: x is read once instead of three times, and two launches are spared."""
    builder = Builder(lines=False)
    with builder.recording():
        x = builder.input("x", f32[4, 8])
        for name, width in (("q", 6), ("k", 3), ("v", 3)):
            with scope(name):
                builder.output(name, x @ builder.param(name, f32[8, width]))
    report = explain(builder.graph(), require={"shared_input_matmul": 1})
    (fused,) = report.fused
    assert (fused.rule, fused.chain) == ("shared_input_matmul", ("shared_input_matmul",))
    assert [(n.op, n.where) for n in fused.nodes] == [("matmul", "q"), ("matmul", "k"), ("matmul", "v")]
    assert fused.bytes_saved == 2 * 4 * 8 * 4
    assert report.count("shared_input_matmul") == 1
    (run,) = (k for k in report.kernels if k.phase == "run")
    assert [n.where for n in run.nodes] == ["q", "k", "v"]
    assert [b.reason for b in report.boundaries] == ["bind_time"]


def test_a_group_can_be_required() -> None:
    graph = Graph.of({"q": X @ W, "k": X @ GATE})
    compile(graph, require={"shared_input_matmul": 1})
    with pytest.raises(GateError, match="shared_input_matmul: 1 of 2"):
        compile(graph, require={"shared_input_matmul": 2})
    with pytest.raises(GateError, match="shared_input_matmul: 0 of 1"):
        compile(Graph.of(X @ W), require=["shared_input_matmul"])


def test_a_region_that_was_cut_has_its_kernels_and_its_price() -> None:
    x: Value = X
    for _ in range(20):
        x = ops.exp(x) * 0.5
    report = report_of(x, target="cuda")
    (missed,) = report.missed
    assert (missed.rule, missed.reason) == ("region", "target_limit")
    assert len(missed.kernels) == 2 == len(report.kernels)
    # The tensor between them is written and read back.
    assert missed.bytes == 2 * 4 * 8 * 4
    assert missed.node.op == "mul"


def test_a_value_that_is_repeated_now_is_credited_to_its_kernel() -> None:
    """Canonicalisation repeats the exponential and not what it is of: the node is computed all the same."""
    row = input("row", f32[1, 8])
    report = report_of(ops.exp(ops.expand(row, axis=-2, size=4)))
    (kernel,) = (k for k in report.kernels if k.op == "exp")
    assert [n.op for n in kernel.nodes] == ["exp"]


def test_counts_before_and_after() -> None:
    report = report_of(ops.relu(X @ W + B))
    assert (report.nodes_before, report.nodes_after) == (6, 4)
    assert report.ops_before == {"add": 1, "input": 1, "matmul": 1, "param": 2, "relu": 1}
    assert report.ops_after == {"input": 1, "linear": 1, "param": 2}
    assert report.summary.startswith("graph on cpu: 6 nodes → 1 kernels, 1 fused, 0 missed, predicted ")


def test_what_a_kernel_costs() -> None:
    """A matmul of 4 by 8 by 16: two operations a product, each tensor moved once."""
    (kernel,) = report_of(X @ W).kernels
    assert kernel.flops == 2 * 4 * 8 * 16
    assert kernel.bytes == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    machine = CPU.machine
    # All of it fits the nearest level; a part of the traffic is hidden behind the work.
    least, traffic = kernel.flops / machine.flops_per_second, kernel.bytes / machine.levels[0].bytes_per_second
    work = least / machine.reach.of("contract")
    hidden = machine.overlap * min(work, traffic)
    assert math.isclose(kernel.seconds, work + traffic - hidden + machine.launch_seconds)
    assert math.isclose(kernel.floor_seconds, max(least, traffic))


def test_dispatch_is_part_of_the_report() -> None:
    report = report_of(ops.dot(X, input("y", f32[4, 8]), left=(-1,), right=(-1,)) + 1.0)
    outcomes = {row.op: row.outcome for row in report.dispatch}
    assert outcomes["dot"] == "rewritten" and outcomes["matmul"] == outcomes["add"] == "native"
    told = {row["op"]: row for row in as_dict(report)["dispatch"]}
    assert told["dot"]["reason"] == "cpu has no kernel for dot"


def test_what_runs_on_the_host_is_told() -> None:
    """A determinant has no compiled kernel: the dispatch, the summary and the text say so."""
    report = report_of(ops.det(ops.exp(input("m", f32[4, 4]))))
    (host,) = (row for row in report.dispatch if row.outcome == "host")
    assert (host.op, host.count) == ("det", 1) and "NumPy" in host.reason
    assert [k.op for k in report.kernels if k.on_host] == ["det"]
    assert report.summary.endswith(", 1 on the host")
    assert "HOST       1 × det" in str(report)


def test_what_compiled_code_lacks_is_named() -> None:
    x = input("x", f32[8])
    report = report_of(ops.real(ops.complex_(x * 2.0, x) * ops.complex_(x, x)))
    assert [k.lacks for k in report.kernels] == [("complex in f32", "mul in c64", "real in c64")]
    assert "has no compiled kernel: complex in f32, mul in c64, real in c64" in str(report)
    assert as_dict(report)["kernels"][0]["lacks"]


@pytest.mark.slow
def test_steps_that_are_alike_run_on_the_host_alike() -> None:
    dets = [ops.det(ops.exp(input(f"m{i}", f32[4, 4]))) for i in range(3)]
    report = report_of({f"y{i}": v for i, v in enumerate(dets)})
    assert {row.op: row.count for row in report.dispatch if row.outcome == "host"} == {"det": 3}


def test_the_figures_of_the_machine_are_named() -> None:
    report = report_of(X @ W)
    assert report.calibration == "built-in" and str(report).endswith("calibration: built-in")
    assert as_dict(report)["calibration"] == "built-in" and as_dict(report)["measured"] is None


def test_a_forced_expansion_is_told() -> None:
    report = report_of(silu(X), dispatch={"silu": "force_common"})
    rows = {(row.op, row.outcome) for row in report.dispatch}
    assert {("silu", "common"), ("sigmoid", "native"), ("mul", "native")} <= rows


@pytest.mark.slow
def test_scan_is_the_report_of_compile() -> None:
    graph = Graph.of({"y": ops.sinh(X @ W + B), "z": X @ W})
    cases: list[dict[str, Any]] = [{}, {"target": "cuda"}, {"without": ["linear"]}]
    for options in cases:
        scanned, compiled = as_dict(explain(graph, **options)), as_dict(compile(graph, **options).report)
        for told in (scanned, compiled):
            for entry in told["passes"]:
                entry["seconds"] = 0.0
        assert scanned == compiled
