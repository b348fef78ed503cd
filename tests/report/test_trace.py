"""Traces: well formed, in order, nested, and safe against names that want out of their strings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.dtypes import f32
from dovetail.errors import LoadError
from dovetail.ir.graph import Builder
from dovetail.ir.origin import scope
from dovetail.report.atomic_write import write_atomically
from dovetail.report.trace import Span, trace_of
from dovetail.runtime.compile import compile

HOSTILE = 'a"}],"x":[{</script>\u2028\n\x00\ud800'


def check_well_formed(told: Mapping[str, Any]) -> None:
    """What the format asks for, and that spans of a track lie one behind or inside the other."""
    open_: dict[tuple[int, int], list[float]] = {}
    last: dict[tuple[int, int], float] = {}
    named: set[tuple[int, int]] = set()
    for event in told["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "args"} <= set(event) and isinstance(event["name"], str)
        track = (event["pid"], event["tid"])
        if event["ph"] == "M":
            named.add(track)
            continue
        assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0
        assert track in named, "a track is named before it is used"
        assert event["ts"] >= last.get(track, 0.0)
        last[track] = event["ts"]
        ends = open_.setdefault(track, [])
        while ends and ends[-1] <= event["ts"] + 1e-6:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + 1e-3, "an event sticks out of the one that it is in"
        ends.append(end)


def traced(name: str) -> dict[str, Any]:
    builder = Builder(lines=False)
    with builder.recording():
        x = builder.input("x", f32[4, 4])
        with scope(name):
            builder.output("y", ops.det(ops.exp(x) @ builder.param("w", f32[4, 4])))
    program = compile(builder.graph(), params={"w": np.eye(4, dtype=np.float32)})
    marks = program.run_marked({"x": np.ones((4, 4), np.float32)})[1]
    first, last = marks[0].begin, marks[-1].end
    phases = [Span("import", first - 5000, first - 3000), Span("bind", first - 3000, first - 10)]
    phases.append(Span("inside", first - 4500, first - 4000))
    report = program.report
    text = trace_of(phases, [(Span("run 1", first, last), marks)], program.plan, report, 2)
    assert text.isascii()
    return json.loads(text)


@pytest.mark.slow
def test_a_trace_is_well_formed() -> None:
    told = traced("block")
    check_well_formed(told)
    steps = [e for e in told["traceEvents"] if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, 0)]
    assert steps[0]["name"] == "run 1" and steps[-1]["name"] == "det"
    (det,) = [e for e in steps if e["name"] == "det"]
    assert det["args"]["on_host"] and det["args"]["where"] == ["block"] and det["args"]["flops"] > 0
    assert {"bytes", "roofline", "nodes", "kernel"} <= set(det["args"])
    names = {e["args"]["name"] for e in told["traceEvents"] if e["name"] == "thread_name"}
    assert {"steps", "host", "thread 0", "thread 1", "phases"} <= names


@pytest.mark.slow
def test_hostile_names_stay_strings() -> None:
    told = traced(HOSTILE)
    check_well_formed(told)
    assert any(HOSTILE in e["args"].get("where", []) for e in told["traceEvents"])


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    place = tmp_path / "trace.json"
    place.write_text("old")
    assert write_atomically(place, "new", "trace") == place and place.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("path", ["", "no/such/folder/x.json", "a\0b", "."])
def test_what_cannot_be_written_is_a_typed_error(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match="the trace cannot be written"):
        write_atomically(path, "text", "trace")
    assert not list(tmp_path.iterdir())
