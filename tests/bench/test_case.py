"""A workload in files is the workload: its model, its inputs, its weights and its sizes come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from dovetail.bench.case import FIXED, INPUTS, MODEL, case_of, save_arrays, written
from dovetail.bench.net import Net
from dovetail.errors import LoadError, OptionError
from tests.bench.small import SMALL


def test_weights_and_sizes_come_back(tmp_path: Path) -> None:
    case = written("resnet", SMALL["resnet"], tmp_path)
    assert case.shape == SMALL["resnet"].shape
    assert case.weights()["stem.weight"].shape == (8, 3, 7, 7)
    assert case.feeds()["image"].shape == (1, 3, 32, 32)


def _adding(path: Path) -> None:
    net = Net("adding")
    x, y = (net.input(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    net.output("z", net.op("Add", x, y))
    path.write_bytes(net.model().SerializeToString())


def test_a_file_gets_inputs_of_its_signature(tmp_path: Path) -> None:
    _adding(tmp_path / "adding.onnx")
    case = case_of(str(tmp_path / "adding.onnx"), {"n": 4}, tmp_path)
    assert case.name == "adding" and case.shape is None and case.fixed() == {}
    assert {name: array.shape for name, array in case.feeds().items()} == {"x": (4,), "y": (4,)}


def test_a_folder_brings_its_inputs_and_what_is_fixed(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "adding"
    folder.mkdir(parents=True)
    _adding(folder / MODEL)
    save_arrays(folder / INPUTS, {"x": np.ones(3, np.float32)})
    save_arrays(folder / FIXED, {"y": np.zeros(3, np.float32)})
    case = case_of(str(folder), {}, tmp_path)
    assert case.name == "mine/adding"
    assert set(case.feeds()) == {"x", "y"} and set(case.fixed()) == {"y"}


@pytest.mark.parametrize("name", ["file", "input:0", "a/b", "self"])
def test_arrays_keep_their_names(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    _adding(folder / MODEL)
    save_arrays(folder / INPUTS, {name: np.arange(3)})
    assert case_of(str(folder), {}, tmp_path).feeds()[name].tolist() == [0, 1, 2]


def test_what_is_no_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="nonsense"):
        case_of("nonsense", {}, tmp_path)
    _adding(tmp_path / MODEL)
    (tmp_path / INPUTS).write_bytes(b"no archive")
    with pytest.raises(LoadError, match=INPUTS):
        case_of(str(tmp_path), {}, tmp_path).feeds()
