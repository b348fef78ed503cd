"""The figures of a GPU, which prices use: measured on request by our own kernels, and stored for later processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, field, replace

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine, Peak
from dovetail.ir.dtype import DType, bf16, f16, f32, f64
from dovetail.ir.graph import Graph
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.plan.plan import make_plan
from dovetail.settings import BUILT_IN, MACHINE, OFF, Settings
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.claims import MACHINE as FIGURES
from dovetail.targets.cuda.driver.driver import Driver
from dovetail.targets.cuda.driver.timing import run_timed
from dovetail.targets.cuda.runs.frame import DeviceFrame
from dovetail.targets.cuda.runs.run import CudaGraph
from dovetail.targets.cuda.runs.runner import CudaRunner
from dovetail.targets.runtime.building.folder import Folder, Unsafe
from dovetail.targets.runtime.building.store import folder_of
from dovetail.version import __version__

VERSION = 1
"""The version of the file; others are not read."""
DTYPES = (bf16, f16, f32, f64)
_LEAST, _MOST = 0.02, 10.0
"""The share of the bandwidth of our figures that a card may have: less is a busy device, more a wrong clock."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How much is measured: enough to fill the device."""

    copied: int = 1 << 26
    """Elements of f32 that are read and written."""
    sides: Mapping[str, int] = field(default_factory=lambda: {"bf16": 8192, "f16": 8192, "f32": 4096, "f64": 2048})
    """The side of square matrices that are multiplied."""
    launches: int = 64
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class CardCalibration:
    """What a card does in a second, and when that was measured."""

    card: str
    date: str
    bytes_per_second: float
    launch_seconds: float
    """From one kernel of a graph to the next."""
    flops: Mapping[str, float]
    """Of products of matrices, by dtype."""

    def machine(self) -> Machine:
        """The device as prices use it."""
        wide = [Peak(kind, "f64", self.flops["f64"]) for kind in ("contract", "conv", "map")]
        narrow = [Peak(kind, d, self.flops[d]) for kind in ("contract", "conv") for d in ("bf16", "f16")]
        return replace(
            FIGURES,
            flops_per_second=self.flops["f32"],
            bytes_per_second=self.bytes_per_second,
            launch_seconds=self.launch_seconds,
            peaks=(*narrow, *wide),
            source=f"measured on {self.date}",
            is_host=True,
        )


def measured(device: Driver, work: Workload | None = None) -> CardCalibration:
    """Measure a device: a map that streams memory, a product for each dtype, and a chain of small kernels."""
    of = work or Workload()
    x = input("x", f32[of.copied])
    streamed = 2 * of.copied * f32.itemsize / seconds_of(device, x * 2.0, of.rounds)
    small = input("x", f32[32])
    chain = small
    for _ in range(of.launches):
        chain = ops.tanh(chain)
    launch = seconds_of(device, chain, of.rounds) / of.launches
    flops = {d.name: _product(device, d, of.sides[d.name], of.rounds) for d in DTYPES}
    return CardCalibration(device.name, time.strftime("%Y-%m-%d %H:%M"), streamed, launch, flops)


def _product(device: Driver, dtype: DType, side: int, rounds: int) -> float:
    a, b = input("a", dtype[side, side]), input("b", dtype[side, side])
    return 2.0 * side**3 / seconds_of(device, a @ b, rounds)


def seconds_of(device: Driver, value: Value, rounds: int) -> float:
    """The shortest time of the kernels of a graph as it is written, on arrays of zeros."""
    graph = Graph.of({"y": value})
    runner = CudaGraph(make_plan(graph, target=CLAIMS), lambda: device).bind({})
    assert isinstance(runner, CudaRunner), "every size is known"
    shapes = {v: tuple([n for n in v.shape if isinstance(n, int)]) for v in graph.inputs}
    there = {str(v.attrs["name"]): runner.to_device(np.zeros(shape, v.dtype.numpy), v) for v, shape in shapes.items()}
    frame = DeviceFrame(runner.bound, there, to_host=False)
    frame.put(there)
    frame.renew()
    seconds: list[float] = []
    for _ in range(rounds):
        marks = run_timed(frame)
        seconds.append((marks[-1].end - marks[0].begin) * 1e-9)
    return max(min(seconds), 1e-9)


def calibrate(device: Driver, settings: Settings, work: Workload | None = None) -> CardCalibration:
    """Measure a device, and keep the figures for later processes."""
    calibration = measured(device, work)
    if settings.cache != OFF:
        try:
            folder = Folder(folder_of(settings))
            folder.write(_name(device), [json.dumps({"version": VERSION, **asdict(calibration)}, indent=2).encode()])
            folder.close()
        except (Unsafe, OSError):
            pass  # a calibration that cannot be stored is measured again
    return calibration


def stored(device: Driver, settings: Settings) -> CardCalibration | None:
    """The stored calibration of a device; None where there is none, or where it cannot be believed."""
    path = folder_of(settings)
    if settings.cache == OFF or not (path / _name(device)).exists():
        return None
    try:
        folder = Folder(path)
        text = folder.read(_name(device))
        folder.close()
    except (Unsafe, OSError):
        return None
    return None if text is None else _parsed(text)


def machine_of(device: Driver, settings: Settings) -> Machine:
    """The calibrated device, or the figures of the claims; it measures nothing."""
    if os.environ.get(MACHINE) == BUILT_IN:
        return FIGURES
    calibration = stored(device, settings)
    return FIGURES if calibration is None else calibration.machine()


def _name(device: Driver) -> str:
    """The file of a card, a driver and this version: a folder may be shared between machines."""
    parts = (device.name, device.capability, device.version, __version__)
    return f"calibration-cuda-{hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()}.json"


def _parsed(text: bytes) -> CardCalibration | None:
    try:
        content = json.loads(text)
        if content["version"] != VERSION:
            return None
        flops = {d.name: _positive(content["flops"][d.name]) for d in DTYPES}
        rate, launch = _positive(content["bytes_per_second"]), _positive(content["launch_seconds"])
        calibration = CardCalibration(str(content["card"]), str(content["date"])[:32], rate, launch, flops)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    believed = _LEAST * FIGURES.bytes_per_second < rate < _MOST * FIGURES.bytes_per_second and launch < 1e-3
    return calibration if believed else None


def _positive(value: object) -> float:
    number = float(value)  # pyright: ignore[reportArgumentType]  # what is no number raises
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(number)
    return number


__all__ = ["CardCalibration", "Workload", "calibrate", "machine_of", "measured", "seconds_of", "stored"]
