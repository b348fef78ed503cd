"""Commands on a mesh: what `dovetail train`, `run` and `bench` choose and compute, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from dovetail import Builder, ops, save
from dovetail.bench import measure
from dovetail.cli.main import main
from dovetail.errors import CheckError
from dovetail.frontends.safetensors import read_safetensors
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.targets.xla.explain import auto

pytest.importorskip("jax")

BATCH, WIDE = 8, 16
RNG = np.random.default_rng(0)
WEIGHTS: Mapping[str, Array] = {
    name: RNG.standard_normal(shape).astype(np.float32) / 4 for name, shape in (("up", (WIDE, 32)), ("down", (32, 4)))
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network with a batch of 8 and one of any size, and data; devices are slow, so that it is worth to split."""
    monkeypatch.setattr(auto, "FLOPS", 1e6)
    for name, rows in (("fixed", BATCH), ("symbolic", symbol("n"))):
        builder = Builder("network")
        x = builder.input("image", f32[rows, WIDE])
        up, down = (builder.param(n, f32[a.shape], a) for n, a in WEIGHTS.items())
        builder.output("logits", ops.matmul(ops.maximum(ops.matmul(x, up), 0.0), down))
        save(builder.graph(), tmp_path / f"{name}.txt")
    image = RNG.standard_normal((4 * BATCH, WIDE)).astype(np.float32)
    np.savez(tmp_path / "data.npz", image=image, labels=np.arange(4 * BATCH) % 4)
    np.save(tmp_path / "image.npy", image[:BATCH])
    return tmp_path


def trained(files: Path, model: str, *more: str) -> int:
    """Two steps of plain gradient descent on one batch after the other."""
    given = ["train", str(files / f"{model}.txt"), "--loss", "cross_entropy", "--data", str(files / "data.npz")]
    given += ["--optimizer", "sgd", "--lr", "0.5", "--steps", "2", "--batch", str(BATCH)]
    return main([*given, "--output", str(files / f"{model}.safetensors"), *more])


@pytest.mark.parametrize("model", ["fixed", "symbolic"])
def test_train_chooses_a_placement_and_computes_what_one_device_does(
    files: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained(files, model, "--mesh", "dp=4", "--place", "auto") == 0
    assert "place: data: " in capsys.readouterr().err
    found = read_safetensors(files / f"{model}.safetensors")
    assert trained(files, model) == 0
    alone = read_safetensors(files / f"{model}.safetensors")
    assert found.keys() == alone.keys() == WEIGHTS.keys()
    for name, array in alone.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
        assert np.abs(array - WEIGHTS[name]).max() > 1e-3, "it is trained"


MESHES = [
    (["--mesh", "dp=3", "--place", "data"], "has 8 elements, and dp has 3 devices"),
    (["--mesh", "dp=4", "--place", "image: tp"], "the mesh has no axis 'tp'"),
    (["--mesh", "dp=4", "--place", "pictures: dp"], "no parameter or input of network fits 'pictures'"),
    (["--mesh", "dp=4", "--place", "auto", "--place", "data"], "it chooses all of them"),
    (["--mesh", "dp=64", "--place", "auto"], "a mesh of 64 devices (dp 64), and JAX finds 8"),
    (["--place", "auto"], "--place without --mesh"),
]


@pytest.mark.parametrize(("given", "said"), MESHES, ids=[said for _, said in MESHES])
@pytest.mark.parametrize("command", ["train", "run"])
def test_what_does_not_fit_is_one_typed_error(
    files: Path, command: str, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "train":
        code = trained(files, "fixed", *given)
    else:
        code = main(["run", str(files / "fixed.txt"), "--input", f"image=@{files / 'image.npy'}", *given])
    err = capsys.readouterr().err
    assert code == 1 and said in err and "hint: " in err and "Traceback" not in err


@pytest.mark.parametrize("model", ["fixed", "symbolic"])
def test_run_chooses_a_placement_and_computes_what_numpy_does(
    files: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["run", str(files / f"{model}.txt"), "--input", f"image=@{files / 'image.npy'}"]
    assert main([*given, "--mesh", "dp=4", "--place", "auto", "--output", str(files / "y.npz")]) == 0
    assert "place: data: " in capsys.readouterr().err
    wanted = np.maximum(np.load(files / "image.npy") @ WEIGHTS["up"], 0) @ WEIGHTS["down"]
    np.testing.assert_allclose(np.load(files / "y.npz")["logits"], wanted, rtol=1e-4, atol=1e-5)


def test_bench_chooses_a_placement(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[Any] = []

    def measured(*given: Any) -> Any:
        taken.append(given[-1])
        raise CheckError("nothing is measured here")

    monkeypatch.setattr(measure, "bench", measured)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["image", "up"], ["y"])],
        "product",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", WIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        [numpy_helper.from_array(WEIGHTS["up"], "up")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (files / "model.onnx").write_bytes(made.SerializeToString())
    given = ["bench", str(files / "model.onnx"), "--threads", "1", "--size", f"n={BATCH}"]
    assert main([*given, "--mesh", "dp=4", "--place", "auto"]) == CheckError.exit_code
    assert (dict(taken[0].mesh), dict(taken[0].rules)) == ({"dp": 4}, {"image": "dp"})
    capsys.readouterr()
    assert main([*given, "--mesh", "dp=3", "--place", "data"]) == 1
    assert "has 8 elements, and dp has 3 devices" in capsys.readouterr().err and len(taken) == 1
