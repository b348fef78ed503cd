"""Models as today's exporters write them: one compile, right at every stored size."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.ir.literal import Array

FOLDER = Path(__file__).parents[2] / "data" / "exporters"
INDEX: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
FILES = [entry["file"] for entry in INDEX]
TOLERANCE = {"float32": (1e-3, 1e-4), "float16": (2e-2, 3e-2)}


@cache
def runs(file: str) -> dict[str, dict[str, dict[str, Array]]]:
    """Inputs and outputs of every stored run, by run."""
    stored = np.load(FOLDER / file.replace(".onnx", ".npz"))
    found: dict[str, dict[str, dict[str, Array]]] = {}
    for key in stored.files:
        run, side, name = key.split("/", 2)
        found.setdefault(run, {"in": {}, "out": {}})[side][name] = stored[key]
    return found


def entry_of(file: str) -> dict[str, Any]:
    return next(e for e in INDEX if e["file"] == file)


@pytest.mark.parametrize("file", FILES)
def test_one_compile_is_right_at_every_stored_size(file: str) -> None:
    program = dovetail.compile(FOLDER / file)
    rtol, atol = TOLERANCE[entry_of(file)["dtype"]]
    for run, stored in runs(file).items():
        found = program.run(stored["in"])
        assert found.keys() == stored["out"].keys()
        for name, expected in stored["out"].items():
            assert found[name].dtype == expected.dtype
            np.testing.assert_allclose(found[name], expected, rtol=rtol, atol=atol, err_msg=f"{file} {run} {name}")


def test_every_stored_file_is_in_the_index() -> None:
    assert {p.name for p in FOLDER.glob("*.onnx")} == set(FILES)
    assert len(FILES) == 38
