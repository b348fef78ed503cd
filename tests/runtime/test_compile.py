"""Compiling from end to end: models against the float64 reference, options, gates, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.declare import fused_op
from dovetail.dtypes import f32
from dovetail.errors import BindError, GateError, LoadError, OptionError, ParseError, UnsupportedError
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.ir.text import print_graph
from dovetail.models import BertShape, LlamaShape, ResnetShape, bert, llama, llama_step, random_weights, resnet, unet
from dovetail.report.json_form import as_dict
from dovetail.runtime.compile import compile
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.devices import missing
from tests.tolerances import assert_close

SMALL_BERT = BertShape(layers=2, hidden=16, heads=4, inner=32, vocabulary=50, positions=16)
SMALL_LLAMA = LlamaShape(layers=2, hidden=16, heads=4, kv_heads=2, inner=24, vocabulary=50, normed_heads=True)
RNG = np.random.default_rng(3)


def ids(*shape: int) -> Array:
    return RNG.integers(0, 50, shape)


def feeds_of(name: str) -> tuple[Graph, dict[str, Array]]:
    match name:
        case "bert":
            mask = np.ones((2, 5), np.int64)
            mask[1, 3:] = 0
            feeds = {"input_ids": ids(2, 5), "token_type_ids": np.zeros((2, 5), np.int64), "attention_mask": mask}
            return bert(SMALL_BERT), feeds
        case "llama":
            return llama(SMALL_LLAMA), {"input_ids": ids(2, 6)}
        case "llama_step":
            past = {f"past_{s}.{i}": RNG.normal(size=(2, 2, 3, 4)).astype(np.float32) for s in "kv" for i in (0, 1)}
            return llama_step(SMALL_LLAMA), {"input_ids": ids(2, 1), "position": np.array([3]), **past}
        case "resnet":
            image = RNG.normal(size=(2, 3, 16, 16)).astype(np.float32)
            return resnet(ResnetShape(blocks=(1, 2), width=4, classes=5), image=16), {"image": image}
        case _:
            return unet(8, groups=2, image=8), {"image": RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("model", ["bert", "llama", "llama_step", "resnet", "unet"])
def test_models_run_right_whatever_was_fused(model: str, target: str) -> None:
    graph, feeds = feeds_of(model)
    weights = random_weights(graph)
    program = compile(graph, target=target, verify_each_pass=True).bind(weights)
    got, wanted = program.run(feeds), evaluate(graph, feeds, params=weights, lift=True)
    assert got.keys() == wanted.keys()
    for name in wanted:
        assert_close(got[name], wanted[name], f32, scale=5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert", "llama", "llama_step", "resnet", "unet"])
def test_models_are_planned_for_cuda_and_say_that_they_cannot_run(model: str) -> None:
    graph, feeds = feeds_of(model)
    program = compile(graph, target="cuda", verify_each_pass=True)
    assert program.report.kernels
    if missing():
        with pytest.raises(UnsupportedError, match="CUDA"):
            program.bind(random_weights(graph)).run(feeds)


@pytest.mark.exhaustive
def test_one_program_serves_every_size_and_each_has_its_own_report() -> None:
    graph = llama(SMALL_LLAMA, batch=1)
    weights = random_weights(graph)
    program = compile(graph, target="cpu").bind(weights)
    for length in (1, 3, 8):
        feeds = {"input_ids": ids(1, length)}
        wanted = evaluate(graph, feeds, params=weights, lift=True)["logits"]
        assert_close(program.run(feeds)["logits"], wanted, f32, scale=5)
    short, long = program.specialize({"s": 4}), program.specialize({"s": 400})
    assert short.report.predicted_seconds < long.report.predicted_seconds
    assert short.report.assumed_sizes == {} != program.report.assumed_sizes
    assert short.plan.fingerprint != long.plan.fingerprint


X, W, B = input("x", f32[4, 8]), param("w", f32[8, 16]), param("b", f32[16])
GRAPH = Graph.of(ops.relu(X @ W + B))


def test_a_rule_and_a_pass_can_be_switched_off_by_name() -> None:
    assert compile(GRAPH).graph.count() == 4
    assert "linear" not in compile(GRAPH, without=["linear"]).report.ops_after
    assert compile(GRAPH, without=["fuse", "mark_regions", "fuse_epilogues"]).graph.count() == 6


@pytest.mark.slow
def test_required_fusions_are_a_gate() -> None:
    compile(GRAPH, require={"linear": 1}, require_clean=True)
    with pytest.raises(GateError, match=r"linear: 1 of 2"):
        compile(GRAPH, require={"linear": 2})
    square = Graph.of(ops.relu(X @ W + param("b", f32[4, 16])), name="square")
    with pytest.raises(GateError, match="bias_is_a_vector") as raised:
        compile(square, require=["linear"], without=["matmul_add", "fuse_epilogues"])
    assert "linear: 0 of 1" in str(raised.value)
    with pytest.raises(GateError, match="1 fusion was missed"):
        compile(square, require_clean=True, without=["matmul_add"])


def test_an_op_of_the_user_is_preferred_and_runs() -> None:
    @fused_op(shapes="x[*, m, k] w[k, n] b[n]")
    def my_dense(x: Value, w: Value, b: Value) -> Value:
        """relu(x @ w + b), my way."""
        return ops.relu(x @ w + b)

    program = compile(GRAPH, ops=[my_dense], require=["my_dense"])
    x, w, b = (RNG.normal(size=s).astype(np.float32) for s in ((4, 8), (8, 16), (16,)))
    np.testing.assert_allclose(program.bind({"w": w, "b": b})(x=x)["y"], np.maximum(x @ w + b, 0), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"without": ["fusing"]}, "no pass or rule 'fusing'"),
        ({"without": ["legalize"]}, "legalize cannot be switched off"),
        ({"require": ["swigloo"]}, "no rule 'swigloo'"),
        ({"dispatch": {"matmull": "force_native"}}, "no op 'matmull'"),
        ({"dispatch": {"matmul": "fast"}}, "dispatched 'fast'"),
        ({"verify_each_passs": True}, "no option 'verify_each_passs'"),
    ],
)
def test_an_unknown_name_is_one_typed_error_with_a_hint(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        compile(GRAPH, **options)
    assert raised.value.hint


def test_an_unknown_target_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="no target 'tpu'") as raised:
        compile(GRAPH, target="tpu")
    assert raised.value.exit_code == 2 and "cpu" in raised.value.hint


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_an_array_that_changes_after_it_is_bound_is_never_half_used(target: str) -> None:
    w = param("w", f32[4])
    graph = Graph.of({"direct": input("x", f32[4]) * w, "derived": ops.exp(w)})
    array, x = np.ones(4, np.float32), np.ones(4, np.float32)
    program = compile(graph, target=target, cache="off").bind({"w": array})
    program(x=x)
    array[:] = 5
    found = program(x=x)
    np.testing.assert_allclose(found["derived"], np.exp(found["direct"]), rtol=1e-6)


def test_bad_runs_are_refused_with_what_was_found_and_expected() -> None:
    program = compile(GRAPH)
    x, w, b = (RNG.normal(size=s).astype(np.float32) for s in ((4, 8), (8, 16), (16,)))
    with pytest.raises(BindError, match="w"):
        program.run({"x": x})
    bound = program.bind({"w": w, "b": b})
    for feeds in ({}, {"x": x[:2]}, {"x": x.astype(np.float64)}, {"x": x, "z": x}, {"x": x[0]}):
        with pytest.raises(BindError) as raised:
            bound.run(feeds)
        assert raised.value.hint


def test_a_graph_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "graph.dove"
    file.write_text(print_graph(GRAPH))
    assert compile(file).graph.outputs["y"] is compile(GRAPH).graph.outputs["y"]
    file.write_text("graph broken(")
    with pytest.raises(ParseError, match="line 1"):
        compile(file)
    with pytest.raises(LoadError, match="does not exist"):
        compile(tmp_path / "nothing.dove")
    with pytest.raises(LoadError, match="does not exist"):
        compile(tmp_path / "nothing.onnx")
    model = tmp_path / "model.onnx"
    model.write_bytes(b"")
    with pytest.raises(LoadError, match="is empty"):
        compile(model)
    with pytest.raises(LoadError, match="is not a file"):
        compile(tmp_path)
    file.write_bytes(b"\xff\xfe\x00junk")
    with pytest.raises(LoadError, match="neither"):
        compile(file)


@pytest.mark.slow
def test_every_boundary_has_a_reason_and_a_price() -> None:
    graph, _ = feeds_of("bert")
    report = compile(graph).report
    pairs = {(b.producer, b.consumer) for b in report.boundaries}
    names = {k.name for k in report.kernels}
    assert {n for pair in pairs for n in pair} <= names
    for boundary in report.boundaries:
        assert boundary.reason and boundary.message
        assert boundary.reason == "bind_time" or boundary.bytes > 0
        assert boundary.reason != "bind_time" or boundary.seconds == 0


def test_the_json_has_what_it_promises() -> None:
    square = Graph.of(ops.relu(X @ W + param("b", f32[4, 16])))
    found = as_dict(compile(square, without=["matmul_add", "fuse_epilogues"]).report)
    assert found["schema_version"] == 1
    assert (found["nodes_before"], found["nodes_after"]) == (6, 5)
    assert [f["rule"] for f in found["fused"]] == ["region"]
    (missed,) = found["missed"]
    assert missed.keys() >= {"rule", "node", "reason", "message", "hint", "bytes", "seconds"}
    assert (missed["rule"], missed["reason"], missed["op"]) == ("linear", "bias_is_a_vector", "relu")
    # The product is written once and read once: 4 by 16 numbers of 4 bytes.
    assert missed["bytes"] == 2 * 4 * 16 * 4


@pytest.mark.slow
def test_reports_do_not_change_between_runs() -> None:
    graph, _ = feeds_of("llama")
    again, _ = feeds_of("llama")
    first, second = compile(graph).report, compile(again).report
    keep = {"passes"}
    assert {k: v for k, v in as_dict(first).items() if k not in keep} == {
        k: v for k, v in as_dict(second).items() if k not in keep
    }
    assert first.summary == second.summary
