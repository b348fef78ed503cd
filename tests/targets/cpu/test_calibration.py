"""Figures of the host: kept, read back, and never believed blindly. No test asserts a speed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dovetail.settings import Settings
from dovetail.targets.cpu import calibration
from dovetail.targets.cpu.calibration import BUILT_IN, Calibration, Figures, calibrate, machine_of, stored
from dovetail.targets.cpu.gauge import Gauge, cache_sizes
from dovetail.targets.cpu.limits import Limits

ONE = Figures(1, 1e10, 1e9, ((1000, 8e9), (10_000, 2e9)), 1e-7)
FOUR = Figures(4, 4e10, 3e9, ((4000, 32e9), (10_000, 5e9)), 4e-7)
MADE = Calibration("a host", "2030-01-01 00:00", "by hand", (ONE, FOUR))


class _Meter:
    """Instead of the one that takes its time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def measure(self) -> Limits:
        return Limits(self.threads, 1e10, 1e9)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(calibration, "Meter", _Meter)
    monkeypatch.setattr(calibration, "_LARGE", (1 << 20,))
    monkeypatch.setattr(calibration, "cache_sizes", lambda: (1 << 14, 1 << 16))
    return Settings(cache=str(tmp_path / "cache"))


def test_nobody_measures_unasked(settings: Settings) -> None:
    assert stored(settings) is None and machine_of(settings) is BUILT_IN
    assert not Path(settings.cache).exists()


def test_figures_are_kept_for_other_processes(settings: Settings) -> None:
    made = calibrate(settings)
    assert stored(settings) == made
    (file,) = Path(settings.cache).iterdir()
    told = json.loads(file.read_text())
    assert told["version"] == 1 and told["date"] and told["how"] and told["host"]
    machine = machine_of(settings)
    assert machine.source == f"measured on {made.date}"
    assert machine.flops_per_second == 1e10
    rates = [level.bytes_per_second for level in machine.levels]
    assert rates == sorted(rates, reverse=True) and rates[-1] >= machine.bytes_per_second


def test_without_a_cache_nothing_is_kept(settings: Settings) -> None:
    off = Settings(cache="off")
    assert calibrate(off).figures and stored(off) is None and machine_of(off) is BUILT_IN


WRONG: list[dict[str, Any]] = [
    {"version": 2},
    {"figures": []},
    {"figures": [{"threads": 1}]},
    {"figures": [{"threads": 1, "flops": -1.0, "bytes": 1.0, "levels": [], "dispatch": 1.0}]},
    {"figures": [{"threads": 1, "flops": 1e999, "bytes": 1.0, "levels": [], "dispatch": 1.0}]},
    {"figures": "many"},
]


@pytest.mark.parametrize("change", WRONG)
def test_what_is_no_calibration_is_not_read(change: dict[str, Any], settings: Settings) -> None:
    calibrate(settings)
    (file,) = Path(settings.cache).iterdir()
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, **change}))
    calibration._stored.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert machine_of(settings) is BUILT_IN


def test_a_damaged_file_is_not_read(settings: Settings) -> None:
    calibrate(settings)
    (file,) = Path(settings.cache).iterdir()
    for text in (b"", b"{", b"[]", b"\xff\xfe"):
        file.write_bytes(text)
        calibration._stored.cache_clear()  # pyright: ignore[reportPrivateUsage]
        assert stored(settings) is None


def test_between_the_numbers_of_threads_figures_grow_evenly() -> None:
    one, two, many = MADE.machine(1), MADE.machine(2), MADE.machine(64)
    assert (one.flops_per_second, many.flops_per_second) == (1e10, 4e10)
    assert math.isclose(two.flops_per_second, 2e10)
    assert [level.size for level in two.levels] == [2000, 10_000]
    assert math.isclose(two.levels[0].bytes_per_second, 16e9)
    assert one.launch_seconds < two.launch_seconds < many.launch_seconds


def test_the_gauge_counts_what_it_reads() -> None:
    gauge = Gauge(1)
    assert gauge.read(1 << 14) > 0 and gauge.dispatch() > 0


def test_caches_are_what_the_system_tells(tmp_path: Path) -> None:
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "many")]
    ):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert cache_sizes(tmp_path) == (48 << 10, 2 << 20)
    assert cache_sizes(tmp_path / "nothing") == ()
