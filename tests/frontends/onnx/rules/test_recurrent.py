"""Recurrent networks against onnxruntime, and by hand where it has no kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from dovetail.errors import DovetailError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32, f64, i32
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZE, WIDTH = 3, 2


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def network(op: str, given: str = "", *, opset: int = 14, directions: int = 1, **attributes: Any) -> onnx.ModelProto:
    """A node of an operator with the inputs that are given beside the weights: b lens h c p."""
    gates = GATES[op]
    wanted = given.split()
    names = [name if name in wanted else "_" for name in ("b", "lens", "h", *(("c", "p") if op == "LSTM" else ()))]
    while names and names[-1] == "_":
        names.pop()
    weights = {
        "w": draw(directions, gates * SIZE, WIDTH, seed=1),
        "r": draw(directions, gates * SIZE, SIZE, seed=2),
        "b": draw(directions, 2 * gates * SIZE, seed=3),
        "p": draw(directions, 3 * SIZE, seed=4),
    }
    inputs = {"x": f32["s", "n", WIDTH]}
    if attributes.get("layout"):
        inputs["x"] = f32["n", "s", WIDTH]
    inputs |= {"lens": i32["n"]} if "lens" in wanted else {}
    state = f32["n", directions, SIZE] if attributes.get("layout") else f32[directions, "n", SIZE]
    inputs |= {name: state for name in ("h", "c") if name in wanted}
    outputs = ["y", "y_h", "y_c"] if op == "LSTM" else ["y", "y_h"]
    made = node(f"{op} x w r {' '.join(names)} -> {' '.join(outputs)}", hidden_size=SIZE, **attributes)
    kept = {k: v for k, v in weights.items() if k in ("w", "r") or k in wanted}
    return model([made], inputs, outputs, opset=opset, initializers=kept)


def feeds(made: onnx.ModelProto, steps: int, batch: int) -> dict[str, Array]:
    known = {"s": steps, "n": batch}
    found: dict[str, Array] = {}
    for i, info in enumerate(made.graph.input):
        shape = [known.get(d.dim_param, d.dim_value) for d in info.type.tensor_type.shape.dim]
        found[info.name] = draw(*shape, seed=10 + i)
    if "lens" in found:
        found["lens"] = np.resize(np.array([steps, 0, 2], np.int32), batch)
    return found


def assert_alike(made: onnx.ModelProto) -> None:
    assert_like_onnxruntime(made, feeds(made, 4, 3), feeds(made, 2, 1), scale=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("opset", [7, 22])
def test_directions_states_and_lengths(op: str, direction: str, opset: int) -> None:
    directions = 2 if direction == "bidirectional" else 1
    assert_alike(network(op, "b", direction=direction, directions=directions, opset=opset))
    assert_alike(network(op, "b lens h c", direction=direction, directions=directions, opset=opset))


@pytest.mark.parametrize("op", GATES)
def test_neither_bias_nor_state(op: str) -> None:
    assert_alike(network(op))


@pytest.mark.slow
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_the_batch_may_stand_first(op: str, direction: str) -> None:
    """onnxruntime has no kernel for it, so that the same layer with swapped axes judges."""
    directions = 2 if direction == "bidirectional" else 1
    first = network(op, "b h c lens", layout=1, direction=direction, directions=directions)
    plain = network(op, "b h c lens", direction=direction, directions=directions)
    given = feeds(plain, 4, 3)
    turned = {k: v if v.ndim == 1 else v.swapaxes(0, 1) for k, v in given.items()}
    (got,), (expected,) = by_dovetail(first, turned), by_dovetail(plain, given)
    np.testing.assert_array_equal(got["y"], expected["y"].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(got["y_h"], expected["y_h"].swapaxes(0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("input_forget", [0, 1])
def test_peepholes(input_forget: int) -> None:
    assert_alike(network("LSTM", "b h c p", input_forget=input_forget))
    assert_alike(network("LSTM", "p lens", direction="bidirectional", directions=2, input_forget=input_forget))


@pytest.mark.slow
@pytest.mark.parametrize("linear", [0, 1])
@pytest.mark.parametrize("given", ["", "b", "b h lens"])
def test_where_the_state_is_reset(linear: int, given: str) -> None:
    assert_alike(network("GRU", given, linear_before_reset=linear))
    assert_alike(network("GRU", given, linear_before_reset=linear, direction="bidirectional", directions=2))


@pytest.mark.slow
@pytest.mark.parametrize("op", GATES)
def test_clip(op: str) -> None:
    assert_alike(network(op, "b h c", clip=0.3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "alpha", "beta"),
    [
        ("Relu", None, None),
        ("Tanh", None, None),
        ("Sigmoid", None, None),
        ("Softsign", None, None),
        ("Softplus", None, None),
        ("Elu", 0.5, None),
        ("Elu", None, None),
        ("LeakyRelu", 0.3, None),
        ("LeakyRelu", None, None),
        ("ThresholdedRelu", 0.4, None),
        ("HardSigmoid", 0.3, 0.4),
        ("HardSigmoid", None, None),
        ("Affine", 0.3, 0.4),
        ("ScaledTanh", 0.7, 0.4),
    ],
)
def test_activations(name: str, alpha: float | None, beta: float | None) -> None:
    numbers: dict[str, Any] = {} if alpha is None else {"activation_alpha": [alpha]}
    numbers |= {} if beta is None else {"activation_beta": [beta]}
    assert_alike(network("RNN", "b", activations=[name], **numbers))


@pytest.mark.slow
def test_activations_take_their_numbers_in_turn() -> None:
    listed = ["HardSigmoid", "LeakyRelu", "Tanh", "Sigmoid", "Affine", "ScaledTanh"]
    assert_alike(
        network(
            "LSTM",
            "b",
            direction="bidirectional",
            directions=2,
            activations=listed,
            activation_alpha=[0.25, 0.1, 0.9, 0.8],
            activation_beta=[0.45, 0.05, 0.7],
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("op", GATES)
def test_doubles(op: str) -> None:
    gates = GATES[op]
    weights = {
        "w": draw(1, gates * SIZE, WIDTH).astype(np.float64),
        "r": draw(1, gates * SIZE, SIZE).astype(np.float64),
    }
    made = model([node(f"{op} x w r -> y", hidden_size=SIZE)], {"x": f64[4, 2, WIDTH]}, ["y"], initializers=weights)
    single = model(
        [node(f"{op} x w r -> y", hidden_size=SIZE)],
        {"x": f32[4, 2, WIDTH]},
        ["y"],
        initializers={k: v.astype(np.float32) for k, v in weights.items()},
    )
    x = draw(4, 2, WIDTH)
    (got,), (expected,) = by_dovetail(made, {"x": x.astype(np.float64)}), by_dovetail(single, {"x": x})
    assert got["y"].dtype == np.float64
    np.testing.assert_allclose(expected["y"], got["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_sequence_was_an_option_once() -> None:
    newer = network("LSTM", "b", opset=7)
    older = network("LSTM", "b", opset=6, output_sequence=1)
    given = feeds(older, 3, 2)
    (got,), (expected,) = by_dovetail(older, given), by_dovetail(newer, given)
    np.testing.assert_array_equal(got["y"], expected["y"])


def test_outputs_may_be_left_out() -> None:
    made = network("LSTM", "b")
    made.graph.node[0].output[:] = ["", "", "y_c"]
    del made.graph.output[:2]
    assert_like_onnxruntime(made, feeds(made, 4, 3), scale=4.0)


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"direction": "sideways"}, "sideways"),
        ({"direction": "bidirectional"}, "for 2 directions"),
        ({"activations": ["Tanh"]}, "1 activations"),
        ({"activations": ["Sine", "Tanh", "Tanh"]}, "Sine"),
        ({"activations": ["Sigmoid", "Affine", "Tanh"], "activation_alpha": [1.0]}, "Affine without its numbers"),
        ({"clip": 0.0}, "clip"),
        ({"layout": 2}, "layout"),
    ],
)
def test_what_is_refused(attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(DovetailError, match=says):
        import_model(network("LSTM", **attributes))


def test_a_hidden_size_that_the_weights_do_not_have() -> None:
    made = network("GRU")
    next(a for a in made.graph.node[0].attribute if a.name == "hidden_size").i = 5
    with pytest.raises(DovetailError, match="3 gates of 5"):
        import_model(made)
