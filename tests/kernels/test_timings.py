"""Timings are data: a file for each architecture, every figure of which an estimate reads, and none in code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

import dovetail
from benchmarks.cuda import fit_timings
from dovetail.ir.dtype import f32
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.fma_tile_choice import fma_tile_of
from dovetail.kernels.gpu.gemm.tile import PIPELINED_TILES, split_of
from dovetail.kernels.gpu.gemm.tile_cost import Work
from dovetail.kernels.matrix_instruction import MMA_F16
from dovetail.kernels.timings.record import FOLDER, GpuTimings, read, timings_of
from dovetail.targets.cuda.driver.architectures import ARCHITECTURES, H200

SRC = Path(dovetail.__file__).parent
ROOMS = ("kernels/gpu", "kernels/loops", "targets/gpu", "targets/cuda")
FILES = sorted([path for room in ROOMS for path in (SRC / room).rglob("*.py")])
_TIMED = re.compile(r"CYCLES|LATENCY|HERTZ|CLOCK|BANDWIDTH|FLOPS|PER_SECOND")
_POLICIES = {"MOST_CYCLES", "_CLOCK_KHZ", "_MEMORY_CLOCK_KHZ", "CLOCK"}
"""Limits, numbers of attributes and an instruction, which no card decides."""


def _tables() -> Iterator[tuple[str, str]]:
    for table in fields(GpuTimings):
        record = getattr(timings_of("sm_90a"), table.name)
        if is_dataclass(record):
            yield from ((table.name, figure.name) for figure in fields(record))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_has_figures_that_say_where_they_are_from(architecture: str) -> None:
    name = architecture.removesuffix("a")
    own = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    timings = timings_of(architecture)
    assert bool(timings.fitted) == (name == "sm_90") == ("inherits" not in own)


def test_an_architecture_changes_what_it_inherits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in FOLDER.glob("*.toml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "sm_89.toml").write_text('inherits = "sm_90"\nfitted = "an L4"\n[gemm]\nstep = 41\n', encoding="utf-8")
    monkeypatch.setattr("dovetail.kernels.timings.record.FOLDER", tmp_path)
    found, hopper = read("sm_89"), read("sm_90")
    assert found["fitted"] == "an L4" and found["gemm"] == hopper["gemm"] | {"step": 41}
    assert found["fma"] == hopper["fma"]


@pytest.mark.exhaustive
def test_every_figure_is_read() -> None:
    """By its name, in an estimate: a figure that nothing reads would be fitted in vain."""
    names = {
        node.attr for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
    }
    assert not [figure for figure in _tables() if figure[1] not in names and figure != ("card", "name")]


@pytest.mark.slow
def test_no_figure_is_a_constant_of_a_module() -> None:
    found: list[str] = []
    for path in FILES:
        for statement in ast.parse(path.read_text()).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
            found += [f"{path.name}: {n}" for n in names if _TIMED.search(n) and n not in _POLICIES]
    assert not found


def test_other_figures_choose_other_tiles() -> None:
    """Those of the card take the place of those of its architecture."""
    slow = replace(H200, measured=replace(H200.timings, gemm=replace(H200.timings.gemm, sum_launch=1e9)))
    assert split_of(1, 64, 64, 8192, H200, MMA_F16)[1] > split_of(1, 64, 64, 8192, slow, MMA_F16)[1] == 1


@pytest.mark.parametrize("table", ["gemm", "fma"])
def test_the_script_finds_the_figures_of_a_card(table: str) -> None:
    """Times of a card whose figures are others: estimates by what the script fits are theirs."""
    name, truth = ("warpgroup_products", 1024.0) if table == "gemm" else ("pace", 2.0)
    card = fit_timings.with_figures(H200, table, {name: truth})

    def sample(m: int, k: int, n: int) -> fit_timings.Sample:
        def estimate(device: GpuDevice) -> float:
            if table == "fma":
                return fma_tile_of(1, m, n, k, 1, f32, device).cycles
            return Work.of(1, m, n, 1, device).product_cycles(PIPELINED_TILES[0], k)

        return fit_timings.Sample("", estimate(card), estimate)

    samples = [sample(*sizes) for sizes in fit_timings.GEMMS]
    found = fit_timings.fitted(samples, H200, table)
    assert fit_timings.error_of(samples, fit_timings.with_figures(H200, table, found)) < 0.02
    assert fit_timings.error_of(samples, H200) > 0.1
