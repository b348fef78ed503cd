"""The summary: ranked, short, and with the numbers of the report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import Graph, Value, ops
from dovetail.cli.model import graph_of
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.report.profile_text import share_text
from dovetail.report.record import MissedEntry, Node, StoppedEntry, facts
from dovetail.report.report import Report
from dovetail.report.text import MOST_MISSED, as_text, bytes_text, of_roofline, short_type, time_text
from dovetail.runtime.compile import explain
from tests.cli.commands import SMALL


@pytest.fixture(scope="module")
def report() -> Report:
    return explain(graph_of(SMALL["bert"].replace("layers=2", "layers=6")), target="cpu")


def miss(
    where: str, seconds: float, message: str = "the mask is f32[1, 12, 8, 8]", rule: str = "attention"
) -> MissedEntry:
    node = Node("%1", "softmax", where)
    return MissedEntry(rule, node, "mask_serves_all_heads", message, "pass one mask", 64, seconds, gain_seconds=1e-6)


@pytest.mark.slow
def test_the_head_counts_kernels_and_repeated_blocks(report: Report) -> None:
    first, second = as_text(report).split("\n")[:2]
    assert first.startswith(f"bert on cpu   {report.nodes_before} nodes → {len(report.kernels)} kernels   ")
    assert "6 repeated blocks, shown once" in first and bytes_text(report.arena_bytes or 0) in first
    share = 100 * report.floor_seconds / report.predicted_seconds
    assert second == f"predicted {time_text(report.predicted_seconds)}   {share:.0f} % of the roofline"


@pytest.mark.slow
def test_fused_lines_add_up_and_fold_their_places(report: Report) -> None:
    saved = sum(f.bytes_saved for f in report.fused if f.rule == "attention")
    assert f"FUSED      6 × attention              saves {bytes_text(saved):>9} a run   at layers.*" in as_text(report)


@pytest.mark.slow
def test_misses_of_one_kind_are_one_line_with_its_price(report: Report) -> None:
    total = report.predicted_seconds
    alike = [miss(f"layers.{i}.attn", total / 20, f"the mask is f32[1, 12, {i}, 8]") for i in range(2)]
    cheap = miss("head", total / 100, "another")
    text = as_text(replace(report, missed=(cheap, *alike)))
    at = text.index("MISSED")
    assert text[at:].split("\n")[:4] == [
        f"MISSED     2 × attention              costs {time_text(total / 10)} (10 %)   at layers.*.attn",
        "        mask_serves_all_heads: the mask is f32[1, 12, *, 8]",
        "        hint: pass one mask (gains 2.0 µs)",
        f"MISSED     1 × attention              costs {time_text(total / 100)} (1 %)   at head",
    ]


@pytest.mark.slow
def test_fields_of_a_miss_that_say_so_are_shown_where_all_is_asked_for(report: Report) -> None:
    alike = [replace(miss(f"layers.{i}.attn", 1e-6), instead="swiglu") for i in range(2)]
    told = replace(report, missed=tuple(alike))
    shown = "        moves 128 B, the hint gains 2.0 µs, priced at the miss of swiglu"
    assert shown in as_text(told, everything=True).split("\n") and shown not in as_text(told)
    assert list(facts([replace(alike[0], instead="", bytes=0, gain_seconds=0.0)])) == list(facts([])) == []


def test_what_matters_less_is_one_line_unless_all_is_asked_for(report: Report) -> None:
    many = tuple(miss(f"place {chr(97 + i)}", (i + 1) * 1e-9, f"kind {chr(97 + i)}") for i in range(20))
    text = as_text(replace(report, missed=many))
    assert text.count("MISSED") == MOST_MISSED + 1 and f"MISSED  {20 - MOST_MISSED:4} others" in text
    assert "kind t" in text and "kind a" not in text, "the dearest are those that are shown"
    everything = as_text(replace(report, missed=many), everything=True)
    assert everything.count("MISSED") == 20 and "others" not in everything


def test_budgets_that_were_spent_are_told(report: Report) -> None:
    stopped = StoppedEntry("e-graph", "normalise", "nodes", "20,000 nodes were reached")
    text = as_text(replace(report, stopped=(stopped, stopped)))
    assert "STOPPED    2 × e-graph                20,000 nodes were reached in phase normalise" in text


def test_a_report_of_nothing_has_its_two_lines() -> None:
    empty = Report("empty", "cpu", 0, 0, {}, {}, (), (), (), (), (), (), 0.0, {})
    assert as_text(empty) == "empty on cpu   0 nodes → 0 kernels\npredicted 0.0 µs\ncalibration: built-in"


@pytest.mark.parametrize(
    ("share", "ops", "said"),
    [
        (0.5, [], "50 % of the roofline"),
        (1.03, ["matmul"], "100 % of the roofline"),
        (1.3, ["linear", "conv_bias_act"], "130 % of the roofline of direct convolutions"),
        (1.3, ["linear"], "the figures of this machine are too low"),
        (7.92, ["conv"], "the figures of this machine are too low"),
    ],
)
def test_nothing_is_said_to_run_beyond_the_roofline(share: float, ops: list[str], said: str) -> None:
    assert said in of_roofline(share, ops=ops)


def test_a_column_of_shares_has_no_product_above_the_roofline() -> None:
    assert share_text(0.5, "linear") == "50 %" and share_text(1.3, "conv") == "130 %"
    assert share_text(3.6, "linear") == share_text(7.9, "conv") == "beyond"


def test_sizes_that_are_long_expressions_are_left_out_of_types() -> None:
    long = "f32[batch, 24, 8*floordiv(height_of_an_image+31, 32), 8*floordiv(width_of_an_image+31, 32)]"
    assert short_type(f"x {long} y") == "x f32[batch, 24, …, …] y"
    assert short_type("f32[b, 4, 2*s, s+1]") == "f32[b, 4, 2*s, s+1]"


def test_kernels_are_called_by_what_they_are_around() -> None:
    """A region around a product or a reduction says so; the kernels that decide the time say what bounds them."""
    x, w = input("x", f32[64, 256]), param("w", f32[256, 256])
    y = ops.sinh(ops.exp(x @ w) * 2.0)
    told = explain(Graph.of(y), without=["linear"])
    assert [k.title for k in told.kernels if k.phase == "run"] == ["matmul + 3 steps"]
    (bound,) = [line for line in str(told).splitlines() if line.startswith("BOUND")]
    assert bound.startswith("BOUND   100 %   matmul + 3 steps by arithmetic")


def test_the_inside_of_a_loop_is_told() -> None:
    h, xs, w = input("h", f32[4, 64]), input("xs", f32[100, 4, 64]), param("w", f32[64, 64])

    def step(state: Value, x: Value, w: Value) -> tuple[Value, Value]:
        new = ops.tanh(state @ w + x)
        return new, new

    report = explain(Graph.of(ops.scan(step, [h], [xs], captures=[w]).outputs[0]))
    (loop,) = [k for k in report.kernels if k.op == "scan"]
    assert loop.inside and "matmul" in loop.inside[0]
    assert f"inside: {loop.inside[0]}" in str(report) and "BOUND" not in str(report)
