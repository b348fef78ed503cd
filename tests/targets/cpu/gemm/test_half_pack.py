"""Compiled packing of weights of two bytes, against NumPy."""

from __future__ import annotations

import contextlib
import threading
from functools import cache

import numpy as np
import pytest

from dovetail.targets.cpu.gemm.halves import pack as half_pack
from dovetail.targets.cpu.gemm.halves.f16 import LARGEST
from dovetail.targets.cpu.gemm.halves.kernel import HEAD
from dovetail.targets.cpu.gemm.halves.pack import fill, largest
from dovetail.targets.cpu.gemm.halves.product import HalfPanels
from dovetail.targets.cpu.jit import Compiled, compile_text


def test_rows_become_columns() -> None:
    rows = np.arange(48 * 40, dtype=np.uint16).reshape(48, 40)
    panels = np.zeros((3, 40, 20), np.uint16)
    assert fill(panels[:, :, 2:18], rows)
    assert np.array_equal(panels[:, :, 2:18], rows.reshape(3, 16, 40).transpose(0, 2, 1))
    assert not panels[:, :, :2].any() and not panels[:, :, 18:].any()


@pytest.mark.parametrize("powers", [(-9, 6), (-24, 16), (-9, 30)])
def test_rows_are_scaled(powers: tuple[int, int]) -> None:
    """Subnormal numbers, and results that are, are rounded as NumPy rounds them; f16 has not all of these factors."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((16, 64)) * 10.0 ** rng.integers(-7, 3, (16, 1))).astype(np.float16)
    factors = np.ldexp(np.float32(1), np.r_[powers[0], rng.integers(*powers, 14), powers[1] - 1])
    panels = np.zeros((1, 64, 16), np.uint16)
    assert fill(panels, rows.view(np.uint16), factors)
    with np.errstate(over="ignore"):
        wanted = (rows * factors[:, None]).astype(np.float16)
    assert panels[0].tobytes() == np.ascontiguousarray(wanted.view(np.uint16).T).tobytes()


def test_threads_that_come_first_together_share_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait in the compiler if they may: one would keep an address of the other's code, which is freed."""
    compiled: list[Compiled] = []
    together = threading.Barrier(2)

    def slow(text: str) -> Compiled:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)
        compiled.append(compile_text(text))
        return compiled[-1]

    monkeypatch.setattr(half_pack, "compile_text", slow)
    for name in ("_code", "_compiled_function"):
        monkeypatch.setattr(half_pack, name, cache(getattr(half_pack, name).__wrapped__))
    rows, found = np.arange(256, dtype=np.uint16).reshape(16, 16), np.zeros((2, 1, 16, 16), np.uint16)
    threads = [threading.Thread(target=fill, args=(panels, rows)) for panels in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1 and np.array_equal(found[0, 0], rows.T) and np.array_equal(found[1, 0], rows.T)


def test_the_largest_magnitude_of_a_row() -> None:
    rows = np.array([[1, -3, 2], [0, -0.0, 0], [65504, np.inf, 1]], np.float16)
    assert largest(rows.view(np.uint16)).view(np.float16).tolist() == [3, 0, np.inf]


@pytest.mark.parametrize("shape", [(12, 64), (16, 60), (0, 64), (16, 0)])
def test_other_shapes_are_left_to_numpy(shape: tuple[int, int]) -> None:
    assert not fill(np.zeros((1, shape[1], shape[0]), np.uint16), np.zeros(shape, np.uint16))


@pytest.mark.parametrize("deep", [64, 36])
@pytest.mark.parametrize("sizes", [(300,), (5, 40, 255)])
def test_scaled_panels_hold_every_weight(sizes: tuple[int, ...], deep: int) -> None:
    """Each column times its power is the weight again, no column is larger than 128, and the rest of a panel is 0."""
    rng = np.random.default_rng(1)
    parts = [(rng.standard_normal((size, deep)) * 100).astype(np.float16) for size in sizes]
    whole = HalfPanels(((0, 0),), sum(sizes), (len(sizes),), 16, is_scaled=True)(*parts)
    powers = whole[:, :HEAD].view(np.float32)
    panels = whole[:, HEAD:].view(np.float16).reshape(len(whole), deep, 16)
    assert np.abs(panels).max() <= LARGEST
    columns = (panels.astype(np.float32) * powers[:, None]).transpose(0, 2, 1).reshape(-1, deep)
    assert np.array_equal(columns[: sum(sizes)], np.concatenate(parts).astype(np.float32))
    assert not columns[sum(sizes) :].any()
