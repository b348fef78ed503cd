"""The links of a mesh, which prices of collectives use: measured on request, and stored for later processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.progress import phase
from dovetail.settings import BUILT_IN, MACHINE, OFF, Settings, settings_of
from dovetail.targets.runtime.building.folder import Folder, Unsafe
from dovetail.targets.runtime.building.store import folder_of
from dovetail.targets.xla.explain.collective import Link, Links, ring
from dovetail.targets.xla.placement import Placement
from dovetail.version import __version__

VERSION = 1
"""The version of the file; others are not read."""
KINDS = ("all-reduce", "all-gather")
"""The collectives that are timed."""
SIZES = tuple(1 << bits for bits in (12, 15, 18, 20, 22))
"""Bytes of their results on a device."""
TURNS = 5
"""Collectives of the longer program; one with a single collective is taken off, with what a call costs."""
ROUNDS = 7
Program = Callable[[str, str, int, int], Callable[[], object]]
"""Compiles a program by kind, axis, bytes and iterations."""
CLOCK: Callable[[], float] = time.perf_counter


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """How long one collective took."""

    kind: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """The link of a mesh axis, and how far it is from the times that it was fitted to."""

    link: Link
    misfit: float
    """The largest error of a predicted time, as a share of the measured one."""


@dataclass(frozen=True, slots=True)
class MeshCalibration:
    """The links of a mesh, when and on which devices they were measured."""

    mesh: Mapping[str, int]
    devices: str
    date: str
    axes: Mapping[str, Fitted]

    @property
    def links(self) -> Links:
        """As prices use them."""
        by_axis = {axis: fitted.link for axis, fitted in self.axes.items()}
        return Links(by_axis, f"measured on {self.date} on {self.devices}")


@dataclass(frozen=True, slots=True)
class MeshAttempt:
    """A calibration, or why there is none."""

    calibration: MeshCalibration | None
    refused: str = ""


def fit(timed: Sequence[TimedCollective], devices: int) -> Fitted | None:
    """The start and the bandwidth whose ring comes nearest to times, in relative errors; None where none does."""
    # Each time is starts · start + moved / bandwidth: two unknowns, least squares of both sides over the time.
    rows = [(*ring(one.kind, devices, one.bytes), one.seconds) for one in timed]
    a, b = ([row[i] / row[2] for row in rows] for i in (0, 1))
    aa, ab, bb = _dot(a, a), _dot(a, b), _dot(b, b)
    square = aa * bb - ab * ab
    if square <= 0:
        return None
    start = (sum(a) * bb - sum(b) * ab) / square
    start = max(start, 0.0)
    each = (sum(b) - start * ab) / bb
    if each <= 0:
        return None
    misfit = max(abs(x * start + y * each - 1.0) for x, y in zip(a, b, strict=True))
    return Fitted(Link(start, 1 / each), misfit)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def measured(axes: Mapping[str, int], program: Program) -> dict[str, Fitted | None]:
    """A fit for each axis of a mesh that has several devices."""
    split = {axis: count for axis, count in axes.items() if count > 1}
    fits: dict[str, Fitted | None] = {}
    with phase("calibrate", still=True) as progress:
        for number, (axis, count) in enumerate(split.items(), 1):
            progress.at(number, len(split))
            timed = [_timed(kind, axis, size, program) for kind in KINDS for size in SIZES]
            fits[axis] = fit([one for one in timed if one.seconds > 0], count)
    return fits


def _timed(kind: str, axis: str, bytes: int, program: Program) -> TimedCollective:
    """Return the best time of each program; programs run alternately, several times."""
    programs = [program(kind, axis, bytes, turns) for turns in (1, TURNS)]
    for one in programs:
        one()  # the first call is slower
    best = [math.inf, math.inf]
    for _ in range(ROUNDS):
        for at, one in enumerate(programs):
            begun = CLOCK()
            one()
            best[at] = min(best[at], CLOCK() - begun)
    return TimedCollective(kind, bytes, (best[1] - best[0]) / (TURNS - 1))


def calibrate(mesh: Mapping[str, int], settings: Settings) -> MeshAttempt:
    """Measure the links of a mesh on the devices of this process, and keep them for later processes."""
    from dovetail.targets.xla.explain import rings  # JAX is imported with it

    placement = Placement.of(mesh)
    devices = rings.devices_of(placement)

    def program(kind: str, axis: str, bytes: int, turns: int) -> rings.RingStep:
        return rings.program(placement, kind, axis, bytes, turns)

    measured_fits = measured(mesh, program)
    wrong = [axis for axis, fitted in measured_fits.items() if fitted is None]
    if wrong or not measured_fits:
        said = f"times over {', '.join(wrong)} do not grow with the bytes" if wrong else "no axis has several devices"
        return MeshAttempt(None, said)
    fits = {axis: fitted for axis, fitted in measured_fits.items() if fitted is not None}
    calibration = MeshCalibration(dict(mesh), devices, time.strftime("%Y-%m-%d %H:%M"), fits)
    if settings.cache == OFF:
        return MeshAttempt(calibration, "the cache is switched off")
    try:
        folder = Folder(folder_of(settings))
        folder.write(_name(mesh), [json.dumps({"version": VERSION, **asdict(calibration)}, indent=2).encode()])
        folder.close()
    except (Unsafe, OSError):
        pass  # a calibration that cannot be stored is measured again
    finally:
        _stored.cache_clear()
    return MeshAttempt(calibration)


def stored(mesh: Mapping[str, int], settings: Settings) -> MeshCalibration | None:
    """The stored links of a mesh; None where it was not measured."""
    return None if settings.cache == OFF else _stored(folder_of(settings), tuple(mesh.items()))


def links_of(mesh: Mapping[str, int]) -> Links:
    """The measured links of a mesh, or ordinary ones; it measures nothing."""
    if os.environ.get(MACHINE) == BUILT_IN:
        return Links()
    calibration = stored(mesh, settings_of({}, os.environ))
    return Links() if calibration is None else calibration.links


@cache
def _stored(path: Path, mesh: tuple[tuple[str, int], ...]) -> MeshCalibration | None:
    name = _name(dict(mesh))
    if not (path / name).exists():
        return None
    try:
        folder = Folder(path)
        text = folder.read(name)
        folder.close()
    except (Unsafe, OSError):
        return None
    return None if text is None else _parsed(text, dict(mesh))


def _name(mesh: Mapping[str, int]) -> str:
    """The file of a mesh and this version. Its devices are no part of it: `explain` needs none."""
    parts = (tuple(mesh.items()), __version__)
    return f"calibration-xla-{hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()}.json"


def _parsed(text: bytes, mesh: Mapping[str, int]) -> MeshCalibration | None:
    """The calibration in a file; None for other content."""
    try:
        content = json.loads(text)
        if content["version"] != VERSION or content["mesh"] != mesh:
            return None
        listed = cast("dict[str, Any]", content["axes"])
        axes = {axis: _parsed_fit(one) for axis, one in listed.items() if axis in mesh}
        return MeshCalibration(mesh, str(content["devices"])[:64], str(content["date"])[:32], axes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _parsed_fit(content: Any) -> Fitted:
    start, rate, misfit = (
        float(content["link"]["start_seconds"]),
        float(content["link"]["bytes_per_second"]),
        float(content["misfit"]),
    )
    if not (start >= 0 and rate > 0 and misfit >= 0 and math.isfinite(start + rate + misfit)):
        raise ValueError(content)
    return Fitted(Link(start, rate), misfit)


__all__ = [
    "Fitted",
    "MeshAttempt",
    "MeshCalibration",
    "TimedCollective",
    "calibrate",
    "fit",
    "links_of",
    "measured",
    "stored",
]
