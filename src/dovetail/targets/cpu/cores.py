"""What the operating system says of the processor: how many threads this process may use, and the data caches."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from dovetail.kernels.device import Caches


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
def data_caches(root: Path = Path("/")) -> Caches:
    """The data caches of the first core; what the system does not tell is as in `Caches`."""
    sizes: dict[str, int] = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                sizes[f"l{level}"] = int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1:], 0)
                sizes["line"] = int((index / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue
    return Caches(**{name: size for name, size in sizes.items() if name in ("l1", "l2", "l3", "line") and size})


@cache
def arm_features(info: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Features of an ARM processor that the kernel lists and LLVM does not ask for, as LLVM names them."""
    try:
        lines = info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    listed = next((line.partition(":")[2].split() for line in lines if line.startswith("Features")), list[str]())
    return tuple(
        [name for word, name in (("asimddp", "dotprod"), ("i8mm", "i8mm"), ("bf16", "bf16")) if word in listed]
    )
