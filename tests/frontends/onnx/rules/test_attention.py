"""Attention against ONNX's own definition of it, at sizes that one compile serves, and the forms that fuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import dovetail
from dovetail.dtypes import bool_, f16, f32, i64
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, by_dovetail, model, node

RNG = np.random.default_rng(6)


def _random(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def _assert_as_defined(made: onnx.ModelProto, *feeds: dict[str, Array], judged: dict[str, Array] | None = None) -> None:
    """What ONNX's reference says, of inputs that are the same but for `judged`."""
    judge: Any = ReferenceEvaluator(made)
    for feed, got in zip(feeds, by_dovetail(made, *feeds), strict=True):
        wanted = judge.run(None, feed | (judged or {}))
        for name, expected in zip([o.name for o in made.graph.output], wanted, strict=True):
            np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


HEADS: dict[str, TensorType] = {"q": f32["b", 4, "s", 8], "k": f32["b", 4, "t", 8], "v": f32["b", 4, "t", 6]}


def _heads(b: int, s: int, t: int, *, shared: int = 4) -> dict[str, Array]:
    return {"q": _random(b, 4, s, 8), "k": _random(b, shared, t, 8), "v": _random(b, shared, t, 6)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"is_causal": 1}, {"softcap": 2.0, "scale": 0.3}], ids=str)
def test_plain_causal_and_capped(options: dict[str, Any]) -> None:
    made = model([node("Attention q k v -> y", **options)], HEADS, ["y"], opset=23)
    _assert_as_defined(made, _heads(2, 3, 5), _heads(1, 7, 4))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [1, 2])
def test_heads_that_share_keys(shared: int) -> None:
    inputs = {**HEADS, "k": f32["b", shared, "t", 8], "v": f32["b", shared, "t", 6]}
    made = model([node("Attention q k v -> y", is_causal=1)], inputs, ["y"], opset=23)
    _assert_as_defined(made, _heads(2, 3, 5, shared=shared), _heads(1, 7, 4, shared=shared))


@pytest.mark.slow
def test_packed_heads() -> None:
    inputs = {"q": f32["b", "s", 32], "k": f32["b", "t", 16], "v": f32["b", "t", 12]}
    made = model([node("Attention q k v -> y", q_num_heads=4, kv_num_heads=2)], inputs, ["y"], opset=24)
    feeds = [
        {"q": _random(b, s, 32), "k": _random(b, t, 16), "v": _random(b, t, 12)} for b, s, t in ((2, 3, 5), (1, 6, 2))
    ]
    _assert_as_defined(made, *feeds)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 5), (4, 3, 5), (2, 1, 1, 5), (2, 4, 3, 5)], ids=str)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("kept", [False, True])
def test_masks_of_every_rank(shape: tuple[int, ...], causal: int, kept: bool) -> None:
    made = model(
        [node("Attention q k v m -> y", is_causal=causal)],
        {**HEADS, "m": (bool_ if kept else f32)[shape]},
        ["y"],
        opset=24,
    )
    mask = RNG.integers(0, 2, shape).astype(np.bool_) if kept else _random(*shape)
    # The reference takes the rows of a mask for those of the queries, one row for all of them too.
    rows = np.broadcast_to(mask, (*shape[:-2], 3, 5))
    _assert_as_defined(made, {**_heads(2, 3, 5), "m": mask}, judged={"m": rows})


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_a_query_that_sees_no_key_gets_nothing_and_nan_stays(kept: bool) -> None:
    made = model(["Attention q k v m -> y"], {**HEADS, "m": (bool_ if kept else f32)["s", "t"]}, ["y"], opset=23)
    mask = np.ones((3, 5), np.bool_)
    mask[1] = False
    feed = _heads(1, 3, 5)
    feed["q"][0, 0, 2, 0] = np.nan
    (got,) = by_dovetail(made, {**feed, "m": mask if kept else np.where(mask, 0.0, -np.inf).astype(np.float32)})
    assert not got["y"][0, :, 1].any()
    assert np.isnan(got["y"][0, 0, 2]).all()
    assert np.isfinite(got["y"][0, 1:]).all()


@pytest.mark.slow
@pytest.mark.parametrize("causal", [0, 1])
def test_the_past_stands_in_front_and_comes_out(causal: int) -> None:
    past = {"pk": f32["b", 4, "p", 8], "pv": f32["b", 4, "p", 6], "m": f32["s", "all"]}
    made = model(
        [node("Attention q k v m pk pv -> y nk nv", is_causal=causal)], {**HEADS, **past}, ["y", "nk", "nv"], opset=23
    )
    feeds = [
        {**_heads(1, s, t), "pk": _random(1, 4, p, 8), "pv": _random(1, 4, p, 6), "m": _random(s, p + t)}
        for s, t, p in ((3, 3, 2), (1, 1, 7))
    ]
    _assert_as_defined(made, *feeds)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [(2, -1), (1, 1), (0, 0), (-1, 1)])
@pytest.mark.parametrize("causal", [0, 1])
def test_windows(windows: tuple[int, int], causal: int) -> None:
    left, right = windows
    attended = node("Attention q k v -> y", is_causal=causal, left_window_size=left, right_window_size=right)
    _assert_as_defined(model([attended], HEADS, ["y"], opset=25), _heads(2, 6, 4), _heads(1, 3, 8))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [0, 1])
def test_keys_that_are_not_there_yet(causal: int) -> None:
    made = model(
        [node("Attention q k v m _ _ n -> y", is_causal=causal, left_window_size=3)],
        {**HEADS, "m": bool_["s", "short"], "n": i64["b"]},
        ["y"],
        opset=25,
    )
    mask = RNG.integers(0, 2, (3, 5)).astype(np.bool_)
    _assert_as_defined(made, {**_heads(2, 3, 7), "m": mask, "n": np.array([5, 2])})


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_what_is_shown_of_the_scores(mode: int) -> None:
    made = model(
        [node("Attention q k v m -> y _ _ shown", qk_matmul_output_mode=mode, softcap=1.5, scale=0.4)],
        {**HEADS, "m": f32[3, 5]},
        ["y", "shown"],
        opset=24,
    )
    feed = {**_heads(2, 3, 5), "m": _random(3, 5)}
    (got,) = by_dovetail(made, feed)
    raw = np.einsum("bhsd,bhtd->bhst", feed["q"], feed["k"]) * 0.4
    capped = 1.5 * np.tanh(raw / 1.5)
    raised = np.exp(capped + feed["m"])
    expected = (raw, capped, capped + feed["m"], raised / raised.sum(-1, keepdims=True))[mode]
    np.testing.assert_allclose(got["shown"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"softmax_precision": 1}], ids=str)
def test_narrow_scores_do_not_overflow_before_they_are_scaled(options: dict[str, Any]) -> None:
    shapes = {"q": (1, 2, 2, 64), "k": (1, 1, 3, 64), "v": (1, 1, 3, 4)}
    types = {n: f16[shape] for n, shape in shapes.items()}
    made = model([node("Attention q k v -> y", **options)], types, ["y"], opset=23)
    feed = {n: np.full(shape, 40.0, np.float16) for n, shape in shapes.items()}
    (got,) = by_dovetail(made, feed)
    np.testing.assert_allclose(got["y"], np.full((1, 2, 2, 4), 40.0), rtol=1e-2)


@pytest.mark.parametrize("masked", ["", "m"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_attention_fuses(masked: str, causal: int, shared: int) -> None:
    inputs: dict[str, TensorType] = {
        "q": f32["b", 4, "s", 64],
        "k": f32["b", shared, "s", 64],
        "v": f32["b", shared, "s", 64],
        "m": bool_["b", 1, "s", "s"],
    }
    made = model([node(f"Attention q k v {masked} -> y", is_causal=causal)], inputs, ["y"], opset=23)
    assert dovetail.explain(import_model(made)).count("attention") == 1


def test_packed_attention_with_a_float_mask_fuses() -> None:
    inputs: dict[str, TensorType] = {n: f32["b", "s", 256] for n in "qkv"}
    attended = node("Attention q k v m -> y", q_num_heads=4, kv_num_heads=4)
    made = model([attended], {**inputs, "m": f32["b", 1, 1, "s"]}, ["y"], opset=23)
    assert dovetail.explain(import_model(made)).count("attention") == 1


@pytest.mark.parametrize(
    ("types", "options", "message"),
    [
        ({"q": f32[1, 2, 8], "k": f32[1, 2, 8], "v": f32[1, 2, 8]}, {}, "q_num_heads"),
        ({"q": f32[1, 3, 2, 8], "k": f32[1, 2, 2, 8], "v": f32[1, 2, 2, 8]}, {}, "3 heads of queries for 2"),
        ({"q": f32[1, 2, 2, 8], "k": f32[1, 2, 2, 8], "v": f32[1, 2, 2, 8]}, {"qk_matmul_output_mode": 4}, "mode 4"),
    ],
)
def test_attention_that_is_none(types: dict[str, TensorType], options: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        import_model(model([node("Attention q k v -> y", **options)], types, ["y"], opset=23))


def test_types_that_differ_are_refused() -> None:
    types: dict[str, TensorType] = {"q": f32[1, 2, 2, 8], "k": f32[1, 2, 2, 8], "v": f16[1, 2, 2, 8]}
    with pytest.raises(UnsupportedError, match="f32, f32 and f16"):
        import_model(model(["Attention q k v -> y"], types, ["y"], opset=23))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [0, 4])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_rotary_embedding(interleaved: int, rotated: int, packed: bool, placed: bool) -> None:
    width = (rotated or 8) // 2
    cache = f32[16, width] if placed else f32["b", "s", width]
    options: dict[str, Any] = {"num_heads": 3} if packed else {}
    made = model(
        [
            node(
                f"RotaryEmbedding x c d {'p' if placed else '_'} -> y",
                interleaved=interleaved,
                rotary_embedding_dim=rotated,
                **options,
            )
        ],
        {
            "x": f32["b", "s", 24] if packed else f32["b", 3, "s", 8],
            "c": cache,
            "d": cache,
            **({"p": i64["b", "s"]} if placed else {}),
        },
        ["y"],
        opset=23,
    )
    feeds: list[dict[str, Array]] = []
    for b, s in ((2, 5), (1, 3)):
        angles = RNG.normal(size=(16, width) if placed else (b, s, width))
        feed: dict[str, Array] = {"x": _random(b, s, 24) if packed else _random(b, 3, s, 8)}
        feed |= {"c": np.cos(angles).astype(np.float32), "d": np.sin(angles).astype(np.float32)}
        feeds.append(feed | ({"p": RNG.integers(0, 16, (b, s))} if placed else {}))
    _assert_as_defined(made, *feeds)


@pytest.mark.slow
@pytest.mark.parametrize(("interleaved", "rotated", "rule"), [(0, 0, "rope"), (1, 0, "rope"), (0, 32, "partial_rope")])
def test_rotary_embedding_fuses(interleaved: int, rotated: int, rule: str) -> None:
    made = model(
        [node("RotaryEmbedding x c d p -> y", interleaved=interleaved, rotary_embedding_dim=rotated)],
        {
            "x": f32["b", 4, "s", 64],
            "c": f32[128, (rotated or 64) // 2],
            "d": f32[128, (rotated or 64) // 2],
            "p": i64["b", "s"],
        },
        ["y"],
        opset=23,
    )
    assert dovetail.explain(import_model(made)).count(rule) == 1


@pytest.mark.slow
def test_graphs_that_change_scores_and_weights() -> None:
    def changed(op: str, number: float) -> onnx.GraphProto:
        info = onnx.helper.make_tensor_value_info
        return onnx.helper.make_graph(
            [onnx.helper.make_node(op, ["a", "n"], ["z"])],
            op,
            [info("a", 1, [None] * 4)],
            [info("z", 1, [None] * 4)],
            [onnx.numpy_helper.from_array(np.array(number, np.float32), "n")],
        )

    flex = node(
        "FlexAttention q k v -> y",
        domain="ai.onnx.preview",
        score_mod=changed("Mul", 3.0),
        prob_mod=changed("Add", 0.25),
    )
    made = model([flex], HEADS, ["y"], opset=24, domains={"ai.onnx.preview": 1})
    feed = _heads(2, 3, 5)
    (got,) = by_dovetail(made, feed)
    raised = np.exp(np.einsum("bhsd,bhtd->bhst", feed["q"], feed["k"]) / math.sqrt(8) * 3.0)
    np.testing.assert_allclose(
        got["y"], (raised / raised.sum(-1, keepdims=True) + 0.25) @ feed["v"], rtol=1e-4, atol=1e-5
    )
