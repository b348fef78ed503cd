"""Torch modules as workloads: the peers that run modules compute the same, and the others leave them out."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.bench import workloads
from dovetail.bench.case import Case, case_of, written
from dovetail.bench.peer_process import MachineContender, PeerContender
from dovetail.bench.peers import EVERY, Setting, definitions
from dovetail.bench.workloads import MODULES
from tests.bench.small import SMALL

torch: Any = pytest.importorskip("torch")


NAME = next(iter(MODULES))


def small() -> Any:
    """A module that draws its weights by itself, as those of transformers do."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU())
    for weight in module.parameters():
        weight.data.normal_()
    return module


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A small module under the name of a large one."""
    torch_networks = definitions("torch_networks")

    monkeypatch.setattr(torch_networks, "NETWORKS", {NAME: small})
    monkeypatch.setattr(torch_networks, "import_sources", lambda name: None)  # pyright: ignore
    monkeypatch.setattr(workloads, "MODULES", {NAME: lambda rng: {"x": rng.standard_normal((2, 4), np.float32)}})  # pyright: ignore
    return case_of(NAME, {}, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_modules_are_run_by_those_that_run_modules(case: Case, tmp_path: Path) -> None:
    assert case.network == case.name == NAME
    setting, feeds = Setting(1, tmp_path), case.feeds()
    runs = [EVERY[name].prepare(case, setting)(feeds) for name in ("dovetail", "dovetail-onnx", "torch")]
    for run in runs[:2]:
        np.testing.assert_allclose(run[0], runs[2][0], rtol=1e-5, atol=1e-6)
    assert (tmp_path / "exported.onnx").is_file()
    taking = {name for name, peer in EVERY.items() if peer.takes(case)}
    assert taking == {"dovetail", "dovetail-onnx", "torch", "torch.compile", "torch.compile-max"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_work_of_a_module_is_counted_by_the_process_that_exports_it(case: Case, tmp_path: Path) -> None:
    setting = Setting(1, tmp_path)
    PeerContender(EVERY["torch"], case, setting).start()
    with pytest.raises(FileNotFoundError):
        MachineContender(case, setting).start()
    PeerContender(EVERY["dovetail"], case, setting).start()
    assert MachineContender(case, setting).start() == {"flops": 2 * 2 * 4 * 8, "bytes": 4 * 8 * 4}


def test_layers_of_torch_draw_nothing_while_a_network_is_built(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_networks = definitions("torch_networks")

    drawn, network = torch.nn.init.normal_, torch_networks.network
    built = [network(NAME) for _ in range(2)]
    for one, other in zip(*(b.parameters() for b in built), strict=True):
        assert one.abs().min() > 0 and torch.equal(one, other)
    monkeypatch.setattr(torch_networks, "NETWORKS", {NAME: lambda: torch.nn.Linear(4, 8)})
    assert all((weight == 0).all() for weight in network(NAME).parameters())
    assert torch.nn.init.normal_ is drawn and torch.nn.Linear(4, 8).weight.abs().min() > 0


@pytest.mark.slow
def test_every_module_has_arguments_that_are_drawn_without_it(tmp_path: Path) -> None:
    torch_networks = definitions("torch_networks")

    assert tuple(torch_networks.NETWORKS) == tuple(torch_networks.SOURCES) == tuple(MODULES)
    drawn = "import sys; from dovetail.bench.case import case_of; from pathlib import Path; "
    said = drawn + f"case_of({NAME!r}, {{}}, Path({str(tmp_path)!r})); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True, text=True).stdout == "False\n"


def test_an_exported_file_is_for_modules_alone(tmp_path: Path) -> None:
    assert not EVERY["dovetail-onnx"].takes(written("encoder", SMALL["encoder"], tmp_path))
