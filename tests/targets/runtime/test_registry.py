"""Stored jobs name registered dataclasses and nothing else."""

from __future__ import annotations

import importlib
import json
import pkgutil
import struct
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.plan.plan import Plan, make_plan
from dovetail.runtime.compile import compilation, make_request
from dovetail.targets import cpu
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.records import RECORDS
from dovetail.targets.runtime.building.build import build
from dovetail.targets.runtime.building.serial import from_bytes, to_bytes
from dovetail.targets.runtime.registry import CORE, Registry
from tests.kernels.convolving import WIDE, on_a_machine_of
from tests.targets.cpu.conv.test_epilogue import KERNELS, made
from tests.targets.runtime.registered import unregistered
from tests.targets.runtime.test_serial import plan

CLASSICAL = sorted((Path(__file__).parents[2] / "data" / "sklearn").glob("*.onnx"))


@pytest.mark.slow
def test_records_of_a_convolution_with_further_steps_are_registered() -> None:
    """Sizes that are known late keep the tilers of all variants, which hold the steps."""
    x, w = input("x", f32[1, 64, "h", "w"]), param("w", f32[64, 64, 3, 3])
    y = ops.conv(x, w, padding=(1, 1, 1, 1))
    graph = Graph.of(ops.leaky_relu(y, slope=0.1))
    found = compilation(graph, make_request()).plan
    assert [step.value.op.name for step in found.phase("run")] == ["region"], "the steps joined"
    assert not unregistered(found)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_record_of_a_convolution_is_registered(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    on_a_machine_of(WIDE, monkeypatch)
    assert not unregistered(make_plan(made(kernel), target=CPU))


@pytest.mark.slow
@pytest.mark.parametrize("path", CLASSICAL, ids=lambda path: path.stem)
def test_every_record_of_a_classical_model_is_registered(path: Path) -> None:
    """The test of the exporters' files asks the same of each of them, of the program that it compiles."""
    assert not unregistered(compilation(dovetail.load(path), make_request(target="cpu")).plan)


def test_every_packing_and_every_tiler_is_registered() -> None:
    """A program that holds another one is compiled anew by each process."""
    found: set[type[Any]] = set()
    for module in pkgutil.walk_packages(cpu.__path__, f"{cpu.__name__}."):
        here = vars(importlib.import_module(module.name)).values()
        kinds = [kind for kind in here if is_dataclass(kind) and isinstance(kind, type)]
        own = [kind for kind in kinds if kind.__module__ == module.name]
        found |= {kind for kind in own if any("__call__" in vars(each) for each in kind.__mro__)}
    assert len(found) > 20, "packings of products and tilers of convolutions"
    assert not {kind.__name__ for kind in found if RECORDS.name_of(kind) is None}


def stored(job: Any) -> tuple[Plan, bytes]:
    """A file whose jobs are all this one."""
    of = plan()
    head = json.dumps({"jobs": [job] * len(of.phase("run")), "sizes": [], "modules": []}).encode()
    return of, struct.pack("<Q", len(head)) + head


@pytest.mark.parametrize("name", ["pathlib.PosixPath", "dovetail.kernels.spec.Job", "os.system", "Job", ""])
def test_other_names_are_refused(name: str) -> None:
    of, content = stored([name, "x"])
    with pytest.raises(ValueError, match="not a record"):
        from_bytes(of, content, BACKEND)


@pytest.mark.slow
def test_what_is_stored_names_registered_records_only() -> None:
    of = plan()
    built = build(of, BACKEND)
    content = to_bytes(of, built.jobs, BACKEND)
    (length,) = struct.unpack_from("<Q", content)
    head = json.loads(content[8 : 8 + length])
    assert b"dovetail." not in content[8 : 8 + length]
    assert head["jobs"][0][0] == "job"


def test_a_name_or_a_class_is_registered_once() -> None:
    with pytest.raises(AssertionError):
        Registry({"another job": CORE["job"]})
    with pytest.raises(AssertionError):
        Registry({"number": int})
