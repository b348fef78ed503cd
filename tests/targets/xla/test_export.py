"""StableHLO of models: other programs read it, and it computes the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Builder, Graph, compile, evaluate, ops, save
from dovetail.cli.main import main
from dovetail.derive import laws
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.library import ALL, conv_bias_act, rms_norm
from dovetail.models.bert import BertShape, bert
from dovetail.models.llama import LlamaShape, llama
from dovetail.models.weights import random_weights
from dovetail.runtime.compile import compilation, make_request

jax: Any = pytest.importorskip("jax")
jax_export: Any = pytest.importorskip("jax.export")
export: Any = pytest.importorskip("dovetail.targets.xla.export")


def test_a_file_computes_what_the_model_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = Builder("network")
    x, w = builder.input("x", f32[2, 3]), builder.param("w", f32[3, 4])
    builder.output("y", ops.maximum(ops.matmul(x, w), 0.0))
    save(builder.graph(), tmp_path / "model.txt")
    model = str(tmp_path / "model.txt")
    assert main(["export", model, "--stablehlo", str(tmp_path / "m.mlir")]) == 0
    assert "stablehlo.dot_general" in (tmp_path / "m.mlir").read_text(encoding="utf-8")
    assert main(["export", model, "--stablehlo", str(tmp_path / "m.bin")]) == 0
    read = jax_export.deserialize(bytearray((tmp_path / "m.bin").read_bytes()))
    assert read.platforms == ("cpu", "cuda", "rocm", "tpu")
    rng = np.random.default_rng(0)
    weights, given = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (2, 3)))
    (found,) = read.call([weights, given])
    np.testing.assert_allclose(found, np.maximum(given @ weights, 0), rtol=1e-6)
    assert main(["export", model, "--stablehlo", str(tmp_path / "x"), "--platforms", "abacus"]) != 0
    assert "platforms are cpu" in capsys.readouterr().err


def composed(graph: Graph) -> Graph:
    """What is written as text."""
    request = make_request(target=export.COMPOSED, without=export.UNFUSED, engine="greedy")
    return compilation(graph, request).plan.graph


LAYER: dict[str, tuple[Graph, dict[str, Array], set[str]]] = {
    "llama": (
        llama(LlamaShape(layers=1, hidden=32, heads=4, kv_heads=2, inner=64, vocabulary=16), batch=2, seq=4),
        {"input_ids": np.arange(8).reshape(2, 4)},
        {"rope_attention", "rms_norm", "swiglu", "softmax"},
    ),
    "bert": (
        bert(BertShape(layers=1, hidden=32, heads=4, inner=64, vocabulary=16, positions=8), batch=2, seq=4),
        {
            "input_ids": np.arange(8).reshape(2, 4),
            "token_type_ids": np.zeros((2, 4), np.int64),
            "attention_mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
        },
        {"attention", "residual_layer_norm", "linear", "gelu"},
    ),
}


@pytest.mark.parametrize("name", LAYER)
def test_fused_ops_are_composites_that_compute_their_bodies(name: str, tmp_path: Path) -> None:
    """XLA compiles the composites; our importer reads their text; float64 judges both."""
    graph, feeds, names = LAYER[name]
    params = random_weights(graph)
    wanted = evaluate(graph, feeds, params=params, lift=True)
    made = composed(graph)
    text = export.stablehlo(made)
    found = set(re.findall(r'stablehlo\.composite "dovetail\.(\w+)"', text))
    assert names <= found <= {op.name for op in ALL}
    arrays = [{**params, **feeds}[str(v.attrs["name"])] for v in (*made.parameters, *made.inputs)]
    with jax.enable_x64(True):
        ran = export.function_of(made, composites=True)[0](arrays)
    (tmp_path / "m.mlir").write_text(text, encoding="utf-8")
    read = compile(str(tmp_path / "m.mlir"), target="reference")
    again = read.run({str(v.attrs["name"]): arrays[_number(str(v.attrs["name"]))] for v in read.graph.inputs})
    for want, one, other in zip(wanted.values(), ran, again.values(), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(other, want, rtol=1e-4, atol=1e-5)


def _number(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def test_every_fused_op_is_written_as_a_composite() -> None:
    """Whatever its attributes and however many its results."""
    for op in ALL:
        chosen = laws.fitting(op, op.variants[0], 1)
        text = export.stablehlo(laws.graph_of(op(**chosen), chosen))
        assert f'stablehlo.composite "dovetail.{op.name}"' in text, op.name
        if op is conv_bias_act:
            assert re.search(r"padding = \[\[?\d.*strides = \[\d", text), "lists of numbers"


def test_a_composite_has_the_attributes_of_its_op(tmp_path: Path) -> None:
    builder = Builder("norm")
    x, gain = builder.input("x", f32[2, 8]), builder.param("gain", f32[8])
    builder.output("y", rms_norm(x, gain, eps=0.25))
    save(builder.graph(), tmp_path / "model.txt")
    for ending in ("mlir", "bin"):
        assert main(["export", str(tmp_path / "model.txt"), "--stablehlo", str(tmp_path / f"m.{ending}")]) == 0
    (line,) = [one for one in (tmp_path / "m.mlir").read_text(encoding="utf-8").splitlines() if ".composite" in one]
    assert 'stablehlo.composite "dovetail.rms_norm"' in line
    assert "eps = 2.500000e-01 : f64" in line and 'operands = ["x", "gain"]' in line and 'precision = "own"' in line
    given, scale = np.arange(16, dtype=np.float32).reshape(2, 8), np.full(8, 3, np.float32)
    wanted = 3 * given / np.sqrt((given.astype(np.float64) ** 2).mean(-1, keepdims=True) + 0.25)
    (found,) = jax_export.deserialize(bytearray((tmp_path / "m.bin").read_bytes())).call([scale, given])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    made = composed(builder.graph())
    (inlined,) = jax_export.deserialize(bytearray(export.exported(made))).call([scale, given])
    np.testing.assert_allclose(inlined, wanted, rtol=1e-5)
