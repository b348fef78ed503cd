"""The logger "dovetail": what phases took, for those who set its level."""

from __future__ import annotations

import logging

import pytest

from dovetail import Graph, compile, input
from dovetail.dtypes import f32
from dovetail.progress import notice


def test_phases_and_notices_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    graph = Graph.of(input("x", f32[4]) + 1.0)
    compile(graph, target="reference", cache="off")
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "dovetail"):
        compile(graph, target="reference", cache="off")
        notice("because of a test")
    said = [record.getMessage() for record in caplog.records if record.name == "dovetail"]
    assert any(words.startswith("plan took ") for words in said) and said[-1] == "because of a test"
