"""Figures from what a processor says of itself: clock, cores, vectors and caches. No test asserts a speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.declare.cost import Reach
from dovetail.ir.dtype import f32, i8
from dovetail.kernels.device import Caches, CpuDevice
from dovetail.targets.cpu.measure.described import CLOCK, MAIN_MOST, Cores, cores, described

AVX2 = CpuDevice(256, 16, caches=Caches(32 << 10, 1 << 20, 16 << 20))
AVX512 = CpuDevice(512, 32, caches=Caches(48 << 10, 2 << 20, 32 << 20))
NEON = CpuDevice(128, 32, caches=Caches(64 << 10, 1 << 20))


def system(root: Path, *, cpuinfo: str = "", highest: str = "", siblings: str = "") -> Path:
    """A file system that tells this of its processor."""
    cpu = root / "sys/devices/system/cpu/cpu0"
    for path, text in (
        (root / "proc/cpuinfo", cpuinfo),
        (cpu / "cpufreq/cpuinfo_max_freq", highest),
        (cpu / "topology/thread_siblings_list", siblings),
    ):
        if text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root


NAMED = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\ncpu MHz\t\t: 800.123\n"


@pytest.mark.parametrize(
    ("told", "clock"),
    [
        ({}, CLOCK),
        ({"cpuinfo": "BogoMIPS\t: 243.75\nFeatures\t: fp asimd\n"}, CLOCK),
        ({"cpuinfo": NAMED}, 2.2e9),
        ({"cpuinfo": NAMED.replace("800.123", "3100.5")}, 3.1005e9),
        ({"cpuinfo": NAMED, "highest": "3500000\n"}, 3.5e9),
        ({"highest": "nonsense\n"}, CLOCK),
        ({"highest": "0"}, CLOCK),
    ],
)
def test_the_clock_is_what_the_system_tells(told: dict[str, str], clock: float, tmp_path: Path) -> None:
    assert cores(system(tmp_path, **told)).clock == pytest.approx(clock)


@pytest.mark.parametrize(
    ("listed", "count"), [("", 1), ("0\n", 1), ("0-1\n", 2), ("0,64\n", 2), ("0-3", 4), ("x", 1), ("0-x", 1)]
)
def test_threads_that_share_a_core_are_counted(listed: str, count: int, tmp_path: Path) -> None:
    assert cores(system(tmp_path, siblings=listed)).threads_per_core == count


def test_the_peak_is_lanes_by_pipes_by_clock() -> None:
    reach = Reach()
    assert described(AVX2, "skylake", Cores(3e9), 1, reach, 0.3).flops_per_second == pytest.approx(96e9)
    assert described(NEON, "neoverse-n1", Cores(3e9), 2, reach, 0.3).flops_per_second == pytest.approx(96e9)
    assert described(NEON, "neoverse-v1", Cores(3e9), 2, reach, 0.3).flops_per_second == pytest.approx(192e9)
    wide = described(AVX512, "sapphirerapids", Cores(3e9), 1, reach, 0.3).flops_per_second
    assert 0.8 * 192e9 <= wide <= 192e9


def test_two_threads_of_one_core_compute_as_one() -> None:
    alone, both = (described(AVX2, "skylake", Cores(3e9, 2), count, Reach(), 0.3) for count in (1, 2))
    assert both.flops_per_second == alone.flops_per_second
    assert [level.size for level in both.levels] == [level.size for level in alone.levels]


@pytest.mark.parametrize("device", [AVX2, AVX512, NEON])
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_bandwidth_falls_from_level_to_level(device: CpuDevice, threads: int) -> None:
    machine = described(device, "any", Cores(CLOCK), threads, Reach({"conv": 0.5}), 0.3)
    rates = [level.bytes_per_second for level in machine.levels]
    assert rates == sorted(rates, reverse=True) and rates[-1] >= machine.bytes_per_second > 0
    assert all((level.passed_per_second or 0.0) <= level.bytes_per_second for level in machine.levels)
    assert all(level.size for level in machine.levels)
    assert machine.reach.of("conv") == 0.5 and "described by the processor" in machine.source


def test_bytes_have_a_peak_where_an_instruction_multiplies_them() -> None:
    dot = CpuDevice(128, 32, ("int8_dot",), Caches(64 << 10, 1 << 20))
    vnni = CpuDevice(512, 32, ("vnni",), Caches(48 << 10, 2 << 20))
    for device in (dot, vnni):
        machine = described(device, "any", Cores(3e9), 2, Reach(), 0.3)
        for kind in ("contract", "contract.bytes", "conv.bytes"):
            assert machine.peak(i8, kind) == pytest.approx(4 * machine.flops_per_second)
        assert machine.peak(f32, "contract") == machine.peak(i8) == machine.flops_per_second
    assert described(NEON, "any", Cores(3e9), 1, Reach(), 0.3).peaks == ()


@pytest.mark.parametrize("cpu", ["skylake-avx512", "znver4", "neoverse-n1", "neoverse-v2", "apple-m1", "any"])
def test_memory_is_shared_by_cores_and_bounded_by_the_socket(cpu: str) -> None:
    rates = [described(NEON, cpu, Cores(3e9), n, Reach(), 0.3).bytes_per_second for n in (1, 2, 16, 256)]
    assert 1e10 <= rates[0] <= 6e10 and rates == sorted(rates)
    assert rates[1] < 2 * rates[0] and rates[2] < 16 * rates[0] and rates[3] == MAIN_MOST
