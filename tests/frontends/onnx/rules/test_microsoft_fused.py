"""Activations, norms and products of com.microsoft with what optimisers put into them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.dtypes import f16, f32, i8, i32, i64, u8
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, model, node
from tests.frontends.onnx.microsoft import Draw, alone, check, ms, run

DRAW = Draw(12)
ROWS = f32["b", "s", 8]


def _rows() -> tuple[Array, Array]:
    return DRAW.floats(2, 3, 8), DRAW.floats(1, 5, 8)


@pytest.mark.parametrize("kind", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(kind: str) -> None:
    check(ms(f"{kind} x -> y"), {"x": ROWS}, *({"x": x} for x in _rows()))


@pytest.mark.parametrize("kind", ["BiasGelu", "FastGelu"])
def test_activations_with_a_bias(kind: str) -> None:
    check(ms(f"{kind} x b -> y"), {"x": ROWS}, *({"x": x} for x in _rows()), constants={"b": DRAW.floats(8)})


def test_quick_gelu_with_another_slope() -> None:
    check(ms("QuickGelu x -> y", alpha=1.0), {"x": ROWS}, {"x": _rows()[0]})


def test_a_product_with_its_activation_is_recognised() -> None:
    made = alone(ms("BiasGelu z b -> y"), {"x": ROWS}, {"w": DRAW.floats(8, 16), "b": DRAW.floats(16)})
    made.graph.node.insert(0, node("MatMul x w -> z"))
    assert "linear" in str(dovetail.compile(import_model(made), target="cpu").report)
    assert_like_onnxruntime(made, *({"x": x} for x in _rows()))


@pytest.mark.slow
def test_halves_of_which_one_gates_the_other() -> None:
    x, bias = DRAW.floats(2, 3, 8), DRAW.floats(8)
    got = run(ms("BiasSplitGelu x b -> y"), {"x": f32[2, 3, 8], "b": f32[8]}, {"x": x, "b": bias})
    left, right = np.split((x + bias).astype(np.float64), 2, axis=-1)
    gelu = right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2)))
    np.testing.assert_allclose(got["y"], left * gelu, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_softmax_with_a_bias(axis: int) -> None:
    x, bias = DRAW.floats(2, 3, 4), DRAW.floats(1, 1, 4)
    one = ms("BiasSoftmax x b -> y", axis=axis, is_inner_broadcast=1)
    got = run(one, {"x": f32[2, 3, 4], "b": f32[1, 1, 4]}, {"x": x, "b": bias})
    flat = (x + bias).astype(np.float64).reshape(*x.shape[: axis % 3], -1)
    raised = np.exp(flat - flat.max(-1, keepdims=True))
    np.testing.assert_allclose(got["y"], (raised / raised.sum(-1, keepdims=True)).reshape(x.shape), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("operands", ["x s g", "x s g b", "x s g b c", "x s g _ c"])
def test_skip_layer_norm_and_its_sum(skip: tuple[int, ...], operands: str) -> None:
    feeds = {"x": DRAW.floats(2, 3, 8), "s": DRAW.floats(*skip)}
    check(
        ms(f"SkipLayerNormalization {operands} -> y _ _ t", epsilon=1e-5),
        {"x": f32["b", 3, 8], "s": f32[skip]},
        feeds,
        constants={n: DRAW.floats(8) for n in "gbc" if n in operands},
    )


@pytest.mark.slow
def test_skip_layer_norm_of_narrow_floats() -> None:
    floats = {n: DRAW.floats(8, dtype=np.float16) for n in "gb"}
    feeds = {n: DRAW.floats(2, 3, 8, dtype=np.float16) for n in "xs"}
    types = {"x": f16["b", "s", 8], "s": f16["b", "s", 8]}
    check(ms("SkipLayerNormalization x s g b -> y"), types, feeds, constants=floats)


@pytest.mark.slow
@pytest.mark.parametrize("operands", ["x s g", "x s g c"])
def test_skip_rms_norm_and_its_sum(operands: str) -> None:
    check(
        ms(f"SkipSimplifiedLayerNormalization {operands} -> y _ _ t"),
        {"x": ROWS, "s": ROWS},
        *({"x": x, "s": x[::-1] + 1} for x in _rows()),
        constants={n: DRAW.floats(8) for n in "gc" if n in operands},
    )


def test_a_mean_for_training_is_refused() -> None:
    one = ms("SkipLayerNormalization x s g -> y m")
    with pytest.raises(UnsupportedError, match="mean"):
        import_model(alone(one, {"x": ROWS, "s": ROWS, "g": f32[8]}))


@pytest.mark.slow
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm_in_the_domain_of_onnx(axis: int) -> None:
    gain = DRAW.floats(*((8,) if axis == -1 else (3, 8)))
    one = node("SimplifiedLayerNormalization x g -> y i", axis=axis, epsilon=1e-3)
    check(one, {"x": f32["b", 3, 8]}, {"x": DRAW.floats(2, 3, 8)}, constants={"g": gain})
    ours = ms("SimplifiedLayerNormalization x g -> y", axis=axis)
    x = DRAW.floats(2, 3, 8)
    got = run(ours, {"x": f32["b", 3, 8]}, {"x": x}, {"g": gain})
    axes = tuple(range(axis % 3, 3))
    root = np.sqrt((x.astype(np.float64) ** 2).mean(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got["y"], x / root * gain, rtol=1e-5, atol=1e-6)


def test_layer_norm_before_it_was_an_operator_of_onnx() -> None:
    made = model(
        ["LayerNormalization x g b -> y"],
        {"x": ROWS},
        ["y"],
        opset=13,
        initializers={"g": DRAW.floats(8), "b": DRAW.floats(8)},
    )
    assert_like_onnxruntime(made, *({"x": x} for x in _rows()))


@pytest.mark.slow
@pytest.mark.parametrize("operands", ["i s w p t g b m", "i _ w p _ g b", "i _ w p _ g b _ n"])
def test_embeddings_and_their_norm(operands: str) -> None:
    feeds = {"i": DRAW.whole(2, 3, dtype=np.int32, low=0, high=9)}
    if "s" in operands:
        feeds["s"] = DRAW.whole(2, 3, dtype=np.int32, low=0, high=1)
        feeds["m"] = np.array([[1, 1, 0], [1, 0, 0]], np.int32)
    if "n" in operands:
        feeds["n"] = np.array([[2, 1, 0]], np.int32)
    tables = {"w": DRAW.floats(10, 8), "p": DRAW.floats(6, 8), "t": DRAW.floats(2, 8)}
    constants = {**tables, "g": DRAW.floats(8), "b": DRAW.floats(8)}
    check(
        ms(
            f"EmbedLayerNormalization {operands} -> y c t2"
            if "m" in operands
            else f"EmbedLayerNormalization {operands} -> y c"
        ),
        {n: i32[1, "s"] if n == "n" else i32["b", "s"] for n in feeds},
        feeds,
        constants={n: a for n, a in constants.items() if n in operands.split()},
    )


@pytest.mark.slow
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(last: int, activation: int) -> None:
    image, gain, shift = DRAW.floats(2, 6, 4, 5), DRAW.floats(6), DRAW.floats(6)
    one = ms("GroupNorm x g b -> y", groups=3, activation=activation, channels_last=last)
    given = image.transpose(0, 2, 3, 1) if last else image
    types = {"x": f32["b", "h", "w", 6] if last else f32["b", 6, "h", "w"], "g": f32[6], "b": f32[6]}
    got = run(one, types, {"x": given, "g": gain, "b": shift})["y"]
    rows = image.astype(np.float64).reshape(2, 3, -1)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    expected = normal.reshape(image.shape) * gain[:, None, None] + shift[:, None, None]
    expected = expected / (1 + np.exp(-expected)) if activation else expected
    np.testing.assert_allclose(got.transpose(0, 3, 1, 2) if last else got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_group_norm_of_a_sum() -> None:
    x, skip, bias = DRAW.floats(2, 4, 5, 6), DRAW.floats(2, 6), DRAW.floats(6)
    one = ms("SkipGroupNorm x g b s c -> y t", groups=3, activation=0)
    feeds = {"x": x, "g": np.ones(6, np.float32), "b": np.zeros(6, np.float32), "s": skip, "c": bias}
    got = run(one, {"x": f32["b", "h", "w", 6], "g": f32[6], "b": f32[6], "s": f32["b", 6], "c": f32[6]}, feeds)
    total = x + skip[:, None, None] + bias
    np.testing.assert_allclose(got["t"], total, rtol=1e-5)
    rows = total.astype(np.float64).transpose(0, 3, 1, 2).reshape(2, 3, -1)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got["y"].transpose(0, 3, 1, 2).reshape(2, 3, -1), normal, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_fused_matmul(turned: tuple[int, int]) -> None:
    a, b = (2, 3, 5), (2, 5, 4)
    shapes = [s if not t else (s[0], s[2], s[1]) for s, t in zip((a, b), turned, strict=True)]
    feeds = {"a": DRAW.floats(*shapes[0]), "b": DRAW.floats(*shapes[1])}
    one = ms("FusedMatMul a b -> y", transA=turned[0], transB=turned[1], alpha=0.5)
    check(one, {"a": f32["n", *shapes[0][1:]], "b": f32["n", *shapes[1][1:]]}, feeds)


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((3, 2, 7, 5), (2, 7, 5, 4), {"transBatchA": 1}),
        ((5, 2, 7, 3), (2, 7, 5, 4), {"transBatchA": 1, "transA": 1}),
        ((2, 7, 3, 5), (5, 2, 7, 4), {"transBatchB": 1}),
        ((2, 7, 3, 5), (4, 2, 7, 5), {"transBatchB": 1, "transB": 1}),
        ((5,), (2, 5, 4), {"transA": 1}),
        ((2, 3, 5), (5,), {"transB": 1}),
    ],
)
def test_fused_matmul_of_turned_batches(a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, int]) -> None:
    feeds = {"a": DRAW.floats(*a), "b": DRAW.floats(*b)}
    check(ms("FusedMatMul a b -> y", **attributes), {"a": f32[a], "b": f32[b]}, feeds)


@pytest.mark.parametrize(
    ("activation", "numbers"),
    [
        ("Relu", {}),
        ("Tanh", {}),
        ("Sigmoid", {}),
        ("LeakyRelu", {"activation_alpha": 0.2}),
        ("Elu", {"activation_alpha": 0.7}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
        ("Softplus", {}),
        ("Softsign", {}),
    ],
)
def test_fused_gemm(activation: str, numbers: dict[str, float]) -> None:
    one = ms("FusedGemm a b c -> y", activation=activation, alpha=0.7, beta=1.5, transB=1, **numbers)
    constants = {"b": DRAW.floats(4, 5), "c": DRAW.floats(4)}
    check(one, {"a": f32["m", 5]}, {"a": DRAW.floats(3, 5)}, {"a": DRAW.floats(1, 5)}, constants=constants)


def test_an_activation_that_we_do_not_have() -> None:
    types = {"a": f32[2, 3], "b": f32[3, 4]}
    with pytest.raises(UnsupportedError, match="Mish"):
        import_model(alone(ms("FusedGemm a b -> y", activation="Mish"), types))
    with pytest.raises(LoadError, match="0 numbers"):
        import_model(alone(ms("FusedGemm a b -> y", activation="Elu"), types))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "numbers"),
    [
        ("Relu", ()),
        ("LeakyRelu", (0.2,)),
        ("Clip", (-0.5, 0.5)),
        ("HardSigmoid", (0.3, 0.4)),
        ("HardSwish", (1 / 6, 0.5)),
    ],
)
def test_fused_conv(activation: str, numbers: tuple[float, ...]) -> None:
    given: dict[str, Any] = {"activation_params": list(numbers)} if numbers else {}
    one = ms("FusedConv x w b -> y", activation=activation, group=2, pads=[1, 1, 1, 1], strides=[2, 2], **given)
    constants = {"w": DRAW.floats(6, 2, 3, 3), "b": DRAW.floats(6)}
    check(one, {"x": f32["n", 4, 6, 6]}, {"x": DRAW.floats(1, 4, 6, 6)}, constants=constants)


@pytest.mark.slow
def test_fused_conv_with_a_sum() -> None:
    constants = {"w": DRAW.floats(6, 4, 3, 3), "b": DRAW.floats(6)}
    types = {"x": f32[1, 4, 6, 6], "z": f32[1, 6, 4, 4]}
    feeds = {"x": DRAW.floats(1, 4, 6, 6), "z": DRAW.floats(1, 6, 4, 4)}
    check(ms("FusedConv x w b z -> y", activation="Relu"), types, feeds, constants=constants)
    last = {n: np.moveaxis(a, 1, -1) for n, a in feeds.items()}
    got = run(
        ms("NhwcFusedConv x w b z -> y", activation="Relu"),
        {"x": f32[1, 6, 6, 4], "z": f32[1, 4, 4, 6]},
        last,
        constants,
    )
    first = run(ms("FusedConv x w b z -> y", activation="Relu"), types, feeds, constants)
    np.testing.assert_allclose(np.moveaxis(got["y"], -1, 1), first["y"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [u8, i8])
def test_max_pool_with_channels_last(kind: Any) -> None:
    draw = kind.numpy.type
    types, feeds = {"x": kind["n", 7, 7, 3]}, {"x": DRAW.whole(2, 7, 7, 3, dtype=draw)}
    check(ms("NhwcMaxPool x -> y", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), types, feeds)
    check(ms("NhwcMaxPool x -> y", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), types, feeds)


@pytest.mark.slow
def test_triangles() -> None:
    check(ms("Trilu x -> y"), {"x": f32["n", "n"]}, {"x": DRAW.floats(3, 3)}, {"x": DRAW.floats(5, 5)})
    constants = {"k": np.array(1, np.int64)}
    check(ms("Trilu x k -> y", upper=0), {"x": i64[3, 4]}, {"x": np.ones((3, 4), np.int64)}, constants=constants)
