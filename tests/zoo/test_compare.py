"""Runners in turns, the table of a model, and the steps that may run on the host."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from zoo import compare, table
from zoo.compare import Times, compared
from zoo.findings import Findings, as_dict, from_dict
from zoo.host_steps import NAMED, unnamed
from zoo.judge import Verdict


def test_runners_take_turns_and_a_doubtful_ratio_gets_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "PAUSE", 0.0)
    monkeypatch.setattr(compare, "TURN_SECONDS", 0.0)
    ran: list[str] = []
    clear = compared(lambda: ran.append("ours"), lambda: (ran.append("theirs"), time.sleep(0.002)))
    runs = 1 + compare.LEAST_RUNS
    assert ran == (["ours"] * runs + ["theirs"] * runs) * compare.TURNS
    assert clear.ratio > 1 and clear.peer_seconds >= 0.002
    ran.clear()
    compared(lambda: (ran.append("ours"), time.sleep(0.002)), lambda: ran.append("theirs"))
    assert len(ran) == 2 * runs * compare.MOST_TURNS


def test_what_fails_a_model() -> None:
    fast, slow = Times(1.0, 2.0, 1.0, 2.0), Times(1.0, 0.89, 1.0, 1.0)
    good, bad = Verdict("y", 1e-7, 1e-7, 1e-3), Verdict("y", 1e-4, 1e-6, 1e-3)
    assert Findings("m", verdicts=(good,), times=fast).passed
    for findings, verdict in (
        (Findings("m", "it does not load"), "ERROR"),
        (Findings("m", verdicts=(good, bad), times=fast), "WRONG"),
        (Findings("m", verdicts=(good,), times=slow), "CLIFF"),
        (Findings("m", verdicts=(bad,), times=slow, unnamed=("det",)), "WRONG CLIFF HOST"),
    ):
        assert not findings.passed and findings.verdict == verdict
        assert verdict in table.line(findings) and as_dict(findings)["verdict"] == verdict
        assert from_dict(json.loads(json.dumps(as_dict(findings)))) == findings


def test_the_page_has_a_line_for_each_model_and_each_reason() -> None:
    good = Verdict("y", 1e-7, 1e-7, 1e-3)
    found = [Findings("one", verdicts=(good,), times=Times(1.0, 2.0, 1.0, 2.0)), Findings("two", "it does not load")]
    page = table.page(found, "a machine", 2, ["three"])
    assert "## Not judged yet\n\nthree." in page
    assert "| one | 1000.000 | 2000.000 | 2.00 |" in page and "- two: it does not load" in page
    assert all(f"| `{op}` |" in page for op in NAMED)
    assert "2 models: 1 passed, 1 do not run" in page


def test_a_step_on_the_host_needs_a_reason() -> None:
    x = input("x", f32[3, 3])
    program = dovetail.compile(Graph.of(ops.det(x)), target="cpu")
    assert set(unnamed(program.profile({"x": np.eye(3, dtype=np.float32)}, runs=1))) == {"det"}


def test_reasons_are_of_ops_that_exist() -> None:
    named = {op.name for op in ops.ALL}
    assert all(name in named and reason for name, reason in NAMED.items())
