"""Models as today's exporters write them: one compile, right at every stored size, and what fuses in it."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.ir.literal import Array
from dovetail.report.report import Report
from tests.golden import Golden
from tests.targets.runtime.registered import unregistered

FOLDER = Path(__file__).parents[2] / "data" / "exporters"
INDEX: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
FILES = [entry["file"] for entry in INDEX]
FUSIONS = "tests/golden/exporters.txt"
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


def summary(file: str, report: Report) -> str:
    """What fuses in a file, and what does not."""
    fused = Counter(f.rule for f in report.fused)
    missed = Counter(f"{m.rule}: {m.reason}" for m in report.missed)
    lines = [f"{file.removesuffix('.onnx')}: {len(report.kernels)} kernels"]
    lines += [f"  {count} × {rule}" for rule, count in sorted(fused.items())]
    lines += [f"  missed {count} × {why}" for why, count in sorted(missed.items())]
    return "\n".join(lines)


@cache
def fusions() -> dict[str, str]:
    """What the golden file says of each file."""
    text = (FOLDER.parents[2] / FUSIONS).read_text(encoding="utf-8")
    return {part.partition(":")[0] + ".onnx": part for part in text.rstrip("\n").split("\n\n")}


@pytest.mark.heavy
@pytest.mark.parametrize("file", FILES)
def test_one_compile_is_right_at_every_stored_size(file: str) -> None:
    program = dovetail.compile(FOLDER / file)
    assert summary(file, program.report) == fusions()[file], f"{FUSIONS} has others: run `make golden`"
    assert not unregistered(program.plan)
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


def test_the_fusions_of_every_file_are_listed(golden: Golden) -> None:
    """The test above compares what is listed with its compile; only `make golden` compiles here."""
    found = fusions() if not golden.rewrite else {f: summary(f, dovetail.explain(FOLDER / f)) for f in FILES}
    golden.file(FUSIONS, "\n\n".join(found[file] for file in FILES) + "\n")
