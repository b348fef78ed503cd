"""Profiles: which kernels took how long is told in the words of the graph as written. No test asserts a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import BindError, OptionError, UnsupportedError
from dovetail.ir.graph import Builder
from dovetail.ir.leaf import input
from dovetail.ir.origin import scope
from dovetail.report.json_form import as_dict
from dovetail.report.measured import spread_of
from dovetail.report.profile_text import as_text, by_place
from dovetail.runtime.compile import compile
from dovetail.runtime.program import Program

pytestmark = pytest.mark.serial  # it measures runs


def layers(rows: int | str) -> Program:
    builder = Builder(lines=False)
    with builder.recording():
        x = builder.input("x", f32[rows, 8])
        for layer in range(2):
            with scope(f"layers.{layer}.mlp"):
                x = ops.relu(x @ builder.param(f"w{layer}", f32[8, 8]))
        builder.output("y", x)
    weights = {f"w{i}": np.full((8, 8), 0.1, np.float32) for i in range(2)}
    return compile(builder.graph(), params=weights)


def test_time_is_credited_to_the_nodes_as_written() -> None:
    program = layers(4)
    found = program.profile({"x": np.ones((4, 8), np.float32)}, runs=3)
    assert found.runs == 3 and found.seconds > 0 and found.sizes == {}
    assert [k.op for k in found.kernels] == ["linear", "linear"]
    assert [k.where for k in found.kernels] == [("layers.0.mlp",), ("layers.1.mlp",)]
    assert all(k.seconds > 0 and k.predicted_seconds > 0 and not k.on_host for k in found.kernels)
    listed = {k.name: k for k in program.report.kernels}
    assert all(listed[k.kernel].flops == k.flops for k in found.kernels)
    assert by_place(found.kernels) == {"layers.*.mlp": (2, sum(k.seconds for k in found.kernels))}


def test_estimates_are_for_the_sizes_of_the_inputs() -> None:
    program = layers("rows")
    small, large = (program.profile({"x": np.ones((n, 8), np.float32)}, runs=1) for n in (2, 200))
    assert (small.sizes, large.sizes) == ({"rows": 2}, {"rows": 200})
    assert [k.flops for k in large.kernels] == [100 * k.flops for k in small.kernels]


def test_what_the_host_runs_has_its_share() -> None:
    program = compile(Graph.of(ops.det(ops.exp(input("x", f32[4, 4])))))
    found = program.profile({"x": np.eye(4, dtype=np.float32)}, runs=2)
    host = [k for k in found.kernels if k.on_host]
    assert [k.op for k in host] == ["det"] and 0 < found.host_seconds <= found.seconds + found.spread + 1
    assert found.host_share > 0
    assert "on the host" in as_text("graph", found, 5) and "host  " in as_text("graph", found, 5)


def test_a_report_shows_what_was_measured() -> None:
    program = layers(4)
    found = program.profile({"x": np.ones((4, 8), np.float32)}, runs=2)
    report = replace(program.report, measured=found)
    assert "measured" in str(report).splitlines()[1] and "(median of 2, ±" in str(report).splitlines()[1]
    assert "of the roofline" in str(report).splitlines()[1]
    told = as_dict(report)["measured"]
    assert told["runs"] == 2 and [k["kernel"] for k in told["kernels"]] == [k.kernel for k in found.kernels]


def test_what_cannot_be_profiled_is_refused() -> None:
    program = layers(4)
    with pytest.raises(OptionError, match="0 runs"):
        program.profile({"x": np.ones((4, 8), np.float32)}, runs=0)
    with pytest.raises(BindError):
        program.profile({}, runs=1)
    plain = compile(Graph.of(ops.exp(input("x", f32[4]))), target="reference")
    with pytest.raises(UnsupportedError, match="reference does not tell"):
        plain.profile({"x": np.ones(4, np.float32)})


def test_the_spread_is_half_of_what_lies_between_the_quartiles() -> None:
    found = spread_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.seconds, found.spread, found.count) == (3.0, 1.5, 5)
    assert spread_of([2.0]).spread == 0.0
