"""Attention of com.microsoft: masks of every shape, a past, rotated positions, shared heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail.dtypes import f32, i32, i64, u8
from dovetail.errors import NeedsValueError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, by_dovetail, by_onnxruntime, node
from tests.frontends.onnx.microsoft import Draw, alone, check, ms, run

DRAW = Draw(13)
WEIGHTS = {"w": DRAW.floats(12, 36) * 0.5, "b": DRAW.floats(36)}
INPUT = {"x": f32["b", "s", 12]}
KEEP = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_its_projection(causal: int) -> None:
    one = ms("Attention x w b -> y", num_heads=3, unidirectional=causal)
    check(one, INPUT, {"x": DRAW.floats(2, 4, 12)}, {"x": DRAW.floats(1, 7, 12)}, constants=WEIGHTS)


@pytest.mark.slow
def test_attention_without_a_bias() -> None:
    # onnxruntime takes it for granted; a bias of zeros says the same.
    x, zeros = DRAW.floats(2, 4, 12), {"w": WEIGHTS["w"], "b": np.zeros(36, np.float32)}
    got = run(ms("Attention x w -> y", num_heads=3, scale=0.3), INPUT, {"x": x}, {"w": WEIGHTS["w"]})
    expected = by_onnxruntime(alone(ms("Attention x w b -> y", num_heads=3, scale=0.3), INPUT, zeros), {"x": x})
    np.testing.assert_allclose(got["y"], expected["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    ("mask", "type"),
    [
        (KEEP, i32["b", "s"]),
        (np.zeros((2, 4), np.int32), i32["b", "s"]),
        (DRAW.whole(2, 4, 4, dtype=np.int32, low=0, high=1), i32["b", "s", "s"]),
        (np.array([3, 2], np.int32), i32["b"]),
        (np.array([3, 4, 0, 1], np.int32), i32["2*b"]),
    ],
    ids=["keys", "none", "queries", "ends", "ends and starts"],
)
def test_masks(mask: Array, type: TensorType, causal: int) -> None:
    one = ms("Attention x w b m -> y", num_heads=3, unidirectional=causal)
    check(one, {**INPUT, "m": type}, {"x": DRAW.floats(2, 4, 12), "m": mask}, constants=WEIGHTS)


@pytest.mark.slow
def test_a_mask_that_only_lowers() -> None:
    one = ms("Attention x w b m -> y", num_heads=3, mask_filter_value=-2.0)
    check(one, {**INPUT, "m": i32["b", "s"]}, {"x": DRAW.floats(2, 4, 12), "m": KEEP}, constants=WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (1, 1, 4, 4)])
def test_a_bias_on_the_scores(shape: tuple[int, ...]) -> None:
    feeds = {"x": DRAW.floats(2, 4, 12), "m": KEEP, "a": DRAW.floats(*shape)}
    types = {"x": f32[2, 4, 12], "m": i32[2, 4], "a": f32[shape]}
    check(ms("Attention x w b m _ a -> y", num_heads=3), types, feeds, constants=WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("rows", [4, 1])
def test_a_past_and_what_it_becomes(causal: int, rows: int) -> None:
    one = ms("Attention x w b m p -> y q", num_heads=3, unidirectional=causal)
    types = {**INPUT, "p": f32[2, "b", 3, "p", 4], "m": i32["b", "p+s"]}
    mask = DRAW.whole(2, 3 + rows, dtype=np.int32, low=0, high=1)
    feeds = {"x": DRAW.floats(2, rows, 12), "p": DRAW.floats(2, 2, 3, 3, 4), "m": mask}
    check(one, types, feeds, constants=WEIGHTS)


@pytest.mark.slow
def test_values_of_another_width() -> None:
    constants = {"w": DRAW.floats(12, 42), "b": DRAW.floats(42)}
    one = ms("Attention x w b -> y", num_heads=3, qkv_hidden_sizes=[12, 12, 18])
    check(one, INPUT, {"x": DRAW.floats(2, 4, 12)}, constants=constants)


@pytest.mark.slow
def test_attention_is_recognised() -> None:
    graph = import_model(alone(ms("Attention x w b m -> y", num_heads=3), {**INPUT, "m": i32["b", "s"]}, WEIGHTS))
    assert "attention" in str(dovetail.compile(graph, target="cpu").report)


def test_what_attention_does_not_take() -> None:
    for attributes in ({"do_rotary": 1}, {"past_present_share_buffer": 1}):
        with pytest.raises(UnsupportedError, match="rotated or shared"):
            import_model(alone(ms("Attention x w b -> y", num_heads=3, **attributes), INPUT, WEIGHTS))
    with pytest.raises(UnsupportedError, match="a mask of"):
        import_model(alone(ms("Attention x w b m -> y", num_heads=3), {**INPUT, "m": i32["b", 1, 9, 9]}, WEIGHTS))


@pytest.mark.slow
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_quantised_projection(per_column: bool, causal: int) -> None:
    constants = {
        "w": DRAW.weights(12, 36),
        "b": DRAW.floats(36),
        "s": np.array(0.02, np.float32),
        "t": DRAW.steps(36) if per_column else np.array(0.01, np.float32),
        "z": np.array(100, np.uint8),
        "v": np.zeros(36, np.int8) if per_column else np.array(3, np.int8),
    }
    one = ms("QAttention x w b s t m z v -> y", num_heads=3, unidirectional=causal)
    feeds = {"x": DRAW.whole(2, 4, 12), "m": np.array([3, 2], np.int32)}
    check(one, {"x": u8["b", "s", 12], "m": i32["b"]}, feeds, constants=constants)


CROSS = {"q": f32["b", "s", 12], "k": f32["b", "t", 12], "v": f32["b", "t", 18]}


def _cross() -> dict[str, Array]:
    return {"q": DRAW.floats(2, 4, 12), "k": DRAW.floats(2, 5, 12), "v": DRAW.floats(2, 5, 18)}


@pytest.mark.slow
def test_attention_to_another_sequence() -> None:
    check(ms("MultiHeadAttention q k v -> y", num_heads=3), CROSS, _cross())
    one = ms("MultiHeadAttention q k v b -> y", num_heads=3, scale=0.2)
    check(one, CROSS, _cross(), constants={"b": DRAW.floats(42)})


@pytest.mark.slow
@pytest.mark.parametrize("mask", [(2, 5), (2,), (2, 4, 5)])
def test_padding_of_keys(mask: tuple[int, ...]) -> None:
    low, high = (0, 1) if len(mask) > 1 else (1, 5)
    kept = DRAW.whole(*mask, dtype=np.int32, low=low, high=high)
    if len(mask) > 1:
        kept[..., 0] = 1  # where no key is kept, onnxruntime rounds scores of -10,000, to a thousandth
    feeds = {**_cross(), "m": kept, "a": DRAW.floats(1, 3, 4, 5)}
    types = {"q": f32[2, 4, 12], "k": f32[2, 5, 12], "v": f32[2, 5, 18], "m": i32[mask], "a": f32[1, 3, 4, 5]}
    check(ms("MultiHeadAttention q k v _ m a -> y", num_heads=3), types, feeds)


@pytest.mark.slow
def test_keys_over_heads() -> None:
    types = {"q": f32["b", "s", 12], "k": f32["b", 3, "t", 4], "v": f32["b", 3, "t", 4]}
    feeds = {"q": DRAW.floats(2, 4, 12), "k": DRAW.floats(2, 3, 5, 4), "v": DRAW.floats(2, 3, 5, 4)}
    check(ms("MultiHeadAttention q k v -> y", num_heads=3), types, feeds)


@pytest.mark.slow
def test_packed_operands() -> None:
    # onnxruntime has them on other devices only.
    q, k, v = (DRAW.floats(2, 4, 12) for _ in range(3))
    plain = {"q": f32[2, 4, 12], "k": f32[2, 4, 12], "v": f32[2, 4, 12]}
    expected = run(ms("MultiHeadAttention q k v -> y", num_heads=3), plain, {"q": q, "k": k, "v": v})["y"]
    heads = [x.reshape(2, 4, 3, 4) for x in (q, k, v)]
    all_of_them = np.stack(heads, axis=3)
    got = run(ms("MultiHeadAttention q -> y", num_heads=3), {"q": f32[2, 4, 3, 3, 4]}, {"q": all_of_them})["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    types = {"q": f32[2, 4, 12], "k": f32[2, 4, 3, 2, 4]}
    feeds = {"q": q, "k": np.stack(heads[1:], axis=3)}
    got = run(ms("MultiHeadAttention q k -> y", num_heads=3), types, feeds)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("rows", [4, 1])
def test_keys_and_values_of_the_past(causal: int, rows: int) -> None:
    one = ms("MultiHeadAttention q k v _ _ _ pk pv -> y k2 v2", num_heads=3, unidirectional=causal)
    feeds = {n: DRAW.floats(2, rows, 12) for n in "qkv"} | {n: DRAW.floats(2, 3, 3, 4) for n in ("pk", "pv")}
    types = {n: f32["b", "s", 12] for n in "qkv"} | {n: f32["b", 3, "p", 4] for n in ("pk", "pv")}
    check(one, types, feeds)


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 4, 12), {}),
        ((2, 3, 4, 4), {}),
        ((2, 4, 24), {"num_heads": 3, "rotary_embedding_dim": 4}),
        ((2, 3, 4, 8), {"num_heads": 3, "rotary_embedding_dim": 4}),
    ],
)
def test_rotated_positions(shape: tuple[int, ...], attributes: dict[str, int], interleaved: int) -> None:
    one = ms("RotaryEmbedding x p c s -> y", interleaved=interleaved, **attributes)
    sizes: list[Any] = list(shape)
    sizes[0], sizes[-2] = "b", "s"
    types = {"x": f32[tuple(sizes)], "p": i64["b", "s"]}
    constants = {"c": DRAW.floats(10, 2), "s": DRAW.floats(10, 2)}
    feeds = {"x": DRAW.floats(*shape), "p": DRAW.whole(2, 4, dtype=np.int64, low=0, high=9)}
    check(one, types, feeds, constants=constants)
    check(one, types | {"p": i64[1]}, feeds | {"p": np.array([3])}, constants=constants)


def _grouped(
    rows: int, past: int | None, ends: tuple[int, int], total: int, *, packed: bool = False, **attributes: Any
) -> None:
    """Four heads over two, of 16 features, against onnxruntime."""
    width, names = (128, ["q", "_", "_"]) if packed else (64, ["q", "k", "v"])
    feeds = {n: DRAW.floats(2, rows, width if n == "q" else 32) for n in names if n != "_"}
    if past is not None:
        feeds |= {n: DRAW.floats(2, 2, past, 16) for n in ("pk", "pv")}
    constants = {"l": np.array(ends, np.int32), "t": np.array(total, np.int32)}
    if attributes.get("do_rotary"):
        constants |= {"c": DRAW.floats(20, 8), "s": DRAW.floats(20, 8)}
    cache = ["_", "_"] if past is None else ["pk", "pv"]
    operands = [*names, *cache, "l", "t", *(("c", "s") if "c" in constants else ())]
    one = ms(f"GroupQueryAttention {' '.join(operands)} -> y k2 v2", num_heads=4, kv_num_heads=2, **attributes)
    types = {n: f32["b", "s", a.shape[2]] if a.ndim == 3 else f32["b", 2, a.shape[2], 16] for n, a in feeds.items()}
    check(one, types, feeds, constants=constants)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}])
def test_shared_heads(packed: bool, attributes: dict[str, int]) -> None:
    _grouped(4, None, (3, 3), 4, packed=packed, **attributes)
    _grouped(1, 3, (3, 3), 4, packed=packed, **attributes)


@pytest.mark.slow
@pytest.mark.parametrize("past", [3, 5])
def test_rows_of_different_lengths_in_a_cache(past: int) -> None:
    _grouped(1, past, (3, 2), 4, do_rotary=1)


@pytest.mark.slow
@pytest.mark.parametrize("attributes", [{"local_window_size": 2}, {"softcap": 2.0}, {"scale": 0.1}])
def test_options_of_shared_heads(attributes: dict[str, Any]) -> None:
    _grouped(4, None, (3, 3), 4, **attributes)
    _grouped(1, 6, (6, 6), 7, **attributes)


@pytest.mark.slow
def test_a_cache_of_symbolic_length() -> None:
    # Its length follows from that of the mask, as exporters write it.
    one = ms("GroupQueryAttention q k v pk pv l t -> y k2 v2", num_heads=4, kv_num_heads=2)
    types = {n: f32["b", "s", 64 if n == "q" else 32] for n in "qkv"} | {"l": i32["b"], "a": i64["b", "n"]}
    made = alone(one, types | {n: f32["b", 2, "p", 16] for n in ("pk", "pv")}, {"one": np.array(1)})
    made.graph.node.insert(0, node("Shape a -> shape"))
    made.graph.node.insert(1, node("Gather shape one -> length"))
    made.graph.node.insert(2, node("Cast length -> t", to=6))
    feeds: list[dict[str, Array]] = []
    for past, rows in ((3, 1), (0, 4)):
        feed = {n: DRAW.floats(2, rows, 64 if n == "q" else 32) for n in "qkv"}
        feed |= {n: DRAW.floats(2, 2, past, 16) for n in ("pk", "pv")}
        feeds.append(feed | {"l": np.full(2, past + rows - 1, np.int32), "a": np.ones((2, past + rows), np.int64)})
    for feed, got in zip(feeds, by_dovetail(made, *feeds), strict=True):
        for name, expected in by_onnxruntime(made, feed).items():
            np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-5)


def test_the_length_of_a_cache_must_be_known() -> None:
    types = {n: f32[1, 1, 64 if n == "q" else 32] for n in "qkv"} | {n: f32[1, 2, 3, 16] for n in ("pk", "pv")}
    one = ms("GroupQueryAttention q k v pk pv l t -> y k2 v2", num_heads=4, kv_num_heads=2)
    with pytest.raises(NeedsValueError, match="total_sequence_length"):
        import_model(alone(one, types | {"l": i32[1], "t": TensorType(i32, ())}))
