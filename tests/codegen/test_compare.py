"""Generated code of two trees is compared by what a kernel is: its name and the order of processes do not count."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dovetail import Graph, ops
from dovetail.ir.dtype import f32
from dovetail.ir.leaf import input
from tests.codegen.cases import Case
from tests.codegen.compare import GROUPS, ROOT, Code, Difference
from tests.codegen.dump import DEVICES, Dumper
from tests.codegen.families import family_of


def scaled(factor: float, *, sorted_too: bool = False) -> Graph:
    x = input("x", f32[5, 70])
    found = {"y": ops.exp(x * factor)}
    return Graph.of(found | ({"z": ops.sort(x)[0]} if sorted_too else {}))


def written(folder: Path, device: str, *cases: Case) -> Code:
    dumper = Dumper([device])
    for case in cases:
        dumper.add(case)
    dumper.write(folder)
    return Code(folder / f"{device}.zip")


def case(factor: float, name: str = "scaled", **options: Any) -> Case:
    return Case(name, partial(scaled, factor, **options))


def lines(found: Difference, device: str) -> Sequence[str]:
    return list(found.lines(device))


def test_every_device_is_compared() -> None:
    assert [device for group in GROUPS for device in group] == [*DEVICES]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["avx2", "sm_80"])
def test_what_differs_is_named(device: str, tmp_path: Path) -> None:
    before = written(tmp_path / "before", device, case(2.0), case(2.0, "same"))
    again = written(tmp_path / "again", device, case(2.0), case(2.0, "same"), case(3.0, "more"))
    found = Difference(before, again)
    assert not found and found.more == ["more"]
    assert lines(found, device) == [f"{device}: 1 kernels of 2 graphs, equal"]
    now = written(tmp_path / "now", device, case(3.0), case(2.0, "same"))
    found = Difference(before, now)
    assert found and lines(found, device)[:2] == [f"{device}: 2 kernels of 2 graphs, differ", "  map: 1 new"]
    now = written(tmp_path / "both", device, case(3.0), case(3.0, "same"))
    found = Difference(before, now)
    assert found and "  map: 1 changed" in lines(found, device) and "    map of scaled" in lines(found, device)
    assert any(line.startswith("+") and "fmul" in line for line in found.diffs(device, 1))
    assert Difference(before, now, only="map") and not Difference(before, now, only="gemm")


def test_other_launches_are_told(tmp_path: Path) -> None:
    before = written(tmp_path / "before", "avx2", case(2.0))
    now = written(tmp_path / "now", "avx2", case(2.0, sorted_too=True))
    told = "\n".join(lines(Difference(before, now), "avx2"))
    assert "  sort: 1 new" in told and "  scaled: 1 -> 2 launches\n    map\n    sort map" in told


def test_a_graph_that_fails_is_one_of_the_differences(tmp_path: Path) -> None:
    def fails() -> Graph:
        raise ValueError("no such graph")

    before, now = written(tmp_path / "a", "avx2", case(2.0)), written(tmp_path / "b", "avx2", Case("scaled", fails))
    assert "    ValueError: no such graph" in lines(Difference(before, now), "avx2")


def test_kernels_have_the_family_of_what_they_are() -> None:
    families = {
        "contract_sum": "gemm",
        "attend_back_0123456789abcdef0123": "attention backward",
        "attend_few_scores": "attention",
        "tile.8.4.3.bias.relu": "conv",
        "depth_lay.8.1": "conv",
        "floats.row.32.0": "blocks",
        "resident": "persistent",
        "gather": "gather",
        "gather.8": "conv",
        "unheard of": "other",
    }
    assert {name: family_of(name) for name in families} == families


@pytest.mark.exhaustive
def test_code_depends_on_no_process(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        options = ["--graphs", "gemm:normed_*", "--devices", "avx512,sm_90a"]
        command = [sys.executable, "-m", "tests.codegen.dump", str(tmp_path / seed), *options]
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    for device in ("avx512", "sm_90a"):
        one, other = (tmp_path / seed / f"{device}.zip" for seed in ("1", "2"))
        assert one.read_bytes() == other.read_bytes()
