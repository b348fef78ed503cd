"""Figures of the host: kept, read back, and never believed blindly. No test asserts a speed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.settings import Settings
from dovetail.targets.cpu.cores import cache_sizes
from dovetail.targets.cpu.measure import calibration
from dovetail.targets.cpu.measure.bandwidth import BandwidthMeter
from dovetail.targets.cpu.measure.calibration import (
    BUILT_IN,
    Calibration,
    Figures,
    calibrate,
    learn,
    machine_of,
    stored,
)
from dovetail.targets.cpu.measure.peak import Limits

pytestmark = pytest.mark.serial  # it measures the machine

ONE = Figures(1, 1e10, 1e9, ((1000, 8e9, 4e9), (10_000, 2e9, 1e9)), 1e-7)
FOUR = Figures(4, 4e10, 3e9, ((4000, 32e9, 6e9), (10_000, 5e9, 4e9)), 4e-7)
MADE = Calibration("a host", "2030-01-01 00:00", "by hand", (ONE, FOUR))


class _Meter:
    """Instead of the one that takes its time: a machine that others use in these shares of their time."""

    busy = (0.0,)

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.rounds = 0
        self.last = Limits(threads, 0.0, 0.0)

    def measure(self) -> Limits:
        left = 1 - self.busy[self.rounds % len(self.busy)]
        self.rounds += 1
        self.last = Limits(self.threads, left * 1e10, left * 1e9)
        return self.last


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("DOVETAIL_MACHINE")
    monkeypatch.setattr(calibration, "busy_share", lambda: 0.0)
    monkeypatch.setattr(calibration, "Meter", _Meter)
    monkeypatch.setattr(calibration, "_LARGE", (1 << 20,))
    monkeypatch.setattr(calibration, "cache_sizes", lambda: (1 << 14, 1 << 16))
    return Settings(cache=str(tmp_path / "cache"))


def test_nobody_measures_unasked(settings: Settings) -> None:
    assert stored(settings) is None and machine_of(settings).source.startswith("described by the processor")
    assert not Path(settings.cache).exists()


def test_figures_are_kept_for_other_processes(settings: Settings) -> None:
    made = calibrate(settings).made
    assert stored(settings) == made
    (file,) = Path(settings.cache).iterdir()
    told = json.loads(file.read_text())
    assert told["version"] == 2 and told["date"] and told["how"] and told["host"]
    machine = machine_of(settings)
    assert machine.source == f"measured on {made.date}"
    assert machine.flops_per_second == 1e10
    rates = [level.bytes_per_second for level in machine.levels]
    assert rates == sorted(rates, reverse=True) and rates[-1] >= machine.bytes_per_second
    passed = [level.passed_per_second or 0.0 for level in machine.levels]
    assert passed == sorted(passed, reverse=True) and passed[-1] > 0
    assert all(slow <= fast for slow, fast in zip(passed, rates, strict=True))


def test_what_was_measured_is_told_to_the_last_bit() -> None:
    one, two = (Figures(n, 1e10, 1e9, ((1000, 1e9, rate),), 1e-7) for n, rate in ((1, 0.2), (2, 0.9)))
    assert one.levels[0][2] + (two.levels[0][2] - one.levels[0][2]) != 0.9
    for figures, threads in ((one, 1), (two, 2)):
        (level,) = Calibration("host", "today", "so", (one, two)).machine(threads).levels
        assert level.passed_per_second == figures.levels[0][2]


def test_without_a_cache_nothing_is_kept(settings: Settings) -> None:
    off = Settings(cache="off")
    found = calibrate(off)
    assert found.made.figures and found.refused == "the cache is switched off" and stored(off) is None
    assert machine_of(off).source.startswith("described by the processor")


def test_a_busy_machine_is_measured_until_its_best_was_seen_several_times(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Meter, "busy", (0.4, 0.0, 0.3, 0.2, 0.01, 0.3, 0.02, 0.5))
    made = calibrate(settings).made
    assert made.is_settled and {one.seen for one in made.figures} == {calibration.ENOUGH}
    assert machine_of(settings).flops_per_second == 1e10


def test_what_a_busy_machine_showed_is_not_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Meter, "busy", (0.5, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5))
    found = calibrate(settings)
    assert not found.made.is_settled and "rounds of a measurement agreed" in found.refused
    assert stored(settings) is None
    monkeypatch.setattr(_Meter, "busy", (0.0,))
    assert calibrate(settings).refused == "" and machine_of(settings).flops_per_second == 1e10
    # Once it is known what the machine can do, a slower hour changes nothing.
    monkeypatch.setattr(_Meter, "busy", (0.3,))
    assert calibrate(settings).made.is_settled and machine_of(settings).flops_per_second == 1e10


def test_figures_of_a_machine_that_others_use_are_not_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "busy_share", lambda: 0.5)
    assert calibrate(settings).refused == "others used 50% of the machine"
    assert stored(settings) is None


def test_the_same_figures_everywhere_are_asked_for_by_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(settings)
    monkeypatch.setenv("DOVETAIL_MACHINE", "built-in")
    assert machine_of(settings) is BUILT_IN


def test_what_others_see_is_taken_over_where_it_is_better(settings: Settings) -> None:
    learn(settings, Limits(1, 1e12, 1e12))
    assert stored(settings) is None, "nobody measured it"
    before = calibrate(settings).made
    threads = before.figures[-1].threads
    for seen, flops in ((Limits(threads, 9e9, 9e8), 1e10), (Limits(threads, 2e10, 9e8), 2e10)):
        learn(settings, seen)
        known = stored(settings)
        assert known is not None and (known.figures[-1].flops, known.figures[-1].bytes) == (flops, 1e9)
    assert known.figures[-1].seen == 1 and not known.is_settled
    learn(settings, Limits(threads + 7, 1e12, 1e12))
    assert stored(settings) == known


def test_levels_of_other_sizes_are_not_mixed() -> None:
    other = replace(ONE, levels=((2000, 9e9, 9e9), (10_000, 9e9, 9e9)), flops=9e10)
    assert ONE.better(other) is ONE and ONE.better(FOUR) is ONE


WRONG: list[dict[str, Any]] = [
    {"version": 1},
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
    assert machine_of(settings).source.startswith("described by the processor")


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
    assert math.isclose(two.levels[0].passed_per_second or 0.0, 4e9 + 2e9 / 3)
    assert one.launch_seconds < two.launch_seconds < many.launch_seconds


def test_the_gauge_counts_what_it_reads() -> None:
    meter = BandwidthMeter(1)
    assert meter.read(1 << 14) > 0 and meter.dispatch() > 0
    for threads in (1, 2, 3):
        assert BandwidthMeter(threads).passed(1 << 16) > 0


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
