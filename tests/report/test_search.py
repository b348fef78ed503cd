"""What a report says of the search of an e-graph, as data, as JSON and in the summary."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dovetail import Graph
from dovetail.cli.model import graph_of
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.report.json_form import as_json
from dovetail.report.paint import PLAIN, shown
from dovetail.report.report import Report
from dovetail.report.search import SearchEntry
from dovetail.report.search_text import search_lines
from dovetail.report.text import as_text
from dovetail.runtime.compile import explain
from tests.cli.commands import SMALL

ENTRY = SearchEntry(
    classes=1_200,
    nodes=3_400,
    pieces=4,
    solved=2,
    fired={"linear": 3, "swiglu": 5},
    seconds={"greedy": 0.01, "rules": 0.02, "extract": 0.005, "build": 0.001},
    phases={"normalise": 0.004, "fuse": 0.016},
    given_seconds=2e-3,
    greedy_seconds=1e-3,
    chosen_seconds=9e-4,
)


@pytest.fixture(scope="module")
def report() -> Report:
    return explain(graph_of(SMALL["bert"]), target="cpu", engine="egraph")


@pytest.mark.slow
def test_a_report_has_what_the_search_looked_at(report: Report) -> None:
    search = report.search
    assert search is not None
    assert search.nodes >= search.classes > 0
    assert search.fired["attention"] > 0
    assert set(search.seconds) == {"greedy", "rules", "extract", "build"}
    assert {"unfold", "normalise", "recognise", "fuse"} <= set(search.phases)
    assert sum(search.phases.values()) <= search.seconds["rules"]
    assert search.chosen_seconds <= search.greedy_seconds <= search.given_seconds


def test_the_search_is_in_the_json_form(report: Report) -> None:
    told = json.loads(as_json(report))
    assert told["schema_version"] == 1
    found = told["search"]
    assert found["fired"] == dict(report.search.fired) if report.search else found is None
    assert found.keys() == {
        "classes", "nodes", "pieces", "solved", "fired",
        "given_seconds", "greedy_seconds", "chosen_seconds",
    }  # fmt: skip


@pytest.mark.slow
def test_without_a_search_there_is_nothing_to_tell() -> None:
    greedy = explain(graph_of(SMALL["bert"]), target="cpu", engine="greedy")
    assert greedy.search is None and json.loads(as_json(greedy))["search"] is None
    assert search_lines(None) == [] and "SEARCH" not in as_text(greedy)


def test_the_summary_has_the_counts_and_the_three_costs_where_all_is_asked_for(report: Report) -> None:
    assert "SEARCH" not in as_text(replace(report, search=ENTRY))
    text = as_text(replace(report, search=ENTRY), everything=True).split("\n")
    at = next(i for i, row in enumerate(text) if row.startswith("SEARCH"))
    assert text[at : at + 5] == [
        "SEARCH  3,400 nodes in 1,200 classes, 8 applications of 2 rules",
        "        priced alike on every host: 2.000 ms as given, 1.000 ms greedily, 900.0 µs chosen (10 % less)",
        "        took greedy 10.0 ms, rules 20.0 ms, extract 5.0 ms, build 1.0 ms",
        "        phases of rules: normalise 4.0 ms, fuse 16.0 ms",
        "        rules: 5 × swiglu, 3 × linear",
    ]


def test_a_price_of_the_search_is_not_called_a_prediction() -> None:
    """Decisions take the prices of a machine that is the same everywhere; the prediction is that of this host."""
    slow = replace(ENTRY, given_seconds=434.2, greedy_seconds=433.0, chosen_seconds=433.0)
    text = as_text_of(slow)
    assert "priced alike on every host: 434.200 s as given, 433.000 s greedily, 433.000 s chosen\n" in text
    assert "predicted" not in text


def test_an_equal_cost_is_no_gain() -> None:
    assert "1.000 ms greedily, 1.000 ms chosen\n" in as_text_of(replace(ENTRY, chosen_seconds=1e-3))


def as_text_of(search: SearchEntry) -> str:
    """The lines of a search."""
    return shown(search_lines(search), PLAIN)


def test_a_kernel_that_algebra_touched_is_told_by_what_fused() -> None:
    """A gain that moved into joined weights leaves a matmul: its line names the join, not the algebra."""
    x, gain = input("x", f32[256, 256]), param("gain", f32[256])
    both = [(x * gain) @ param(name, f32[256, 16]) for name in "ab"]
    found = explain(Graph.of({"p": both[0], "q": both[1]}), target="cpu", engine="egraph")
    assert {f.rule for f in found.fused} <= {"shared_input_matmul", "linear", "elementwise_region", "region"}
    assert not {f.rule for f in found.fused} & {"scaled_rows"}
