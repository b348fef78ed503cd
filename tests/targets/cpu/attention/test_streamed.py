"""Few queries with keys and values in the order of memory: against float64, and what is prefetched."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.few import streamed_scores_function, streamed_values_function
from dovetail.targets.cpu.attention.functions import Shared
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.jit import compile_text

NEON = CpuDevice(128, 32, ("fma_by_lane",), emulated=True)
LANES, KEYS = 4, 11
WIDTHS = (3, 4, 16, 24, 50, 64, 128)


def call(shared: Shared, *given: Array | int) -> None:
    function, signature = shared
    code = compile_text(function.text)
    words = [x if isinstance(x, int) else x.ctypes.data for x in given]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(words))(code.address(signature.name))(*words)


def padded(x: Array) -> Array:
    """Rows with zeros up to whole vectors, at 16 bytes."""
    rows, width = x.shape
    room = np.zeros(rows * (-(-width // LANES) * LANES) + 4, np.float32)
    found = room[-room.ctypes.data % 16 // 4 :][: len(room) - 4].reshape(rows, -1)
    found[:, :width] = x
    return found


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("d", WIDTHS)
def test_scores(d: int) -> None:
    q, k = normal(3, d), normal(LANES, d + 5)
    found: list[Array] = []
    for rows in (1, 3):
        s = padded(np.zeros((rows, ATTENTION.few_keys), np.float32))
        call(streamed_scores_function(NEON, d, rows, "float", prefetches=True), padded(q[:rows]), k, k.strides[0], s)
        wanted = q[:rows].astype(np.float64) @ k[:, :d].T
        assert np.abs(s[:, :LANES] - wanted).max() <= 1e-6 * d
        found.append(s[0, :LANES].copy())
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 8, KEYS])
@pytest.mark.parametrize("dv", WIDTHS)
def test_values(dv: int, count: int) -> None:
    p, v, o = normal(3, ATTENTION.few_keys), normal(KEYS, dv + 5), normal(3, dv)
    old = np.array([0.5, 0.25, 2.0], np.float32)
    found: list[Array] = []
    for rows in (1, 3):
        sums = padded(o[:rows])
        given = (padded(p[:rows]), v, v.strides[0], count, sums, old)
        call(streamed_values_function(NEON, dv, rows, "float", prefetches=True), *given)
        wanted = o[:rows] * old[:rows, None] + p[:rows, :count].astype(np.float64) @ v[:count, :dv]
        assert np.abs(sums[:, :dv] - wanted).max() <= 1e-5
        found.append(sums[0].copy())
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("d", [16, 24, 64, 128])
def test_each_line_of_a_group_is_prefetched_once(d: int) -> None:
    parts = LANES if d // LANES % LANES == 0 else 1
    lines = LANES * -(-4 * d // NEON.caches.line)
    for make in (streamed_scores_function, streamed_values_function):
        assert make(NEON, d, 2, "float", prefetches=True)[0].text.count("call void @llvm.prefetch") * parts == lines
        assert "call void @llvm.prefetch" not in make(NEON, d, 2, "float", prefetches=False)[0].text
