"""Torch modules as workloads: the peers that run modules compute the same, and the others leave them out."""

# torch is optional, and its classes have no types here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.bench.case import case_of
from dovetail.bench.peer_process import MachineContender
from dovetail.bench.peers import EVERY, Setting
from dovetail.bench.workloads import MODULES

torch: Any = pytest.importorskip("torch")


def small() -> tuple[Any, dict[str, Any]]:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU()), {"x": torch.randn(2, 4)}


@pytest.mark.filterwarnings("ignore")
def test_modules_are_run_by_those_that_run_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.bench import torch_networks

    assert tuple(torch_networks.NETWORKS) == MODULES
    monkeypatch.setattr(torch_networks, "NETWORKS", {MODULES[0]: small})
    case = case_of(MODULES[0], {}, tmp_path)
    assert case.network == case.name == MODULES[0]
    setting, feeds = Setting(1, tmp_path), case.feeds()
    runs = [EVERY[name].prepare(case, setting)(feeds) for name in ("dovetail", "torch")]
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-5, atol=1e-6)
    taking = {name for name, peer in EVERY.items() if peer.takes(case)}
    assert taking == {"dovetail", "torch", "torch.compile", "torch.compile-max"}
    assert MachineContender(case, setting).start()["flops"] == 2 * 2 * 4 * 8
