"""The limits of a process, read from folders that are laid out like proc and sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli.machine import machine


def lay_out(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_narrowest_limit_of_a_cgroup_and_those_above_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
        "sys/fs/cgroup/outer/inner/memory.max": "1048576\n",
        "sys/fs/cgroup/outer/memory.max": "2097152\n",
        "proc/cpuinfo": "processor : 0\nmodel name : Fast One\n",
    }
    lay_out(tmp_path, files)
    host = machine(tmp_path)
    assert host.cgroup_cores == 1.5 and host.cgroup_memory_bytes == 1 << 20
    assert host.processor.startswith("Fast One (")


def test_the_first_version_of_cgroups_is_read_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/box\n3:memory:/box\n2:devices:/box\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "4096\n",
    }
    lay_out(tmp_path, files)
    host = machine(tmp_path)
    assert (host.cgroup_cores, host.cgroup_memory_bytes) == (0.5, 4096)


@pytest.mark.parametrize("quota", ["max 100000", "-1 100000", "x y", "", "100000", "100000 0"])
def test_no_limit_is_none(quota: str, tmp_path: Path) -> None:
    huge = str(1 << 62)
    files = {
        "proc/self/cgroup": "0::/\nodd line\n",
        "sys/fs/cgroup/cpu.max": quota,
        "sys/fs/cgroup/memory.max": huge,
    }
    lay_out(tmp_path, files)
    host = machine(tmp_path)
    assert host.cgroup_cores is None and host.cgroup_memory_bytes is None


def test_a_system_that_says_nothing_is_still_described(tmp_path: Path) -> None:
    host = machine(tmp_path)
    assert host.cores >= 1 and host.cores_of_machine >= 1 and host.processor
