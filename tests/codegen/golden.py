"""The golden table of generated code: for each device and family how many kernels there are, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from tests.codegen.dump import Dumper

LAUNCHES = "launches"
"""Stands for a family in the line of a device that has the launches of all graphs."""


def table(dumper: Dumper) -> list[str]:
    """A line for each family of each device, and one for its launches, sorted."""
    lines: list[str] = []
    for device, found in dumper.found.items():
        families: dict[str, set[str]] = {}
        for digest, kernel in found.kernels.items():
            families.setdefault(kernel.family, set()).add(digest)
        lines += [_line(device, family, len(some), sorted(some)) for family, some in families.items()]
        launches = [f"{name} {each}" for name, case in found.cases.items() for each in (*case.launches, case.error)]
        count = sum(len(case.launches) for case in found.cases.values())
        lines.append(_line(device, LAUNCHES, count, launches))
    return sorted(lines)


def _line(device: str, family: str, count: int, content: Iterable[str]) -> str:
    digest = hashlib.blake2b("\n".join(content).encode(), digest_size=8).hexdigest()
    return f"{device} {family.replace(' ', '_')} {count} {digest}"


def difference(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """What differs between two tables."""

    def parts(lines: Sequence[str]) -> dict[str, tuple[str, str]]:
        return {f"{device} {family}": (count, digest) for device, family, count, digest in map(str.split, lines)}

    was, found = parts(before), parts(now)
    told: list[str] = []
    for key in sorted({*was, *found}):
        old, new = was.get(key), found.get(key)
        kernels = "" if key.endswith(LAUNCHES) else " kernels"
        if old == new:
            continue
        if old is None and new is not None:
            told.append(f"{key}: none before, {new[0]}{kernels} now")
        elif new is None and old is not None:
            told.append(f"{key}: {old[0]}{kernels} before, none now")
        elif old is not None and new is not None and old[0] != new[0]:
            told.append(f"{key}: {old[0]}{kernels} before, {new[0]} now")
        elif new is not None:
            told.append(f"{key}: {new[0]}{kernels}, others than before")
    return told
