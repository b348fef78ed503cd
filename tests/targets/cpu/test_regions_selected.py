"""Regions in the selection table: rows name the condition that refuses steps, and steps do not change the winner."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dovetail import Graph, Value, library, ops
from dovetail.declare.machine import Machine
from dovetail.dtypes import f32
from dovetail.ir.inline import outline
from dovetail.ir.leaf import input, param
from dovetail.kernels.spec import TensorLocations
from dovetail.ops.region import region
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.loops import loops_of
from dovetail.targets.cpu.select import TABLE
from dovetail.targets.target import Considered
from tests.kernels.convolving import WIDE

ASSUMED = Machine(1e11, 1e10, 1e-6)
X, W = input("x", f32[2, 30, 7, 9]), param("w", f32[64, 30, 3, 3])
CONV = ops.conv(X, W, padding=(1, 1, 1, 1))
Q, K = input("q", f32[2, 4, 24, 16]), input("k", f32[2, 4, 40, 16])


def considered(result: Value, *operands: Value) -> Sequence[Considered]:
    """What the table says of one region of these operands."""
    return of_graph(Graph.of(region(outline([result], operands), operands)))


def of_graph(graph: Graph) -> Sequence[Considered]:
    plan = make_plan(graph, target=CPU)
    locations = TensorLocations(plan.locate, graph.parameters, target=loops_of(WIDE))
    return TABLE.considered(plan.phase("run")[-1], locations, WIDE, ASSUMED)


def conditions(rows: Sequence[Considered], kind: str) -> dict[str, str]:
    return {row.name: row.condition for row in rows if row.kind == kind}


def test_an_operand_of_columns_leaves_a_convolution_to_the_direct_kernel() -> None:
    z = input("z", f32[1, 1, 1, 9])
    found = conditions(considered(ops.tanh(CONV * z), X, W, z), "convolution")
    assert found["few_pixels"] == "operands_of_the_epilogue_have_the_layout_of_the_result"
    assert found["direct"] == ""


def test_an_operand_of_pixels_is_read_by_all() -> None:
    z = input("z", f32[1, 1, 7, 9])
    rows = considered(ops.tanh(CONV * z), X, W, z)
    assert conditions(rows, "convolution")["few_pixels"] == ""
    assert [row.name for row in rows if row.taken] == ["few_pixels"]


@pytest.mark.parametrize("name", ["convolution", "transposed convolution"])
def test_steps_that_give_another_shape_have_no_rows(name: str) -> None:
    z = input("z", f32[3, 1, 1, 1, 1])
    if name == "convolution":
        found = conditions(considered(CONV * z, X, W, z), name)
    else:
        w = param("w", f32[30, 8, 3, 3])
        found = conditions(considered(ops.conv_transpose(X, w) * z, X, w, z), name)
    assert found["direct"] == "results_have_the_shape_of_the_anchor"


def test_attention_with_steps_is_a_kernel() -> None:
    z = input("z", f32[2, 4, 24, 16])
    rows = considered(library.attention(Q, K, K) * z, Q, K, z)
    assert [row.name for row in rows if row.taken] == ["online"]
    assert conditions(rows, "attention")["decode"] == "queries_are_few"


def test_steps_before_attention_and_steps_of_another_shape_are_refused_by_name() -> None:
    z = input("z", f32[3, 1, 1, 1, 1])
    before = conditions(considered(library.attention(ops.exp(Q), K, K) * 2.0, Q, K), "attention")
    assert set(before.values()) == {"attention_reads_operands"}
    wider = conditions(considered(library.attention(Q, K, K) * z, Q, K, z), "attention")
    assert set(wider.values()) == {"results_have_the_shape_of_the_anchor"}


@pytest.mark.parametrize("images", [1, 8])
@pytest.mark.parametrize("window", [1, 3, 7])
@pytest.mark.parametrize("pixels", [7, 16, 33, 60])
@pytest.mark.parametrize(("channels", "filters"), [(8, 16), (8, 200), (64, 64), (256, 200)])
def test_steps_do_not_change_which_kernel_wins(
    channels: int, filters: int, pixels: int, window: int, images: int
) -> None:
    """Every kernel has the same steps: estimates count all of them, or none."""
    x, w = input("x", f32[images, channels, pixels]), param("w", f32[filters, channels, window])
    y = ops.conv(x, w, padding=(window // 2, window // 2))
    z = input("z", f32[y.shape])
    plain, followed = of_graph(Graph.of(y)), considered(ops.tanh(y * z) + z, x, w, z)
    assert [row.name for row in plain if row.taken] == [row.name for row in followed if row.taken]
