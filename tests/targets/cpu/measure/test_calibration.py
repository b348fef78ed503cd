"""Figures of the host: kept, read back, and never believed blindly. No test asserts a speed."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.declare.machine import Machine
from dovetail.ir.dtype import i8
from dovetail.settings import Settings
from dovetail.targets.cpu.cores import cache_sizes
from dovetail.targets.cpu.measure import bandwidth, calibration, peak
from dovetail.targets.cpu.measure.bandwidth import BandwidthMeter
from dovetail.targets.cpu.measure.calibration import (
    BUILT_IN,
    Figures,
    HostCalibration,
    calibrate,
    ignored,
    learn,
    machine_of,
    stored,
)
from dovetail.targets.cpu.measure.described import Cores
from dovetail.targets.cpu.measure.peak import Limits

pytestmark = pytest.mark.serial  # it measures the machine

ONE = Figures(1, 1e10, 1e9, ((1000, 8e9, 4e9), (10_000, 2e9, 1e9)), 1e-7)
FOUR = Figures(4, 4e10, 3e9, ((4000, 32e9, 6e9), (10_000, 5e9, 4e9)), 4e-7)
MADE = HostCalibration("a host", "2030-01-01 00:00", "by hand", (ONE, FOUR))


class _Meter:
    """Instead of the one that takes its time: a machine that others use in these shares of their time."""

    busy = (0.0,)
    waits = 0.0
    """The share of the time in which its threads wait for a core."""
    shared = False
    """Whether all threads have one core together."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.rounds = 0
        self.lost = self.waits
        self.best = self.clear = Limits(threads, 0.0, 0.0)

    def measure(self) -> Limits:
        left = 1 - self.busy[self.rounds % len(self.busy)]
        self.rounds += 1
        cores = 1 if self.shared else self.threads
        self.clear = Limits(self.threads, left * cores * 1e10, left * 1e9, left * cores * 4e10)
        return self.clear


class _Bandwidth:
    """Instead of the one that reads memory: by the bytes of a block, far blocks slower than near ones."""

    odd = 1.0
    """How much faster blocks larger than 16 KiB are read than they should be."""
    step = 1e-6

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def read(self, bytes: int) -> float:
        return self.threads * (4e11 / bytes**0.3) * (self.odd if bytes > 1 << 14 else 1.0)

    def passed(self, bytes: int) -> float:
        return self.threads * 1e11 / bytes**0.3

    def dispatch(self) -> float:
        return self.step


def _described(threads: int) -> Machine:
    return replace(BUILT_IN, flops_per_second=threads * 1.2e10, source="described by the processor")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("DOVETAIL_MACHINE")
    monkeypatch.setattr(calibration, "busy_share", lambda: 0.0)
    monkeypatch.setattr(peak, "Meter", _Meter)
    monkeypatch.setattr(bandwidth, "BandwidthMeter", _Bandwidth)
    monkeypatch.setattr(calibration, "available_threads", lambda: 2)
    monkeypatch.setattr(calibration, "cores", lambda: Cores(3e9))
    monkeypatch.setattr(calibration, "_described", _described)
    monkeypatch.setattr(calibration, "_LARGE", (1 << 20,))
    monkeypatch.setattr(calibration, "cache_sizes", lambda: (1 << 14, 1 << 16))
    return Settings(cache=str(tmp_path / "cache"))


def made_by(settings: Settings) -> HostCalibration:
    found = calibrate(settings)
    assert found.refused == "" and found.calibration is not None
    return found.calibration


def test_nobody_measures_unasked(settings: Settings) -> None:
    assert stored(settings) is None and machine_of(settings).source.startswith("described by the processor")
    assert not Path(settings.cache).exists()


def test_figures_are_kept_for_other_processes(settings: Settings) -> None:
    made = made_by(settings)
    assert stored(settings) == made
    (file,) = Path(settings.cache).iterdir()
    told = json.loads(file.read_text())
    assert told["version"] == 3 and told["date"] and told["how"] and told["host"]
    machine = machine_of(settings)
    assert machine.source == f"measured on {made.date}"
    assert machine.flops_per_second == 2e10 and machine.peak(i8, "contract") == 8e10
    rates = [level.bytes_per_second for level in machine.levels]
    assert rates == sorted(rates, reverse=True) and rates[-1] >= machine.bytes_per_second
    passed = [level.passed_per_second or 0.0 for level in machine.levels]
    assert passed == sorted(passed, reverse=True) and passed[-1] > 0
    assert all(slow <= fast for slow, fast in zip(passed, rates, strict=True))


def test_what_was_measured_is_told_to_the_last_bit() -> None:
    one, two = (Figures(n, 1e10, 1e9, ((1000, 1e9, rate),), 1e-7) for n, rate in ((1, 0.2), (2, 0.9)))
    assert one.levels[0][2] + (two.levels[0][2] - one.levels[0][2]) != 0.9
    for figures, threads in ((one, 1), (two, 2)):
        (level,) = HostCalibration("host", "today", "so", (one, two)).machine(threads).levels
        assert level.passed_per_second == figures.levels[0][2]


def test_without_a_cache_nothing_is_kept(settings: Settings) -> None:
    off = Settings(cache="off")
    found = calibrate(off)
    assert (
        found.calibration is not None
        and found.calibration.figures
        and found.refused == "the cache is switched off"
        and stored(off) is None
    )
    assert machine_of(off).source.startswith("described by the processor")


def test_a_machine_is_measured_until_its_best_was_seen_several_times(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Meter, "busy", (0.4, 0.0, 0.3, 0.2, 0.01, 0.3, 0.02, 0.5))
    made = made_by(settings)
    assert made.is_settled and {one.flops_seen for one in made.figures} == {calibration.ENOUGH}
    assert machine_of(settings).flops_per_second == 2e10


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_jitter_is_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A quiet virtual machine: each round is up to 4 % below the best, some are 10 % below, one is 40 % below."""
    rng = random.Random(seed)
    jitter = [rng.uniform(0, 0.04) if rng.random() < 0.6 else rng.uniform(0, 0.1) for _ in range(8)]
    jitter[rng.randrange(4)] = 0.4
    monkeypatch.setattr(_Meter, "busy", tuple(jitter))
    monkeypatch.setattr(_Meter, "waits", 0.02)
    assert calibrate(settings).refused == ""
    assert 0.9 * 2e10 < machine_of(settings).flops_per_second <= 2e10


@pytest.mark.parametrize("seconds", [0.01, 0.2, 0.5, 1.0, 5.0])
def test_rounds_end_within_the_budget(settings: Settings, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A machine whose rounds never agree is measured until the next round would end too late, by a clock of its own."""
    clock, begun = [100.0], list[float]()

    def measure(meter: _Meter) -> Limits:
        begun.append(clock[0])
        clock[0] += seconds
        meter.clear = Limits(meter.threads, meter.threads * 1e10 * 1.5 ** len(begun), 1e9, 4e10)
        return meter.clear

    monkeypatch.setattr(_Meter, "measure", measure)
    monkeypatch.setattr("dovetail.targets.cpu.measure.calibration.time.perf_counter", lambda: clock[0])
    assert calibrate(settings).refused != ""
    assert clock[0] - 100 <= max(calibration.SECONDS, 2 * seconds) and calibration.SECONDS < 3
    assert len(begun) == 16 or clock[0] - 100 + 2 * seconds > calibration.SECONDS, "it uses what it has"


def test_what_was_seen_too_rarely_is_not_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Meter, "busy", (0.5, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5))
    assert calibrate(settings).refused == "only 1 of 3 rounds came near the peak of 1 thread, 6 GFLOP/s"
    assert stored(settings) is None
    monkeypatch.setattr(_Meter, "busy", (0.0,))
    assert made_by(settings) and machine_of(settings).flops_per_second == 2e10
    # Once it is known what the machine can do, a slower hour changes nothing.
    monkeypatch.setattr(_Meter, "busy", (0.3,))
    assert made_by(settings).is_settled and machine_of(settings).flops_per_second == 2e10


def test_figures_of_a_machine_that_others_use_are_not_kept(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Meter, "waits", 0.3)
    assert calibrate(settings).refused == "others used 30% of the machine"
    monkeypatch.setattr(_Meter, "waits", 0.0)
    monkeypatch.setattr(calibration, "busy_share", lambda: 0.5)
    assert calibrate(settings).refused == "others used 50% of the machine"
    assert stored(settings) is None


IMPLAUSIBLE: list[tuple[str, type, dict[str, Any], str]] = [
    ("no gain of threads", _Meter, {"shared": True}, "10 GFLOP/s with 2 threads, and 10 with 1 thread"),
    ("a third", _Meter, {"busy": (0.7,)}, "3 GFLOP/s with 1 thread, where the processor describes 12"),
    ("far is near", _Bandwidth, {"odd": 4.0}, "70.7 GB/s from blocks of 64 KiB, and 26.8 from blocks of 16 KiB, with"),
    ("steps wait", _Bandwidth, {"step": 3e-3}, "3000 µs for an empty step with 1 thread"),
]


@pytest.mark.parametrize(("_", "meter", "change", "why"), IMPLAUSIBLE, ids=[row[0] for row in IMPLAUSIBLE])
def test_what_no_idle_machine_would_show_is_not_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, _: str, meter: type, change: dict[str, Any], why: str
) -> None:
    """Rounds that agree are not enough: under an even load they agree on what is left of the machine."""
    for name, value in change.items():
        monkeypatch.setattr(meter, name, value)
    assert calibrate(settings).refused.startswith(why)
    assert stored(settings) is None


def test_two_threads_of_one_core_need_not_gain(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "cores", lambda: Cores(3e9, 2))
    monkeypatch.setattr(_Meter, "shared", True)
    assert calibrate(settings).refused == "" and machine_of(settings).flops_per_second == 1e10


def test_a_stored_calibration_that_contradicts_itself_is_ignored(settings: Settings) -> None:
    made = made_by(settings)
    assert ignored(settings) == ""
    (file,) = Path(settings.cache).iterdir()
    told = json.loads(file.read_text())
    told["figures"][1]["flops"] = told["figures"][0]["flops"]
    file.write_text(json.dumps(told))
    calibration._stored.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert stored(settings) is None and machine_of(settings).source.startswith("described by the processor")
    assert ignored(settings) == f"{made.date}: 10 GFLOP/s with 2 threads, and 10 with 1 thread"
    assert made_by(settings) and ignored(settings) == "", "a new one takes its place"


def test_the_same_figures_everywhere_are_asked_for_by_name(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(settings)
    monkeypatch.setenv("DOVETAIL_MACHINE", "built-in")
    assert machine_of(settings) is BUILT_IN


def test_what_others_see_is_taken_over_where_it_is_better(settings: Settings) -> None:
    learn(settings, Limits(1, 1e12, 1e12))
    assert stored(settings) is None, "nobody measured it"
    before = made_by(settings)
    threads = before.figures[-1].threads
    for seen, flops in ((Limits(threads, 9e9, 9e8), 2e10), (Limits(threads, 4e10, 9e8), 4e10)):
        learn(settings, seen)
        known = stored(settings)
        assert known is not None and (known.figures[-1].flops, known.figures[-1].bytes) == (flops, 1e9)
    assert known.figures[-1].flops_seen == 1 and not known.is_settled
    learn(settings, Limits(threads + 7, 1e12, 1e12))
    assert stored(settings) == known


def test_levels_of_other_sizes_are_not_mixed() -> None:
    other = replace(ONE, levels=((2000, 9e9, 9e9), (10_000, 9e9, 9e9)), flops=9e10)
    assert ONE.better(other) is ONE and ONE.better(FOUR) is ONE


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
