"""The machine as the processor describes itself: ISA, clock, cores and caches give figures before a measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Level, Machine, Peak, Reach
from dovetail.ir.dtype import i8
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_of

T = TypeVar("T")

CLOCK = 2.6e9
"""Cycles a second of a processor that does not report its clock: servers run at 2.2 to 3.2 GHz under load."""
WIDE_CLOCK = 0.85
"""The share of its clock that a processor keeps under 512-bit multiply-adds."""
PIPES: Mapping[str, int] = MappingProxyType({"neoverse-v": 4, "cortex-x": 4, "apple-m": 4})
"""Multiply-add pipes of cores that have other than two, by the start of LLVM's name."""
L2_BYTES, L3_BYTES = 32, 10
"""Bytes that a core reads from each cache in a cycle, in a long loop."""
MAIN_BYTES = 1.6e10
"""Bytes that one core reads from main memory in a second, where its name is not listed."""
MAIN_BYTES_OF: Mapping[str, float] = MappingProxyType(
    {
        "skylake-avx512": 1.2e10,
        "cascadelake": 1.2e10,
        "icelake-server": 1.3e10,
        "sapphirerapids": 1.4e10,
        "emeraldrapids": 1.4e10,
        "graniterapids": 1.6e10,
        "znver1": 1.6e10,
        "znver2": 2.0e10,
        "znver3": 2.2e10,
        "znver4": 2.8e10,
        "znver5": 3.2e10,
        "neoverse-n1": 1.8e10,
        "neoverse-n2": 2.2e10,
        "neoverse-v": 2.6e10,
        "apple-m": 5.5e10,
    }
)
"""The same by the start of LLVM's name: round figures of published measurements. A core has a number of misses in
flight, and servers with a mesh of many cores take long for each."""
MAIN_SHARED, MAIN_MOST = 0.85, 2.5e11
"""How the bandwidth of main memory grows with cores, as an exponent: they share controllers; and what a socket has."""
TRANSFER, COPY = 0.5, 0.7
"""The share of a cache's bandwidth that tensors have which another core wrote, and which the same core writes and reads
in its own caches."""
ROW_CYCLES = 60
"""Cycles of a result of a reduction, however short its row is: lanes are added up, and what follows waits for it."""
DISPATCH, BARRIER = 4e-7, 6e-7
"""Seconds to start a step on one thread, and what further threads add."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Read what the system reports of the cores."""

    clock: float
    """Cycles a second."""
    threads_per_core: int = 1


@cache
def cores(root: Path = Path("/")) -> Cores:
    """The clock and the threads of a core, as the system reports them."""
    return Cores(_clock(root), _siblings(root))


def described(device: CpuDevice, cpu: str, cores: Cores, threads: int, reach: Reach, overlap: float) -> Machine:
    """The figures of a device with a number of threads."""
    busy = max(1.0, threads / cores.threads_per_core)
    clock = cores.clock * (WIDE_CLOCK if device.vector_bits >= 512 else 1.0)
    pipes = _by_name(PIPES, cpu, 2)
    vector = device.vector_bits // 8
    caches = device.caches
    sizes = (caches.l1 * busy, caches.l2 * busy, float(caches.l3))
    rates = (2 * vector * clock * busy, L2_BYTES * clock * busy, L3_BYTES * clock * busy)
    main = min(_by_name(MAIN_BYTES_OF, cpu, MAIN_BYTES) * busy**MAIN_SHARED, MAIN_MOST)
    handed = (COPY, COPY, 1.0) if busy <= 1 else (TRANSFER, TRANSFER, TRANSFER)
    levels = [
        Level(int(size), max(rate, main), max(rate * share, main))
        for size, rate, share in zip(sizes, rates, handed, strict=True)
        if size
    ]
    return Machine(
        flops_per_second=2 * pipes * device.lanes * clock * busy,
        bytes_per_second=main,
        launch_seconds=DISPATCH + (BARRIER if threads > 1 else 0.0),
        levels=tuple(levels),
        reach=reach,
        peaks=byte_peaks(_bytes_per_cycle(device) * pipes * clock * busy),
        row_seconds=row_seconds(cores, threads),
        overlap=overlap,
        source=f"described by the processor: {threads} {'thread' if threads == 1 else 'threads'} at "
        f"{cores.clock / 1e9:.1f} GHz",
        is_host=True,
    )


def row_seconds(cores: Cores, threads: int) -> float:
    """Return the seconds of a result of a reduction where threads share the rows."""
    return ROW_CYCLES / cores.clock / max(1.0, threads / cores.threads_per_core)


def byte_peaks(per_second: float) -> tuple[Peak, ...]:
    """The peaks of products of bytes, in operations a second; none where a processor has no instruction for them."""
    return tuple([Peak(kind, i8.name, per_second) for kind in ("contract", "conv")]) if per_second else ()


def _bytes_per_cycle(device: CpuDevice) -> int:
    """Multiplications and additions of one dot instruction of bytes: four of each for every lane of 32 bits."""
    tile = byte_tile_of(device)
    return 0 if tile is None or tile.emulated else 2 * 4 * tile.shape.lanes


def _by_name(figures: Mapping[str, T], cpu: str, otherwise: T) -> T:
    return next((figure for start, figure in figures.items() if cpu.startswith(start)), otherwise)


def _clock(root: Path) -> float:
    """The highest clock, else the one in the processor's name, else the present one, else a usual one."""
    highest = _read(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if highest.isdigit() and int(highest):
        return int(highest) * 1e3
    text = _read(root / "proc/cpuinfo")
    named = re.search(r"^model name.*@ *([\d.]+) *GHz", text, re.MULTILINE)
    present = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*(\d+\.?\d*)", text, re.MULTILINE)]
    clocks = [1e6 * mhz for mhz in present] + ([1e9 * float(named[1])] if named else [])
    # An idle core reports a low clock; below 1 GHz none computes.
    return max((clock for clock in clocks if clock >= 1e9), default=CLOCK)


def _siblings(root: Path) -> int:
    """Threads that share a core."""
    listed = _read(root / "sys/devices/system/cpu/cpu0/topology/thread_siblings_list").strip()
    count = 0
    for part in listed.split(",") if listed else ():
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return 1
        count += int(last or first) - int(first) + 1
    return max(1, count)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


__all__ = ["Cores", "byte_peaks", "cores", "described", "row_seconds"]
