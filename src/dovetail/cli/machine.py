"""The machine as this process may use it: cores by affinity and cgroup, memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """What a process may use. None where the system does not say, or sets no limit."""

    system: str
    processor: str
    cores_of_machine: int
    cores: int
    """Cores that the process may be scheduled on."""
    cgroup_cores: float | None
    memory_bytes: int | None
    cgroup_memory_bytes: int | None


def machine(root: Path = Path("/")) -> Host:
    """The host; `root` is where proc and sys are looked for."""
    groups = _cgroups(root)
    limits = [limit for g in groups if (limit := _core_limit(g)) is not None]
    memories = [limit for g in groups if (limit := _memory_limit(g)) is not None]
    total = _memory()
    memory = min(memories, default=None)
    return Host(
        system=f"{platform.system()} {platform.release()}".strip(),
        processor=_processor(root),
        cores_of_machine=os.cpu_count() or 1,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cgroup_cores=min(limits, default=None),
        memory_bytes=total,
        # A limit above what there is limits nothing.
        cgroup_memory_bytes=memory if memory is not None and (total is None or memory < total) else None,
    )


def _processor(root: Path) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "model name":
            return f"{value.strip()} ({platform.machine()})"
    return platform.processor() or platform.machine() or "an unknown processor"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroups(root: Path) -> list[Path]:
    """The folders of the cgroup of this process and of all above it, version 2 and 1."""
    top = root / "sys/fs/cgroup"
    found: dict[Path, None] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(",") if controllers else [""]:
            if controller not in ("", "cpu", "memory"):
                continue
            base = top / controller if controller else top
            parts = [p for p in path.split("/") if p not in ("", ".", "..")]
            for depth in range(len(parts), -1, -1):
                found[base.joinpath(*parts[:depth])] = None
    return list(found)


def _core_limit(group: Path) -> float | None:
    quota, _, period = _read(group / "cpu.max").partition(" ")
    if not quota:
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
    try:
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None
    except ValueError:
        return None


def _memory_limit(group: Path) -> int | None:
    text = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
    return int(text) if text.isascii() and text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
