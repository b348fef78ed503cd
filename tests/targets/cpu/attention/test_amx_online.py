"""Attention for many queries on tiles of AMX, which fast mode has: as plain vector code, against float64."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import dovetail
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.attention import pack_kv
from dovetail.targets.cpu.attention.amx import (
    configure_function,
    pair_weights_function,
    release_function,
    tile_keys_function,
    tile_results_function,
    tile_scores_function,
    tile_values_function,
)
from dovetail.targets.cpu.attention.policy import ATTENTION
from tests.kernels.machines import code_for
from tests.targets.cpu.attention.test_half_online import alone, feeds, graph, mean_error, wanted
from tests.targets.cpu.gemm.test_amx import DEVICE, PLAIN, SAPPHIRE_RAPIDS, kernels

EMITTED = CpuDevice(512, 32, ("amx_bf16",))


@pytest.fixture(autouse=True)
def _on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: DEVICE)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "dv", "queries", "keys"), [(64, 32, 37, 100), (32, 64, 5, 7), (32, 32, 33, 129)])
@pytest.mark.parametrize("kept", ["none", "causal", "every third"])
def test_results_are_near(d: int, dv: int, queries: int, keys: int, kept: str) -> None:
    """Whole blocks of keys are seen, or hidden, or parts of them; the last keys fill no tile."""
    given, row, key = feeds(d, dv, queries, keys), np.arange(queries)[:, None], np.arange(keys)
    keep = {"causal": key <= row + keys - queries, "every third": (key + row) % 3 == 0}.get(kept)
    how = {} if keep is None else {"kept": True, "fill": -np.inf}
    if keep is not None:
        given["keep"] = keep
    assert 1e-3 < mean_error(graph(d, dv, **how), given, wanted(given, keep)) < 5e-3


@pytest.mark.slow
def test_positions_hide_keys_and_heads_are_packed_bit_by_bit() -> None:
    given, row = feeds(32, 32, 70, 70), np.arange(70)
    found = mean_error(graph(32, 32, causal=True, fill=-np.inf), given, wanted(given, row <= row[:, None]))
    assert 1e-3 < found < 5e-3


@pytest.mark.slow
def test_keys_that_no_room_is_left_for_are_packed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    given = feeds(32, 32, 20, 150)
    monkeypatch.setattr(pack_kv, "ATTENTION", replace(ATTENTION, packed_bytes=64 * 2 * (32 + 32)))
    assert 1e-3 < mean_error(graph(32, 32), given, wanted(given)) < 5e-3


@pytest.mark.slow
def test_scores_that_rise_from_block_to_block() -> None:
    """Much, so that sums are scaled, and little, so that they are not; queries and keys have few bits."""
    given = feeds(32, 32, 5, 320)
    given["q"][:] = [[0.0], [0.25], [0.5], [1.0], [-1.0]]
    given["k"][:] = np.repeat([0.0, 1.0, 1.25, 4.0, 4.0], 64)[:, None]
    assert 1e-4 < mean_error(graph(32, 32), given, wanted(given)) < 5e-3


@pytest.mark.slow
def test_a_report_tells_what_is_rounded() -> None:
    report = dovetail.compile(graph(32, 32), threads=1, precision="fast").report
    assert "with more than 4 queries both factors to bf16" in str(report)
    assert "bf16" not in str(dovetail.compile(graph(32, 32), threads=1).report)


def test_one_block_of_queries_whose_keys_no_others_share() -> None:
    assert 1e-3 < mean_error(*alone(32)) < 5e-3


@pytest.mark.slow
def test_exact_mode_and_few_queries_stay_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    given = feeds(32, 32, 40, 70)
    few = {**given, "q": given["q"][:, :, :4]}
    assert mean_error(graph(32, 32), few, wanted(few)) < 1e-6
    found = dovetail.compile(graph(32, 32), threads=1).run(given)["y"]
    monkeypatch.setattr(backend, "host_device", lambda: PLAIN)
    assert found.tobytes() == dovetail.compile(graph(32, 32), threads=1).run(given)["y"].tobytes()


def test_tiles_are_configured_and_released() -> None:
    (job,) = kernels(dovetail.compile(graph(32, 32), threads=1, precision="fast"))
    called = re.findall(r"call void @amx\.(configure|scores|weights|results|release)_", str(job.kernel))
    assert called == ["configure", "scores", "weights", "results", "release"]
    codes = [
        code_for(SAPPHIRE_RAPIDS, function[0].text, optimize=False)
        for function in (
            configure_function(emulated=False), tile_scores_function(128, emulated=False),
            tile_results_function(128, 128, 64, emulated=False), release_function(emulated=False),
        )
    ]  # fmt: skip
    assert [code.count("ldtilecfg") for code in codes] == [1, 0, 0, 0]
    assert [code.count("tilerelease") for code in codes] == [0, 0, 0, 1]
    assert [code.count("tdpbf16ps") for code in codes] == [0, 4, 4, 0]


@pytest.mark.slow
def test_numbers_are_rounded_by_one_instruction() -> None:
    for function in (
        pair_weights_function(EMITTED, 64, 128, twos=True), tile_keys_function(EMITTED, 128),
        tile_values_function(EMITTED, 128),
    ):  # fmt: skip
        code = code_for(SAPPHIRE_RAPIDS, function[0].text, optimize=False)
        assert "vcvtne2ps2bf16" in code and "call" not in code
