"""`dovetail doctor`: what is installed, what the machine can do, what is missing, and the command that adds it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from dovetail.cli import cache
from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.doctor_text import as_text
from dovetail.cli.machine import machine
from dovetail.cli.options import JSON, numbers
from dovetail.cli.terminal import look_of
from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError, UnsupportedError
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.ir.leaf import input
from dovetail.runtime.compile import compile
from dovetail.settings import Settings, settings_of
from dovetail.targets import NAMES
from dovetail.targets.cpu.cores import cache_sizes
from dovetail.targets.cpu.isa import has_tiles, host
from dovetail.targets.cpu.jit import toolchain
from dovetail.targets.cpu.measure.calibration import calibrate, ignored, machine_of, stored
from dovetail.targets.cpu.tile_permission import tile_state
from dovetail.version import DISTRIBUTION, __version__

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")

_NVIDIA = "/proc/driver/nvidia"
"""There where the machine has NVIDIA's kernel module."""
PURPOSES: Mapping[str, str] = {
    "safetensors": "weights from safetensors files",
    "cublas": "products of matrices by cuBLASLt on NVIDIA GPUs, where it is faster than our kernels",
    "demo": "the demo of a checkout: sentences searched by meaning",
    "bench": "the peers of dovetail bench",
    "test": "the tests of a checkout",
    "check": "lint and types of a checkout",
}
"""What each extra is for."""
FOR_CHECKOUTS = frozenset({"check", "demo", "docs", "fuzz", "test", "torch-test", "torch-zoo", "xla-test"})
"""Extras whose tools work on a checkout, which other installations have no use for."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that dovetail uses: always, or with an extra."""

    name: str
    version: str | None
    """None where it is not installed."""
    extra: str
    """The extra that asks for it; empty for what is always needed."""
    add: str
    """The command that installs it, with all else that the extra asks for."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that is missing: what it would give, and the command that adds it."""

    what: str
    gives: str
    add: str


@dataclass(frozen=True, slots=True)
class Runs:
    """Whether a target runs a small graph here, and what it says if not."""

    target: str
    runs: bool
    note: str


def run(args: argparse.Namespace) -> Answer:
    settings = settings_of({}, os.environ)
    mesh = None if args.mesh is None else meshed(numbers("--mesh", args.mesh.split(",")), settings, args.calibrate)
    here = args.calibrate and mesh is None
    refused = calibrate(settings).refused if here else ""
    gpu = card(settings, measure=here)
    known = stored(settings)
    installed = packages(_requirements(), checkout())
    kept = cache.status(args)
    found = {
        "schema_version": SCHEMA_VERSION,
        "dovetail": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "packages": [asdict(p) for p in installed],
        "machine": asdict(machine()),
        "processor": _processor(),
        "gpu": asdict(gpu),
        "calibration": None if known is None else asdict(known),
        "not_calibrated": refused,
        "ignored_calibration": ignored(settings),
        "figures": machine_of(settings).source,
        "mesh": mesh,
        "cache": kept,
        "targets": [asdict(runs(name)) for name in NAMES],
        "missing": [asdict(lack) for lack in missing(installed, measured=known is not None, kept=kept, gpu=gpu)],
    }
    return (
        Answer(json.dumps(found, indent=2)) if args.json else Answer(as_text(found, look_of(sys.stdout)), painted=True)
    )


def _processor() -> dict[str, Any]:
    """What compiled code makes use of."""
    here = host()
    return {
        "triple": here.triple,
        "cpu": here.cpu,
        "vector_bits": here.vector_bits,
        "vector_registers": here.vector_registers,
        "capabilities": list(here.device.capabilities),
        "amx": tile_state() if has_tiles() else None,
        "caches": list(cache_sizes()),
        "llvm": toolchain()["llvm"],
    }


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU that programs run on, and why there is none."""

    card: dict[str, Any] | None
    architecture: str
    """What kernels are compiled for."""
    calibration: dict[str, Any] | None
    cublaslt: str
    """The version of the library that may compute products, and where it is; or how to install it."""
    reason: str
    """Why there is none."""
    add: str
    """What would help."""


def card(settings: Settings, *, measure: bool = False, device: Callable[[], Any] | None = None) -> Gpu:
    """The GPU of this machine; it is calibrated first, if that is wanted."""
    from dovetail.targets.cuda.driver import calibration
    from dovetail.targets.cuda.driver.driver import driver
    from dovetail.targets.cuda.library import cublaslt

    try:
        here = (device or driver)()
        known = calibration.calibrate(here, settings) if measure else calibration.stored(here, settings)
        figures = None if known is None else asdict(known)
        return Gpu(asdict(here.card), here.architecture, figures, cublaslt.described(here.version // 1000), "", "")
    except DovetailError as error:
        return Gpu(None, "", None, "", error.message, error.hint)


def meshed(mesh: Mapping[str, int], settings: Settings, measure: bool = False) -> dict[str, Any]:
    """The links of a mesh that prices of collectives use; they are measured first, if that is wanted."""
    from dovetail.targets.xla.explain import calibration  # few have a mesh
    from dovetail.targets.xla.placement import Placement

    axes = Placement.of(mesh).sizes
    tried = calibration.calibrate(axes, settings) if measure else calibration.MeshAttempt(None)
    known = tried.calibration or calibration.stored(axes, settings)
    return {
        "mesh": axes,
        "calibration": None if known is None else asdict(known),
        "not_calibrated": tried.refused,
    }


def missing(
    installed: Sequence[Package], *, measured: bool, kept: Mapping[str, Any], gpu: Gpu | None = None
) -> list[Lack]:
    """What could be added: packages that are always needed first."""
    found = [Lack(p.name, "needed", p.add) for p in installed if p.version is None and not p.extra]
    lacking: dict[str, list[Package]] = {}
    for package in installed:
        if package.version is None and package.extra:
            lacking.setdefault(package.extra, []).append(package)
    for extra, absent in lacking.items():
        names = ", ".join(p.name for p in absent)
        found.append(Lack(names, PURPOSES.get(extra, f"the extra {extra}"), absent[0].add))
    if not measured and kept["on"]:
        found.append(Lack("figures of this machine", "prices as they are here", "dovetail doctor --calibrate"))
    if gpu is not None and gpu.card is None and os.path.exists(_NVIDIA):
        found.append(Lack(f"the GPU ({gpu.reason})", "programs for target cuda", gpu.add))
    elif gpu is not None and gpu.card is not None and gpu.calibration is None and kept["on"]:
        found.append(Lack("figures of the GPU", "prices as they are there", "dovetail doctor --calibrate"))
    if not kept["on"]:
        found.append(Lack("the compile cache", "programs that start at once the second time", "unset DOVETAIL_CACHE"))
    elif kept["problem"]:
        found.append(Lack(f"the compile cache ({kept['problem']})", "quick starts", "export DOVETAIL_CACHE=FOLDER"))
    return found


def _requirements() -> list[str]:
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return ["numpy", "ml_dtypes", "onnx", "llvmlite"]  # run from a folder that pip did not install


def checkout() -> Path | None:
    """Return the checkout that an editable installation runs from; None for a wheel."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin: dict[str, Any] = json.loads(text or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    path = unquote(urlsplit(str(origin["url"])).path)
    return Path(path[1:] if os.name == "nt" else path)


def packages(requirements: Iterable[str], checkout: Path | None = None) -> list[Package]:
    """Return every package that the requirements name, with its version here; those of contributors for a checkout."""
    found: list[Package] = []
    for line in requirements:
        wanted = _REQUIREMENT.match(line)
        if wanted is None:
            continue
        marked = _EXTRA.search(line)
        extra = marked[1] if marked else ""
        if extra in FOR_CHECKOUTS and checkout is None:
            continue
        asked = f"{checkout or DISTRIBUTION}[{extra}]" if extra else wanted[0].strip()
        editable = "-e " if extra and checkout is not None else ""
        command = f"{shlex.quote(sys.executable)} -m pip install {editable}'{asked}'"
        found.append(Package(wanted[1], _version(wanted[1]), extra, command))
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


COMMAND = Command(
    "doctor",
    "Say what is installed, what the machine can do, what is missing, and the command that adds it.",
    (
        Argument(
            "--calibrate",
            "measure the machine, in a few seconds, and keep the figures that prices are made of; better ones of "
            "before stay",
            {"action": "store_true"},
        ),
        Argument(
            "--mesh",
            "tell the links of a mesh, as in --mesh dp=2,tp=4; with --calibrate, measure them on the devices that JAX "
            "finds, instead of the machine, and keep them for prices of collectives",
            {"metavar": "AXIS=SIZE,…"},
        ),
        JSON,
    ),
    run,
)
