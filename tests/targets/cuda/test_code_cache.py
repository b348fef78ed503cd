"""Machine code of GPU kernels is kept by what it is made from, and made anew where an entry is damaged."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.dtypes import f32
from dovetail.errors import UnsupportedError
from dovetail.kernels.loops.ir import Kernel
from dovetail.runtime.program import Program
from dovetail.targets.cuda.code.code import modules_of
from dovetail.targets.cuda.driver.driver import Driver, driver
from dovetail.targets.cuda.target import target_for
from dovetail.targets.runtime.building import store as stores
from tests.targets.cuda.devices import on_device
from tests.targets.cuda.simulated import FakeLibrary, SimulatedDriver, target_of

X = np.random.default_rng(3).normal(size=(5, 40)).astype(np.float32)


def layered() -> Graph:
    x = h = dovetail.input("x", f32["n", 40])
    for _ in range(3):
        h = library.softmax(ops.tanh(h) * 2.0)
    return Graph.of({"y": h + x})


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=on_device)])
def device(request: pytest.FixtureRequest) -> Driver:
    return SimulatedDriver() if request.param == "simulated" else driver()


def compiled(device: Driver, folder: Path) -> Program:
    """As a new process would."""
    stores._store.cache_clear()  # pyright: ignore[reportPrivateUsage]
    return dovetail.compile(layered(), target=target_of(device), cache=str(folder))


def check(program: Program) -> None:
    expected = dovetail.evaluate(layered(), {"x": X}, lift=True)["y"]
    np.testing.assert_allclose(program(x=X)["y"], expected, rtol=1e-5, atol=1e-6)


def kinds(folder: Path) -> dict[str, int]:
    return stores.CodeStore(folder, 1 << 30).status().entries


@pytest.mark.slow
def test_the_second_process_compiles_nothing(device: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(compiled(device, tmp_path))
    found = kinds(tmp_path)
    assert found["program"] == 1 and found["ptx"] == found["cubin"] >= 2

    def refuse(*_: object) -> str:
        raise AssertionError("it is kept")

    for name in ("ptx", "assembled"):
        monkeypatch.setattr(type(device), name, refuse)
    monkeypatch.setattr("dovetail.targets.gpu.select.make_kernels", refuse)
    check(compiled(device, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["program", "ptx", "cubin"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_entry_is_made_anew(kind: str, damage: str, tmp_path: Path) -> None:
    device = SimulatedDriver()
    check(compiled(device, tmp_path))
    for file in tmp_path.glob(f"**/*.{kind}"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    check(compiled(device, tmp_path))
    check(compiled(device, tmp_path))


@pytest.mark.slow
def test_code_that_the_driver_refuses_is_assembled_by_it(tmp_path: Path) -> None:
    device = SimulatedDriver()
    device.library.fail["cuLinkComplete"] = 218
    check(compiled(device, tmp_path))
    assert "cubin" not in kinds(tmp_path)


def test_kernels_whose_warps_pass_on_registers_are_no_part_of_a_larger_program(tmp_path: Path) -> None:
    """The driver's linker ignores the instruction that they need. Other kernels of Hopper have as many registers linked
    as by themselves; those of other cards have fewer."""
    device, store = SimulatedDriver(), stores.CodeStore(tmp_path, 1 << 30)
    moves = "setmaxnreg.dec.sync.aligned.u32 40;"
    each = [("sm_90a", "ret;"), ("sm_90a", moves), ("sm_89", "ret;"), ("sm_100a", "ret;"), ("sm_120", "ret;")]
    for number, (architecture, body) in enumerate(each):
        name = f"k{number}"
        device.library.kernels[name] = Kernel(name, (), (), "tile", ())
        modules_of([f"// {name}\n.target {architecture}\n.entry {name}() {{ {body} }}"], device, store)
    assert device.log.count("cuLinkComplete") == 1 and device.log.count("cuModuleLoadData") == 5
    assert kinds(tmp_path) == {"cubin": 1}


@pytest.mark.slow
def test_another_driver_and_another_card_have_entries_of_their_own(tmp_path: Path) -> None:
    first = SimulatedDriver()
    check(compiled(first, tmp_path))
    was = kinds(tmp_path)
    newer = SimulatedDriver(FakeLibrary(version=13_000))
    newer.library.kernels |= first.library.kernels
    check(compiled(newer, tmp_path))
    now = kinds(tmp_path)
    assert (now["ptx"], now["cubin"]) == (was["ptx"], 2 * was["cubin"]), "the PTX serves, its machine code does not"
    assert newer.compiled == 0


@pytest.mark.slow
def test_layers_share_kernels() -> None:
    device = SimulatedDriver()
    program = dovetail.compile(layered(), target=target_of(device), cache="off")
    program(x=X)
    assert device.compiled == device.log.count("cuModuleLoadData") < device.log.count("cuLaunchKernelEx")


@pytest.mark.slow
def test_a_run_from_the_store_loads_no_compiler() -> None:
    """What serves it is imported while the driver starts: neither LLVM nor kernel families, nor what takes as long."""
    names = "llvmlite.binding", "dovetail.targets.gpu.select", "statistics", "concurrent.futures"
    script = (
        "import sys, dovetail.targets.cuda.driver.calibration, dovetail.targets.cuda.runs.run\n"
        "import dovetail.targets.gpu.stored\n"
        f"print(*[name for name in {names} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_driver_starts_while_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling asks for it on another thread first; a driver that fails there fails where it is needed."""
    asked: list[bool] = []
    started = threading.Event()
    device = SimulatedDriver()

    def slow() -> Driver:
        asked.append(threading.current_thread() is threading.main_thread())
        started.set()
        return device

    def read(*given: object, **named: object) -> object:
        assert started.wait(10), "it starts before the file is read"
        return source_of(*given, **named)

    source_of: Any = importlib.import_module("dovetail.runtime.source").source_of
    monkeypatch.setattr("dovetail.runtime.compile.source_of", read)
    dovetail.compile(layered(), target=target_for(slow), cache=str(tmp_path))
    assert asked[0] is False and True in asked

    def missing() -> Driver:
        raise UnsupportedError("there is no CUDA driver")

    started.set()
    program = dovetail.compile(layered(), target=target_for(missing), cache=str(tmp_path))
    with pytest.raises(UnsupportedError, match="no CUDA driver"):
        program(x=X)
