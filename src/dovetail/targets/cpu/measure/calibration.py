"""The calibration of this host, which prices use: measured on request, and stored for later processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Level, Machine, Reach
from dovetail.progress import phase
from dovetail.settings import BUILT_IN as SAME_EVERYWHERE
from dovetail.settings import MACHINE, OFF, Settings
from dovetail.targets.cpu.cores import available_threads, busy_share, cache_sizes
from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.measure.described import byte_peaks, cores, described, row_seconds
from dovetail.targets.cpu.measure.figures import Figures, contradiction, unsettled
from dovetail.targets.runtime.building.folder import Folder, Unsafe
from dovetail.targets.runtime.building.store import folder_of
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.targets.cpu.measure.bandwidth import BandwidthMeter
    from dovetail.targets.cpu.measure.peak import Limits, Meter

VERSION = 3
"""The version of the file; others are not read."""
HOW = (
    "best of several rounds of loops of a few milliseconds: multiply-adds, products of bytes, reads of blocks of "
    "each size, copies from thread to thread, steps that do nothing"
)

REACH = Reach(
    {
        "contract": 0.88,
        "contract.batched": 0.58,
        "contract.bytes": 0.65,
        "conv": 0.78,
        "conv.bytes": 0.62,
        "conv.depthwise_bytes": 0.02,
        "conv.3x3": 1.3,
        "conv.depthwise": 0.1,
        "conv.transposed": 0.1,
        "conv.deformed": 0.1,
        "map": 0.2,
        "norm": 0.2,
    },
    epilogue=0.4,
)
OVERLAP = 0.3
START = 5e-7
"""The efficiency of our kernels, in round figures near the times of the benchmark's workloads and of real models
(`dovetail explain --measure` shows both). Activations after a convolution took 0.2 to 1 of the peak. With 0.2, the
search moves them into kernels that seem to be bound by memory: measured on rapidocr det, that is 1.6 % slower."""

ENOUGH = 3
"""Rounds that must come near the best one before it counts: other tenants may use the machine in all others."""
_MOST_ROUNDS = 8
SECONDS = 2.7
"""Seconds that all passes may take; a pass that would end later, if it takes as long as the last one, is not begun."""
BUSY = 0.2
"""The share of the machine that others may use: a system that idles stays below it."""
_BETTER = 1.01
"""The factor by which a figure measured elsewhere must be better to be worth a new file."""
_LARGE = (8 << 20, 32 << 20, 128 << 20)
"""Blocks larger than the private caches: shared caches have any size, and a virtual machine has a part of them."""
_TYPICAL = (32 << 10, 1 << 20)
"""Private caches, where the system does not report them."""


@dataclass(frozen=True, slots=True)
class HostCalibration:
    """The figures of a host, when and how they were measured."""

    host: str
    date: str
    how: str
    figures: tuple[Figures, ...]
    """With one thread, and with as many as the machine lends."""

    @property
    def is_settled(self) -> bool:
        """Whether the best was seen so often that it is the machine's, and not what others left of it."""
        return not unsettled(self.figures, ENOUGH)

    def machine(self, threads: int) -> Machine:
        """The host with a number of threads; between the numbers that were measured, figures grow evenly."""
        low, high = self.figures[0], self.figures[-1]
        share = (threads - low.threads) / (high.threads - low.threads) if high.threads > low.threads else 0.0
        share = min(max(share, 0.0), 1.0)

        def between(a: float, b: float) -> float:
            return (1.0 - share) * a + share * b

        levels = [
            Level(round(between(small, large)), between(slow, fast), between(late, soon))
            for (small, slow, late), (large, fast, soon) in zip(low.levels, high.levels, strict=True)
        ]
        return Machine(
            flops_per_second=between(low.flops, high.flops),
            bytes_per_second=between(low.bytes, high.bytes),
            launch_seconds=between(low.dispatch, high.dispatch) + START,
            levels=tuple(levels),
            reach=REACH,
            peaks=byte_peaks(between(low.int8, high.int8)),
            row_seconds=row_seconds(cores(), threads),
            overlap=OVERLAP,
            source=f"measured on {self.date}",
            is_host=True,
        )


BUILT_IN = Machine(
    # One core of a server CPU of 2020: the order of magnitude that prices need before a host is measured.
    flops_per_second=4.0e10,
    bytes_per_second=1.2e10,
    launch_seconds=5e-7,
    levels=(Level(32 << 10, 1.0e11), Level(1 << 20, 5.0e10), Level(16 << 20, 2.0e10)),
    reach=REACH,
    peaks=byte_peaks(1.6e11),
    overlap=OVERLAP,
)


def machine_of(settings: Settings) -> Machine:
    """The calibrated machine, or the one that its processor describes where there is no calibration.

    It measures nothing.
    """
    if os.environ.get(MACHINE) == SAME_EVERYWHERE:
        return BUILT_IN
    calibration, threads = stored(settings), settings.threads or available_threads()
    return _described(threads) if calibration is None else calibration.machine(threads)


@cache
def _described(threads: int) -> Machine:
    here = host()
    return described(here.device, here.cpu, cores(), threads, REACH, OVERLAP)


def stored(settings: Settings) -> HostCalibration | None:
    """The stored calibration of this host, unless its figures contradict each other or the processor."""
    calibration = None if settings.cache == OFF else _stored(folder_of(settings))
    return None if calibration is None or _contradiction(calibration.figures) else calibration


def ignored(settings: Settings) -> str:
    """The date of a stored calibration that is not used, and why; empty where there is none."""
    calibration = None if settings.cache == OFF else _stored(folder_of(settings))
    why = "" if calibration is None else _contradiction(calibration.figures)
    return f"{calibration.date}: {why}" if calibration is not None and why else ""


def _contradiction(figures: Sequence[Figures]) -> str:
    return contradiction(figures, _described, cores().threads_per_core)


@cache
def _stored(path: Path) -> HostCalibration | None:
    if not (path / _name()).exists():
        return None
    try:
        folder = Folder(path)
    except (Unsafe, OSError):
        return None
    text = folder.read(_name())
    folder.close()
    return None if text is None else _parsed(text)


@dataclass(frozen=True, slots=True)
class HostAttempt:
    """A calibration, and why it is not kept, where it is not."""

    calibration: HostCalibration | None
    """None where the machine was too busy to be measured."""
    refused: str = ""


def calibrate(settings: Settings) -> HostAttempt:
    """Measure the host, and keep the figures for later processes unless the machine was busy.

    Better figures of an earlier process stay.
    """
    from dovetail.targets.cpu.measure.peak import Meter  # only measuring needs loops of its own

    before = stored(settings)
    known = {} if before is None else {one.threads: one for one in before.figures}
    measured: list[Figures] = []
    counts = sorted({1, available_threads()})
    busy = [busy_share()]
    if busy[0] > BUSY and settings.cache != OFF:
        return HostAttempt(before, _used_by_others(busy[0]))
    with phase("calibrate", still=True) as progress:
        for number, threads in enumerate(counts, 1):
            progress.at(number, len(counts))
            end = time.perf_counter() + SECONDS / len(counts)
            measured.append(_figures(Meter(threads), known.get(threads), end, busy))
    busy.append(busy_share())
    smooth: list[Figures] = []
    for one in measured:
        smooth.append(_smoothed(one, smooth[-1] if smooth else None))
    calibration = HostCalibration(_host(), time.strftime("%Y-%m-%d %H:%M"), HOW, tuple(smooth))
    refused = _refusal(measured, max(busy), settings)
    if not refused:
        _store(folder_of(settings), calibration)
    return HostAttempt(calibration, refused)


def _used_by_others(share: float) -> str:
    return f"others used {share:.0%} of the machine"


def _refusal(measured: Sequence[Figures], busy: float, settings: Settings) -> str:
    """Why figures are not kept."""
    if settings.cache == OFF:
        return "the cache is switched off"
    if busy > BUSY:
        return _used_by_others(busy)
    return _contradiction(measured) or unsettled(measured, ENOUGH)


def learn(settings: Settings, seen: Limits) -> None:
    """Take over limits that were measured for another purpose, where they are better."""
    known = stored(settings)
    for one in known.figures if known is not None else ():
        if one.threads == seen.threads and (seen.flops > _BETTER * one.flops or seen.bytes > _BETTER * one.bytes):
            assert known is not None
            learned = one.better(replace(one, flops=seen.flops, bytes=seen.bytes, flops_seen=1, bytes_seen=1))
            _store(
                folder_of(settings),
                replace(known, figures=tuple(learned if f is one else f for f in known.figures)),
            )


def _store(path: Path, calibration: HostCalibration) -> None:
    try:
        folder = Folder(path)
        folder.write(_name(), [json.dumps({"version": VERSION, **asdict(calibration)}, indent=2).encode()])
        folder.close()
    except (Unsafe, OSError):
        return  # a calibration that cannot be stored is measured again
    finally:
        _stored.cache_clear()


def _figures(meter: Meter, known: Figures | None, end: float, busy: list[float]) -> Figures:
    """The best of several rounds until enough agree or time is over; notes what others used meanwhile."""
    import statistics

    from dovetail.targets.cpu.measure.bandwidth import BandwidthMeter

    bandwidth = BandwidthMeter(meter.best.threads)
    begun = time.perf_counter()
    best, lost = _round(meter, bandwidth), [meter.lost]
    best = best if known is None else best.better(known)
    for _ in range(_MOST_ROUNDS - 1):
        now = time.perf_counter()
        if not unsettled([best], ENOUGH) or now + (now - begun) > end:
            break
        begun = now
        best = best.better(_round(meter, bandwidth))
        lost.append(meter.lost)
    busy.append(statistics.median(lost))
    return best


def _smoothed(one: Figures, fewer: Figures | None) -> Figures:
    """Figures without the noise that is left: more threads are not slower than fewer, and levels fall."""
    if fewer is not None:
        # Caches grow with the threads, so levels are compared by index; steps transfer between threads.
        levels = tuple(
            (size, max(read, slow), passed)
            for (size, read, passed), (_, slow, _) in zip(one.levels, fewer.levels, strict=True)
        )
        flops, bytes = max(one.flops, fewer.flops), max(one.bytes, fewer.bytes)
        one = replace(one, flops=flops, bytes=bytes, levels=levels, int8=max(one.int8, fewer.int8))
    return replace(one, levels=_falling(one.levels, one.bytes))


def _round(meter: Meter, bandwidth: BandwidthMeter) -> Figures:
    meter.measure()
    limits, threads = meter.clear, bandwidth.threads
    near = cache_sizes()[:2] or _TYPICAL
    # A loop finds half of a cache again; other data takes the rest.
    levels = [(size * threads, bandwidth.read(size // 2), bandwidth.passed(size * threads // 2)) for size in near]
    levels += [(size, bandwidth.read(size // threads), bandwidth.passed(size)) for size in _LARGE]
    return Figures(threads, limits.flops, limits.bytes, tuple(levels), bandwidth.dispatch(), limits.int8)


def _falling(levels: Sequence[tuple[int, float, float]], main: float) -> tuple[tuple[int, float, float], ...]:
    """Bandwidths that fall from level to level despite noise. No level is slower than main memory, and transfers are
    not faster than reads."""
    falling: list[tuple[int, float, float]] = []
    least = 0.0
    for size, read, passed in reversed(levels):
        main = max(read, main)
        least = min(max(passed, least), main)
        falling.append((size, main, least))
    return tuple(reversed(falling))


def _host() -> str:
    here = host()
    return f"{here.cpu}, {here.vector_bits} bits, {available_threads()} threads"


@cache
def _name() -> str:
    """The file of this host and version; a folder may be shared between machines."""
    here = host()
    parts = (here.triple, here.cpu, here.features, str(available_threads()), str(cache_sizes()), __version__)
    return f"calibration-{hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()}.json"


def _parsed(text: bytes) -> HostCalibration | None:
    """The calibration in a file; None for other content."""
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            return None
        figures = tuple(_parsed_figures(one) for one in content["figures"])
        counts = {len(one.levels) for one in figures}
        if len(counts) != 1 or not figures:
            return None
        return HostCalibration(str(content["host"]), str(content["date"])[:32], str(content["how"]), figures)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _parsed_figures(content: Any) -> Figures:
    listed = cast("list[list[Any]]", content["levels"])
    levels = tuple((int(size), _positive(read), _positive(passed)) for size, read, passed in listed)
    flops, bytes, dispatch = (_positive(content[name]) for name in ("flops", "bytes", "dispatch"))
    int8 = _positive(content["int8"]) if content["int8"] else 0.0
    seen = int(content["flops_seen"]), int(content["bytes_seen"])
    return Figures(_count(content["threads"]), flops, bytes, levels, dispatch, int8, *seen)


def _count(content: Any) -> int:
    number = int(content)
    if number < 1:
        raise ValueError(number)
    return number


def _positive(content: Any) -> float:
    number = float(content)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(number)
    return number


__all__ = [
    "BUILT_IN",
    "Figures",
    "HostAttempt",
    "HostCalibration",
    "calibrate",
    "ignored",
    "learn",
    "machine_of",
    "stored",
]
