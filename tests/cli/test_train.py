"""`dovetail train`: an ONNX model trained on arrays, resumed, written back, and what is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.commands import Shell

RNG = np.random.default_rng(8)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A classifier of four classes, whose last bias has only four numbers."""
    weights = {
        "w0": RNG.normal(size=(8, 16)) * 0.3,
        "b0": np.zeros(16),
        "w1": RNG.normal(size=(16, 4)) * 0.3,
        "b1": np.zeros(4),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w1", "b1"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    path = tmp_path / "model.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(made.SerializeToString())
    return str(path)


def examples(path: Path, count: int = 96, **changed: Any) -> str:
    x = RNG.normal(size=(count, 8)).astype(np.float32)
    arrays: dict[str, Any] = {"x": x, "labels": np.argmax(x[:, :4] - x[:, 4:] + [0, 0, 0, 1], -1), **changed}
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            if array is not None:
                with archive.open(f"{name}.npy", "w") as stream:
                    np.save(stream, array)
    return str(path)


def initializers(path: str | Path) -> dict[str, Any]:
    model = onnx.ModelProto.FromString(Path(path).read_bytes())
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.slow
def test_an_onnx_file_is_trained_and_written_back(shell: Shell, model: str, tmp_path: Path) -> None:
    data, test = examples(tmp_path / "train.npz", 320), examples(tmp_path / "test.npz", 100)
    files = {n: str(tmp_path / n) for n in ("run.jsonl", "run.html", "run.safetensors")}
    line = ["train", model, "--loss", "cross_entropy", "--data", data, "--test", test, "--lr", "0.03"]
    line += ["--schedule", "cosine", "--warm-up", "5", "--log", files["run.jsonl"], "--html", files["run.html"]]
    said = shell(*line)
    assert said.code == 0 and said.out.startswith("100 steps in "), said.err
    assert "trains 4 of 4 parameters, 212 numbers: w0, b0, w1, b1" in said.out
    assert "classifier: step 100 of 100, loss" in said.err and "┤" in said.err
    accuracy = float(said.out.rsplit("accuracy ", 1)[1].split()[0])
    trained = initializers(tmp_path / "model.trained.onnx")
    with np.load(test) as arrays:
        hidden = np.maximum(arrays["x"] @ trained["w0"] + trained["b0"], 0)
        logits: Any = hidden @ trained["w1"] + trained["b1"]
        right = float(np.mean(logits.argmax(-1) == arrays["labels"], dtype=np.float64))
    assert accuracy == pytest.approx(right, abs=1e-4) and accuracy > 0.85
    assert np.abs(trained["b1"]).max() > 0.01, "a bias of four numbers is trained too"
    steps = [json.loads(text) for text in Path(files["run.jsonl"]).read_text().splitlines()]
    assert [s["step"] for s in steps] == list(range(1, 101)) and steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    page = Path(files["run.html"]).read_text()
    assert page.count("<polyline") == 3 and "100 steps" in page


@pytest.mark.slow
def test_a_resumed_run_is_the_same(shell: Shell, model: str, tmp_path: Path) -> None:
    data, state, log = examples(tmp_path / "train.npz"), str(tmp_path / "s.safetensors"), tmp_path / "run.jsonl"
    line = ["train", model, "--loss", "cross_entropy", "--data", data, "--json", "--log", str(log)]
    whole = shell(*line, "--steps", "10", "--output", str(tmp_path / "a.onnx"))
    first = shell(*line, "--steps", "6", "--checkpoint", state, "--output", str(tmp_path / "b.safetensors"))
    # What a killed run has logged after its last checkpoint is dropped.
    log.write_text(log.read_text() + json.dumps({"step": 7, "loss": 9.0}) + "\n" + '{"step": 8, "lo')
    rest = shell(*line, "--steps", "10", "--checkpoint", state, "--resume", "--output", str(tmp_path / "c.onnx"))
    assert whole.data["losses"] == first.data["losses"] + rest.data["losses"]
    assert [json.loads(text)["step"] for text in log.read_text().splitlines()] == list(range(1, 11))
    one, other = initializers(tmp_path / "a.onnx"), initializers(tmp_path / "c.onnx")
    assert all(one[n].tobytes() == other[n].tobytes() for n in one)
    over = shell(*line, "--steps", "10", "--checkpoint", state, "--resume")
    assert over.code == 1 and "has done 10 of 10 steps" in over.err


BAD: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "nan": ({"x": np.full((96, 8), np.nan, np.float32)}, [], "x of .* has NaN or infinities in 96 rows, row 0 first"),
    "labels": ({"labels": np.full(96, 4)}, [], "has 4 at 0, and there are 4 classes"),
    "no labels": ({"labels": None}, [], "has no array labels"),
    "strange": ({"z": np.zeros(96)}, [], "has z, which nothing reads"),
    "shape": ({"x": np.zeros((96, 9), np.float32)}, [], r"x of .* has the shape \[96, 9\]"),
    "rows": ({"labels": np.zeros(95, np.int64)}, [], "different numbers of rows: x 96, labels 95"),
    "dtype": ({"labels": np.zeros(96)}, [], "labels of .* is float64, and int64 is read"),
    "batch": ({}, ["--batch", "97"], "96 examples, and a batch has 97"),
    "optimizer": ({}, ["--optimizer", "magic"], "--optimizer magic"),
    "momentum": ({}, ["--momentum", "0.9"], "--momentum with adamw"),
    "schedule": ({}, ["--schedule", "magic"], "--schedule magic"),
    "warm-up": ({}, ["--warm-up", "30"], "--warm-up 30 of 30 steps"),
    "steps": ({}, ["--steps", "0"], "--steps 0"),
    "resume": ({}, ["--resume"], "--resume without --checkpoint"),
    "output": ({}, ["--output", "weights.npz"], "--output weights.npz"),
    "wrt": ({}, ["--wrt", "q*"], "fits 'q\\*'"),
    "pattern of inputs": ({}, ["--wrt", "x"], "is an input and no parameter"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str, shell: Shell, model: str, tmp_path: Path) -> None:
    changed, options, told = BAD[name]
    data = examples(tmp_path / "train.npz", **changed)
    said = shell("train", model, "--loss", "cross_entropy", "--data", data, "--target", "reference", *options)
    assert said.code == 1 and not said.out
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(said.err)


@pytest.mark.slow
def test_a_loss_that_is_no_number_and_files_that_are_none(shell: Shell, model: str, tmp_path: Path) -> None:
    data = examples(tmp_path / "train.npz")
    said = shell("train", model, "--loss", "entropy", "--data", data)
    assert said.code == 1 and "there is no loss 'entropy'" in said.err
    said = shell("train", model, "--data", data)
    assert said.code == 1 and "has no output 'loss'" in said.err
    said = shell("train", model, "--loss", "cross_entropy", "--data", str(tmp_path / "none.npz"))
    assert said.code == 1 and "does not exist" in said.err
    said = shell("train", model, "--loss", "cross_entropy", "--data", model)
    assert said.code == 1 and "cannot be read as arrays" in said.err


@pytest.mark.slow
def test_narrow_pairs_are_trained_and_added_to_their_weights(shell: Shell, model: str, tmp_path: Path) -> None:
    data, test = examples(tmp_path / "train.npz", 320), examples(tmp_path / "test.npz", 100)
    line = ["train", model, "--loss", "cross_entropy", "--data", data, "--test", test, "--steps", "60"]
    said = shell(*line, "--lr", "0.03", "--lora", "w*", "--lora-rank", "2", "--wrt", "b1", "--json")
    assert said.code == 0, said.err
    before, after = initializers(model), initializers(tmp_path / "model.trained.onnx")
    assert set(after) == set(before) and after["b0"].tobytes() == before["b0"].tobytes()
    for name in ("w0", "w1"):
        values: Any = np.linalg.svd(after[name] - before[name])[1]
        assert values[1] > 1e-3 and np.all(values[2:] < 1e-5), "of rank 2"
    with np.load(test) as arrays:
        hidden = np.maximum(arrays["x"] @ after["w0"] + after["b0"], 0)
        logits: Any = hidden @ after["w1"] + after["b1"]
        right = float(np.mean(logits.argmax(-1) == arrays["labels"], dtype=np.float64))
    told = json.loads(said.out)
    assert told["test"]["accuracy"] == pytest.approx(right, abs=0.02) and told["losses"][-1] < told["losses"][0]
    refused = shell("train", model, "--loss", "cross_entropy", "--data", data, "--lora-rank", "2")
    assert refused.code == 1 and "--lora-rank without --lora" in refused.err
