"""Every peer computes the same: each is judged by the float64 reference, on small sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.bench.case import written
from dovetail.bench.peers import EVERY, PEERS, Setting, chosen
from dovetail.errors import OptionError
from dovetail.ir.dtype import f32
from dovetail.runtime.load import load
from dovetail.targets.reference.interpreter import evaluate
from tests.bench.small import SMALL
from tests.tolerances import assert_close

WRITTEN = ("torch", "jax")
"""For these every network is written by hand; torch.compile runs what torch runs, and takes half a minute."""
READERS = ("dovetail", "dovetail-module", "onnxruntime", "onnxruntime-optimised", "openvino")


@pytest.mark.parametrize(
    ("name", "workload"),
    [*((name, workload) for name in WRITTEN for workload in SMALL), *((name, "encoder") for name in READERS)],
)
# Peers warn of what they will drop; that is theirs to mend.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_peer_computes_the_workload(name: str, workload: str, tmp_path: Path) -> None:
    peer = EVERY[name]
    if peer.absent:
        pytest.skip(f"{', '.join(peer.absent)} is not installed")
    case = written(workload, SMALL[workload], tmp_path)
    feeds = case.feeds()
    run = peer.prepare(case, Setting(1, tmp_path))
    wanted = evaluate(load(case.model), feeds, lift=True)
    for got, expected in zip(run(feeds), wanted.values(), strict=True):
        assert_close(np.asarray(got), expected, f32, scale=20.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_optimiser_that_finds_nothing_is_left_out(tmp_path: Path) -> None:
    peer = EVERY["onnxruntime-optimised"]
    if peer.absent:
        pytest.skip(f"{', '.join(peer.absent)} is not installed")
    case = written("resnet", SMALL["resnet"], tmp_path)
    with pytest.raises(OptionError, match="nothing to fuse"):
        peer.prepare(case, Setting(1, tmp_path))


def test_a_compiler_that_is_missing_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    case = written("encoder", SMALL["encoder"], tmp_path)
    with pytest.raises(OptionError, match=r"C\+\+ compiler"):
        EVERY["torch.compile"].prepare(case, Setting(1, tmp_path))


def test_peers_are_chosen_by_name() -> None:
    assert chosen(None) is PEERS
    assert [peer.name for peer in chosen("openvino, onnxruntime,openvino")] == ["openvino", "onnxruntime"]
    for wrong in ("tvm", "dovetail"):
        with pytest.raises(OptionError, match=wrong):
            chosen(wrong)


def test_networks_are_written_for_built_in_workloads_alone(tmp_path: Path) -> None:
    case = written("encoder", SMALL["encoder"], tmp_path)
    assert EVERY["jax"].takes(case) and EVERY["onnxruntime"].takes(case)
    (tmp_path / "shape.json").unlink()
    assert not EVERY["jax"].takes(case) and EVERY["onnxruntime"].takes(case)
