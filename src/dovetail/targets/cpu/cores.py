"""What the operating system says of the processor: how many threads this process may use, and the data caches."""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from pathlib import Path

from dovetail.kernels.device import Caches


def is_arm() -> bool:
    """Whether the processor is an ARM of 64 bits."""
    return platform.machine().lower() in ("aarch64", "arm64")


@cache
def x86_features() -> frozenset[str]:
    """What Linux lists of an x86 processor, in letters and digits alone: avx512vnni, bmi1."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    listed = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), list[str]())
    return frozenset(word.replace("_", "") for word in listed)


def available_threads() -> int:
    """How many threads this process may keep busy: by its affinity, and by the limits of its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota() or allowed))


def _quota() -> int | None:
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            limit, period = file.read().split()
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(1, -(-int(limit) // int(period)))


@cache
def data_caches() -> Caches:
    """The data caches of the first core; what the system does not report is as in `Caches`."""
    sizes = {f"l{level}": size for level, size in enumerate(cache_sizes(), 1) if level <= 3}
    return Caches(**sizes, line=_line_bytes())


def cache_sizes(root: Path = Path("/")) -> tuple[int, ...]:
    """Bytes of the data caches, L1 first; empty where the system does not report them."""
    sizes: dict[int, int] = {}
    for index in _indices(root):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                sizes[int(level)] = int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1:], 0)
        except (OSError, ValueError):
            continue
    return tuple(sizes[level] for level in sorted(sizes))


def _line_bytes() -> int:
    for index in _indices(Path("/")):
        try:
            return int((index / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue
    return Caches().line


def _indices(root: Path) -> list[Path]:
    return sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*"))


def busy_share(root: Path = Path("/"), *, seconds: float = 0.1) -> float:
    """Return the share of all cores that is busy while this process sleeps; 0 where the system does not say."""
    before = _ticks(root)
    time.sleep(seconds)
    after = _ticks(root)
    if before is None or after is None or after[1] <= before[1]:
        return 0.0
    return (after[0] - before[0]) / (after[1] - before[1])


def _ticks(root: Path) -> tuple[int, int] | None:
    """Ticks of all cores in use, and all ticks, since the start of the system."""
    try:
        with (root / "proc/stat").open(encoding="ascii") as file:
            counts = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    if len(counts) < 5:
        return None
    idle = counts[3] + counts[4]
    return sum(counts) - idle, sum(counts)


@cache
def arm_features() -> tuple[str, ...]:
    """Features of an ARM processor that the kernel lists and LLVM does not detect, as LLVM names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    listed = next((line.partition(":")[2].split() for line in lines if line.startswith("Features")), list[str]())
    names = (("asimddp", "dotprod"), ("asimdhp", "fullfp16"), ("i8mm", "i8mm"), ("bf16", "bf16"))
    return tuple([name for word, name in names if word in listed])
