"""`dovetail doctor`: what is installed, what the machine has, and which targets run here."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.machine import machine
from dovetail.cli.options import JSON
from dovetail.errors import DovetailError, UnsupportedError
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.ir.leaf import input
from dovetail.runtime.compile import compile
from dovetail.settings import settings_of
from dovetail.targets import ALL as TARGETS
from dovetail.targets.cpu.calibration import calibrate, stored
from dovetail.version import __version__

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True, slots=True)
class Package:
    """A package that dovetail uses: always, or with an extra."""

    name: str
    version: str | None
    """None where it is not installed."""
    extra: str
    """The extra that asks for it; empty for what is always needed."""
    add: str
    """The command that installs it."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Whether a target runs a small graph here, and what it says if not."""

    target: str
    runs: bool
    note: str


def run(args: argparse.Namespace) -> Answer:
    settings = settings_of({}, os.environ)
    if args.calibrate:
        calibrate(settings)
    known = stored(settings)
    found = {
        "schema_version": SCHEMA_VERSION,
        "dovetail": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "packages": [asdict(p) for p in packages(_requirements())],
        "machine": asdict(machine()),
        "calibration": None if known is None else asdict(known),
        "targets": [asdict(runs(target.name)) for target in TARGETS],
    }
    return Answer(json.dumps(found, indent=2) if args.json else as_text(found))


def _requirements() -> list[str]:
    try:
        return metadata.requires("dovetail") or []
    except metadata.PackageNotFoundError:
        return ["numpy", "ml_dtypes"]  # run from a folder that nobody installed


def packages(requirements: Iterable[str]) -> list[Package]:
    """Every package that the requirements name, with its version here."""
    found: list[Package] = []
    for line in requirements:
        wanted = _REQUIREMENT.match(line)
        if wanted is None:
            continue
        extra = _EXTRA.search(line)
        command = shlex.join([sys.executable, "-m", "pip", "install", wanted[0].strip()])
        found.append(Package(wanted[1], _version(wanted[1]), extra[1] if extra else "", command))
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def runs(target: str) -> Runs:
    """Compile and run a graph of one op, and look at the result."""
    x = input("x", f32[3])
    try:
        program = compile(Graph.of(x + x, name="doctor"), target=target)
        result = program.run({"x": np.array([1, 2, 3], np.float32)})["y"]
    except UnsupportedError as error:
        return Runs(target, False, f"plans only: {error.message}")
    except DovetailError as error:
        return Runs(target, False, error.message)
    right = result.tolist() == [2.0, 4.0, 6.0]
    return Runs(target, right, "" if right else f"x + x of 1, 2, 3 is {result.tolist()}")


def as_text(found: dict[str, Any]) -> str:
    """What was found, one thing a line; what can be added comes with its command."""
    here = found["machine"]
    lines = [
        f"dovetail {found['dovetail']}, Python {found['python']['version']} at {found['python']['executable']}",
        f"{here['system']} on {here['processor']}, {_cores(here)}, {_memory(here)}",
        "",
        "packages",
    ]
    for package in found["packages"]:
        needed = f"for [{package['extra']}]" if package["extra"] else "needed"
        version = package["version"] or "not installed"
        lines.append(f"  {package['name']:<16} {version:<14} {needed}")
        if package["version"] is None:
            lines.append(f"    add it with: {package['add']}")
    lines += ["", *_figures(found["calibration"]), "", "targets"]
    for target in found["targets"]:
        verdict = "runs here" if target["runs"] else f"does not run here: {target['note']}"
        lines.append(f"  {target['target']:<16} {verdict}")
    return "\n".join(lines)


def _figures(calibration: dict[str, Any] | None) -> list[str]:
    """The figures that prices are made of."""
    if calibration is None:
        return ["calibration: built-in", "  measure this machine with: dovetail doctor --calibrate"]
    lines = [f"calibration: measured on {calibration['date']} ({calibration['host']})"]
    for one in calibration["figures"]:
        levels = ", ".join(f"{rate / 1e9:.0f} up to {_size(size)}" for size, rate in one["levels"])
        lines.append(
            f"  {one['threads']:>3} thread{'s' if one['threads'] > 1 else ' '} {one['flops'] / 1e9:.0f} GFLOP/s, "
            f"GB/s: {levels}, {one['bytes'] / 1e9:.1f} beyond, a step {one['dispatch'] * 1e6:.2f} µs"
        )
    return lines


def _size(bytes: int) -> str:
    return f"{bytes >> 20} MiB" if bytes >= 1 << 20 else f"{bytes >> 10} KiB"


def _cores(here: dict[str, Any]) -> str:
    limit = here["cgroup_cores"]
    said = f"{here['cores']} of {here['cores_of_machine']} cores may be used"
    return said + (f", limited to {limit:g} by the cgroup" if limit is not None else "")


def _memory(here: dict[str, Any]) -> str:
    total, limit = here["memory_bytes"], here["cgroup_memory_bytes"]
    said = f"{total / 2**30:.1f} GiB of memory" if total is not None else "memory unknown"
    return said + (f", limited to {limit / 2**30:.1f} GiB by the cgroup" if limit is not None else "")


COMMAND = Command(
    "doctor",
    "Say what is installed, what the machine has, and which targets run here.",
    (
        Argument(
            "--calibrate",
            "measure the machine anew, in a few seconds, and keep the figures that prices are made of",
            {"action": "store_true"},
        ),
        JSON,
    ),
    run,
)
