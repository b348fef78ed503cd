"""The figures of this host that prices are made of: measured once when somebody asks, and kept for later processes."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from dovetail.declare.cost import Level, Machine, Reach
from dovetail.progress import phase
from dovetail.settings import OFF, Settings
from dovetail.targets.cpu.crew import available_threads
from dovetail.targets.cpu.gauge import Gauge, cache_sizes
from dovetail.targets.cpu.host import host
from dovetail.targets.cpu.limits import Meter
from dovetail.targets.folder import Folder, Unsafe
from dovetail.targets.store import folder_of
from dovetail.version import __version__

VERSION = 1
"""Of the file; another one is not read."""
HOW = "best of several loops of a few milliseconds: multiply-adds, reads of blocks of each size, steps that do nothing"

REACH = Reach(contract=0.88, conv=0.88, conv_3x3=1.3, map=0.2, epilogue=0.4)
OVERLAP = 0.3
START = 5e-7
"""How our kernels use a machine: measured over the workloads of the benchmark by benchmarks/predicted.py."""

_LARGE = (8 << 20, 32 << 20, 128 << 20)
"""Blocks beyond the caches of a core: shared ones are of any size, and a virtual machine has only a part of them."""
_TYPICAL = (32 << 10, 1 << 20)
"""Caches of a core, where the system does not tell."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the host does with so many threads."""

    threads: int
    flops: float
    bytes: float
    """From main memory in a second."""
    levels: tuple[tuple[int, float], ...]
    """Bytes that all threads hold together, and how many they read in a second."""
    dispatch: float
    """Seconds that a step takes which does nothing."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The figures of a host, when and how they were found."""

    host: str
    date: str
    how: str
    figures: tuple[Figures, ...]
    """With one thread, and with as many as the machine lends."""

    def machine(self, threads: int) -> Machine:
        """The host with so many threads; between the numbers that were measured, figures grow evenly."""
        low, high = self.figures[0], self.figures[-1]
        share = (threads - low.threads) / (high.threads - low.threads) if high.threads > low.threads else 0.0
        share = min(max(share, 0.0), 1.0)

        def between(a: float, b: float) -> float:
            return a + share * (b - a)

        levels = [
            Level(round(between(small, large)), between(slow, fast))
            for (small, slow), (large, fast) in zip(low.levels, high.levels, strict=True)
        ]
        return Machine(
            flops_per_second=between(low.flops, high.flops),
            bytes_per_second=between(low.bytes, high.bytes),
            launch_seconds=between(low.dispatch, high.dispatch) + START,
            levels=tuple(levels),
            reach=REACH,
            overlap=OVERLAP,
            source=f"measured on {self.date}",
        )


BUILT_IN = Machine(
    # One core of a server CPU of 2020: the order of magnitude that prices need before a host is measured.
    flops_per_second=4.0e10,
    bytes_per_second=1.2e10,
    launch_seconds=5e-7,
    levels=(Level(32 << 10, 1.0e11), Level(1 << 20, 5.0e10), Level(16 << 20, 2.0e10)),
    reach=REACH,
    overlap=OVERLAP,
)


def machine_of(settings: Settings) -> Machine:
    """The host as it was measured, or the built-in figures where nobody has measured it. It measures nothing."""
    found = stored(settings)
    return BUILT_IN if found is None else found.machine(settings.threads or available_threads())


def stored(settings: Settings) -> Calibration | None:
    """What was measured on this host."""
    return None if settings.cache == OFF else _stored(folder_of(settings))


@cache
def _stored(path: Path) -> Calibration | None:
    if not (path / _name()).exists():
        return None
    try:
        folder = Folder(path)
    except (Unsafe, OSError):
        return None
    text = folder.read(_name())
    folder.close()
    return None if text is None else _parsed(text)


def calibrate(settings: Settings) -> Calibration:
    """Measure the host, and keep the figures for later processes where there is a folder for them."""
    figures: list[Figures] = []
    counts = sorted({1, available_threads()})
    with phase("calibrate", still=True) as told:
        for number, threads in enumerate(counts, 1):
            told.at(number, len(counts))
            figures.append(_figures(threads, figures[-1] if figures else None))
    made = Calibration(_host(), time.strftime("%Y-%m-%d %H:%M"), HOW, tuple(figures))
    if settings.cache != OFF:
        _keep(folder_of(settings), made)
    return made


def _keep(path: Path, made: Calibration) -> None:
    try:
        folder = Folder(path)
        folder.write(_name(), [json.dumps({"version": VERSION, **asdict(made)}, indent=2).encode()])
        folder.close()
    except (Unsafe, OSError):
        return  # a calibration that cannot be kept is measured again
    finally:
        _stored.cache_clear()


def _figures(threads: int, fewer: Figures | None) -> Figures:
    """More threads are never slower than fewer: where they seem to be, others were using the machine."""
    meter, gauge = Meter(threads), Gauge(threads)
    limits = [meter.measure() for _ in range(3)][-1]
    near = cache_sizes()[:2] or _TYPICAL
    # Half of a cache is what a loop finds there again, beside everything else that wants to lie in it.
    levels = [(size * threads, gauge.read(size // 2)) for size in near]
    levels += [(size, gauge.read(size // threads)) for size in _LARGE]
    flops, bytes = limits.flops, limits.bytes
    if fewer is not None:
        flops, bytes = max(flops, fewer.flops), max(bytes, fewer.bytes)
        levels = [(size, max(rate, slow)) for (size, rate), (_, slow) in zip(levels, fewer.levels, strict=True)]
    return Figures(threads, flops, bytes, _falling(levels, bytes), gauge.dispatch())


def _falling(levels: list[tuple[int, float]], main: float) -> tuple[tuple[int, float], ...]:
    """Bandwidths that fall from level to level, whatever noise there was; none is below that of main memory."""
    found: list[tuple[int, float]] = []
    for size, rate in reversed(levels):
        main = max(rate, main)
        found.append((size, main))
    return tuple(reversed(found))


def _host() -> str:
    here = host()
    return f"{here.cpu}, {here.vector_bits} bits, {available_threads()} threads"


@cache
def _name() -> str:
    """The file of this host and version; a folder may be shared between machines."""
    here = host()
    parts = (here.triple, here.cpu, here.features, str(available_threads()), str(cache_sizes()), __version__)
    return f"calibration-{hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()}.json"


def _parsed(text: bytes) -> Calibration | None:
    """The calibration in a file; None for what is no such thing."""
    try:
        given = json.loads(text)
        if given["version"] != VERSION:
            return None
        figures = tuple(_parsed_figures(one) for one in given["figures"])
        counts = {len(one.levels) for one in figures}
        if len(counts) != 1:
            return None
        return Calibration(str(given["host"]), str(given["date"])[:32], str(given["how"]), figures)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _parsed_figures(given: Any) -> Figures:
    levels = tuple((int(size), _positive(rate)) for size, rate in cast("list[list[Any]]", given["levels"]))
    flops, bytes, dispatch = (_positive(given[name]) for name in ("flops", "bytes", "dispatch"))
    return Figures(int(given["threads"]), flops, bytes, levels, dispatch)


def _positive(given: Any) -> float:
    number = float(given)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(number)
    return number


__all__ = ["BUILT_IN", "Calibration", "Figures", "calibrate", "machine_of", "stored"]
