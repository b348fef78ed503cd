"""`dovetail.reports.write_report`: a page from Python, measured where inputs are given."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import library
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param


def shown(place: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', place.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture
def graph() -> dovetail.Graph:
    return dovetail.Graph.of(library.linear(input("x", f32[4, 8]), param("w", f32[8, 3]), act="relu"))


def test_a_page_says_what_the_report_says(graph: dovetail.Graph, tmp_path: Path) -> None:
    place = dovetail.reports.write_report(graph, tmp_path / "page.html")
    source = shown(place)
    assert source["report"]["kernels"][0]["op"] == "linear" and source["report"]["measured"] is None
    assert source["timeline"] is None


@pytest.mark.slow
def test_with_inputs_it_is_run(graph: dovetail.Graph, tmp_path: Path) -> None:
    x, w = np.ones((4, 8), np.float32), np.ones((8, 3), np.float32)
    source = shown(
        dovetail.reports.write_report(graph, tmp_path / "page.html", inputs={"x": x}, params={"w": w}, runs=2)
    )
    assert source["report"]["measured"]["runs"] == 2 and source["timeline"]


def test_a_place_that_is_none(graph: dovetail.Graph, tmp_path: Path) -> None:
    with pytest.raises(dovetail.errors.LoadError, match="the page cannot be written"):
        dovetail.reports.write_report(graph, tmp_path / "missing" / "page.html")
