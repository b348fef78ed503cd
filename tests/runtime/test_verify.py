"""Verifying: edits judged in float64 one by one; wrong rules are caught and named."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.declare import fused_op
from dovetail.dtypes import DType, bf16, f16, f32, f64
from dovetail.errors import OptionError
from dovetail.ir.leaf import constant, input, param
from dovetail.models import BertShape, LlamaShape, ResnetShape, bert, llama, llama_step, resnet, unet
from dovetail.passes import pipeline
from dovetail.passes.canonical.rule import Rule, rule
from dovetail.passes.canonicalize import RULES, canonicalize
from dovetail.runtime.bisect import bisect
from dovetail.runtime.compile import compilation, compile
from dovetail.runtime.load import load
from dovetail.runtime.random_inputs import random_inputs, small_sizes
from dovetail.runtime.request import make_request
from dovetail.runtime.verify import Verification, outputs_of, verify_compilation
from tests.frontends.onnx.test_exporters import FILES, FOLDER

_LLAMA = LlamaShape(layers=6, hidden=16, heads=4, kv_heads=2, inner=24, vocabulary=50)
MODELS = {
    "bert": bert(BertShape(layers=2, hidden=16, heads=4, inner=32, vocabulary=50, positions=16)),
    "llama": llama(_LLAMA),
    "llama_step": llama_step(_LLAMA),
    "resnet": resnet(ResnetShape(blocks=(1, 1), width=4, classes=5), image=16),
    "unet": unet(8, groups=2, image=8),
}


def verified(graph: Graph, **options: Any) -> Verification:
    return verify_compilation(compilation(graph, make_request(**options), history=True))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["greedy", "egraph"])
@pytest.mark.parametrize("model", MODELS)
def test_built_in_models_hold(model: str, engine: str) -> None:
    found = verified(MODELS[model], engine=engine)
    assert found.replays and not found.wrong and found.holds
    assert all(r.checked for r in found.rules), "every rule was evaluated"


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_files_of_exporters_hold(file: str) -> None:
    found = verified(load(FOLDER / file))
    assert found.holds, [(w.made.edit.name, w.deviation) for w in found.wrong]
    assert all(r.checked for r in found.rules)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["llama__dynamo18__sdpa__dynamic.onnx", "vit__dynamo18__sdpa__dynamic.onnx"])
def test_files_hold_with_the_other_engine(file: str) -> None:
    found = verified(load(FOLDER / file), engine="egraph")
    assert found.holds and all(r.checked for r in found.rules)


@pytest.mark.slow
def test_the_program_is_judged_too() -> None:
    made = compilation(MODELS["bert"], make_request(), history=True)
    drawn = random_inputs(MODELS["bert"])
    program = compile(MODELS["bert"], params=drawn.params)
    found = verify_compilation(made, drawn, run=program.run)
    (in_float64, on_cpu) = found.outputs
    assert (in_float64.where, on_cpu.where) == ("float64", "program")
    assert found.holds and 0 < on_cpu.deviation < 1e-5
    off = verify_compilation(made, drawn, run=lambda feeds: {n: a + 1 for n, a in program.run(feeds).items()})
    assert not off.holds and not off.wrong and [o.holds for o in off.outputs] == [True, False]


@pytest.mark.slow
def test_of_edits_that_look_alike_three_are_evaluated() -> None:
    found = verified(MODELS["llama"])
    norm = next(r for r in found.rules if r.rule == "swiglu")
    assert (norm.applications, norm.kinds, norm.checked) == (6, 1, 3)


@fused_op
def doubled_relu(x: Value) -> Value:
    """Twice what is above zero."""
    return ops.relu(x) * 2.0


@doubled_relu.spelling
def tripled(x: Value) -> Value:
    """Not the same at all."""
    return ops.relu(x * 3.0)


def wrong_model() -> Graph:
    """Two layers of which the second is written as the wrong spelling has it."""
    x = input("x", f32["n", 8])
    fine = ops.tanh(ops.relu(x) * 2.0)
    return Graph.of({"fine": fine, "y": ops.exp(ops.relu(ops.tanh(fine) * 3.0))}, inputs=[x])


@pytest.mark.parametrize("engine", ["greedy", "egraph"])
def test_a_wrong_spelling_is_caught_and_named(engine: str) -> None:
    made = compilation(wrong_model(), make_request(ops=(doubled_relu,), engine=engine), history=True)
    found = verify_compilation(made)
    assert not found.holds and found.replays
    assert {check.made.edit.rule for check in found.wrong} == {"doubled_relu"}
    (check, *_) = found.wrong
    assert check.made.edit.variant.endswith("tripled") and check.deviation > 0.1
    assert [o.holds for o in found.outputs] == [True, False]

    history = made.lowered.history
    assert history is not None
    drawn = random_inputs(history.start)
    wanted = outputs_of(history.start, drawn)
    search = bisect(history, lambda graph: outputs_of(graph, drawn), wanted, 1e-3)
    assert search.culprit is not None and search.culprit.made.edit.variant.endswith("tripled")
    assert search.culprit.before.deviation <= 1e-3 < search.culprit.after.deviation
    assert search.culprit.after.output == "y"
    assert bisect(history, lambda graph: outputs_of(graph, drawn), wanted, 1e-3, output="fine").culprit is None


@rule(ops.tanh)
def tanh_is_nearly_linear(value: Value) -> Value | None:
    """Wrong, and not by much."""
    return value.operands[0] * 0.999 if value.operands[0].op is ops.tanh else None


@rule(ops.exp)
def exp_is_an_element_that_is_not_there(value: Value) -> Value | None:
    """Wrong in a way that only shows when it is computed."""
    return ops.gather(value.operands[0], constant(np.full(8, 99)), axis=-1)


def with_rule(monkeypatch: pytest.MonkeyPatch, wrong: Rule) -> None:
    monkeypatch.setattr(pipeline, "canonicalize", partial(canonicalize, rules=(*RULES, wrong)))


def test_a_wrong_rewrite_is_caught_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rule(monkeypatch, tanh_is_nearly_linear)
    x = input("x", f32["n", 8])
    graph = Graph.of(ops.tanh(ops.tanh(ops.relu(x) + 1.0)))
    found = verified(graph)
    (check,) = found.wrong
    assert check.made.edit.rule == "tanh_is_nearly_linear" and check.made.sweep == "canonicalize"
    assert found.rules[0].worst is check, "the worst comes first"


def test_what_cannot_be_computed_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rule(monkeypatch, exp_is_an_element_that_is_not_there)
    found = verified(Graph.of(ops.exp(input("x", f32["n", 8]))))
    (check,) = found.wrong
    assert check.made.edit.rule == "exp_is_an_element_that_is_not_there" and "index 99 into an axis" in check.message
    assert [o.deviation for o in found.outputs] == [np.inf]


@pytest.mark.slow
def test_bisecting_takes_what_runs_the_graph() -> None:
    """A kernel that is wrong shows where its op comes in, though float64 finds nothing."""
    made = compilation(MODELS["bert"], make_request(), history=True)
    history = made.lowered.history
    assert history is not None
    drawn = random_inputs(history.start)
    wanted = outputs_of(history.start, drawn)

    def run(graph: Graph) -> dict[str, np.ndarray]:
        off = 0.5 if any(v.op.name == "attention" for v in graph.values) else 0.0
        return {name: array + off for name, array in outputs_of(graph, drawn).items()}

    found = bisect(history, run, wanted, 1e-3)
    assert found.culprit is not None and found.culprit.made.edit.rule == "attention"
    assert found.probes <= 3 + len(history.edits).bit_length()
    assert bisect(history, run, {n: a + 9 for n, a in wanted.items()}, 1e-3).culprit is None, "wrong from the start"


@pytest.mark.slow
def test_a_compilation_without_history_cannot_be_verified() -> None:
    with pytest.raises(OptionError, match="without its history"):
        verify_compilation(compilation(MODELS["unet"], make_request()))


def test_sizes_that_nothing_tells_are_drawn_so_that_all_constraints_hold() -> None:
    x = input("x", f32["a", "b"])
    graph = Graph.of(ops.split(x, axis=-1, parts=16))
    sizes = small_sizes(graph, {"a": 7})
    assert sizes["a"] == 7 and sizes["b"] % 16 == 0


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
@pytest.mark.parametrize("count", [4, 5, 7, 33])
def test_a_sum_times_one_over_its_count_is_a_mean(dtype: DType, count: int) -> None:
    """The factor is rounded to the dtype, and the rule stands for the count that it is meant for."""
    x = input("x", dtype[3, count])
    for y in (ops.reduce_sum(x, axes=(-1,)) * (1 / count), ops.reduce_sum(x, axes=(-1,)) / float(count)):
        found = verified(Graph.of(y))
        assert found.holds, [(w.made.edit.rule, w.deviation) for w in found.wrong]
        assert "sum_over_count" in {r.rule for r in found.rules}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 16), (16, 1), (2, 7)])
@pytest.mark.parametrize("channels", [(2, 1), (3, 8), (16, 16)])
def test_convolutions_over_one_pixel_hold(shape: tuple[int, int], channels: tuple[int, int]) -> None:
    """A convolution along fewer axes may sum in another order, so that strict programs keep the axes."""
    x, w = input("x", f32[2, channels[0], *shape]), param("w", f32[channels[1], channels[0], 3, 3])
    graph = Graph.of(ops.relu(ops.conv(x, w, padding=(1, 1, 1, 1))))
    found = verified(graph)
    assert found.holds, [(w.made.edit.rule, w.deviation) for w in found.wrong]
    strict = verified(graph, strict=True)
    assert strict.holds and "without_axes_of_one_pixel" not in {r.rule for r in strict.rules}


def test_parameters_of_symbolic_sizes_are_drawn() -> None:
    graph = Graph.of(ops.relu(input("x", f32["b", 4]) + param("p", f32["b", 1])))
    drawn = random_inputs(graph)
    assert drawn.params["p"].shape == (drawn.sizes["b"], 1) and verified(graph).holds
