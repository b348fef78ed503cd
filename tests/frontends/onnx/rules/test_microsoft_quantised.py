"""Quantised operators of com.microsoft: packed weights, products, and operators from bytes to bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dovetail
from dovetail.dtypes import f16, f32, i8, i32, i64, u8
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.targets.cpu.gemm.blocks.kernel import block_dot
from dovetail.targets.cpu.isa import host_device
from tests.frontends.onnx.build import Array, by_onnxruntime, model, node
from tests.frontends.onnx.microsoft import Draw, alone, check, ms, run
from tests.targets.cpu.gemm.test_blocks import plans

DRAW = Draw(14)


@pytest.fixture(autouse=True)
def _restarted() -> None:  # pyright: ignore[reportUnusedFunction]
    DRAW.restart()


def _number(x: float, dtype: Any = np.float32) -> Array:
    return np.array(x, dtype)


def _packed(numbers: Array, bits: int) -> Array:
    """Several numbers a byte along the last axis, the first in the lowest bits."""
    each = 8 // bits
    missing = -numbers.shape[-1] % each
    rows = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, missing)])
    rows = rows.reshape(*rows.shape[:-1], -1, each)
    shifted = rows.astype(np.uint8) << (np.arange(each) * bits).astype(np.uint8)
    return np.asarray(np.bitwise_or.reduce(shifted, axis=-1))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("k", "n", "block"), [(32, 8, 16), (100, 4, 32), (128, 5, 64)])
@pytest.mark.parametrize("zero", ["none", "packed", "floats"])
def test_weights_of_a_few_bits(bits: int, k: int, n: int, block: int, zero: str) -> None:
    blocks = -(-k // block)
    high = 2**bits - 1
    constants = {
        "b": _packed(DRAW.whole(n, blocks, block, high=high), bits),
        "s": DRAW.steps(n, blocks),
        "c": DRAW.floats(n),
    }
    zeros = DRAW.whole(n, blocks, high=high)
    if zero != "none":
        constants["z"] = _packed(zeros, bits) if zero == "packed" else zeros.astype(np.float32) + np.float32(0.5)
    operands = f"a b s {'_' if zero == 'none' else 'z'} _ c"
    one = ms(f"MatMulNBits {operands} -> y", K=k, N=n, bits=bits, block_size=block)
    types, feeds = {"a": f32["b", "s", k]}, [{"a": DRAW.floats(2, 3, k)}, {"a": DRAW.floats(1, 1, k)}]
    if zero == "floats" and bits == 8:
        got = run(one, types, feeds[0], constants)["y"]
        steps = constants["b"].reshape(n, blocks, block) - constants["z"].astype(np.float64)[..., None]
        w = (steps * constants["s"][..., None]).reshape(n, -1)[:, :k]
        np.testing.assert_allclose(got, feeds[0]["a"] @ w.T + constants["c"], rtol=1e-4, atol=1e-4)
    else:
        check(one, types, *feeds, constants=constants, scale=5.0)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "zero"), [(4, False), (4, True), (8, True)])
def test_products_read_the_blocks_of_the_file(bits: int, zero: bool) -> None:
    """No weight is spelled out, and the arrays of the file are not kept beside the blocks."""
    k, n, block = 256, 64, 32
    high = 2**bits - 1
    constants = {"b": _packed(DRAW.whole(n, k // block, block, high=high), bits), "s": DRAW.steps(n, k // block)}
    if zero:
        constants["z"] = _packed(DRAW.whole(n, k // block, high=high), bits)
    one = ms(f"MatMulNBits a b s {'z' if zero else '_'} -> y", K=k, N=n, bits=bits, block_size=block)
    program = dovetail.compile(import_model(alone(one, {"a": f32["m", k]}, constants)), cache="off")
    x = DRAW.floats(3, k)
    numbers = constants["b"] if bits == 8 else np.stack([constants["b"] & 15, constants["b"] >> 4], axis=-1)
    zeros = np.full((n, k // block), 2 ** (bits - 1))
    if zero:
        z = constants["z"]
        zeros = z if bits == 8 else np.stack([z & 15, z >> 4], axis=-1).reshape(n, -1)[:, : k // block]
    steps = numbers.reshape(n, -1, block).astype(np.float64) - zeros[..., None]
    wanted = x @ (steps * constants["s"].astype(np.float64).reshape(n, -1, 1)).reshape(n, k).T
    assert np.abs(program.run({"a": x})["y"] - wanted).max() <= 2e-6 * np.abs(wanted).max()
    assert [name for name in program.params if name in ("b", "s")] == []
    assert block_dot(host_device()) is None or plans(program) == (["blocks"], 0)


def test_columns_that_name_their_block() -> None:
    k, n, blocks = 32, 4, 2
    constants = {
        "b": _packed(DRAW.whole(n, blocks, 16, high=15), 4),
        "s": DRAW.steps(n, blocks),
        "g": DRAW.whole(k, dtype=np.int32, low=0, high=blocks - 1),
    }
    types, feeds = {"a": f32["b", k]}, {"a": DRAW.floats(3, k)}
    check(ms("MatMulNBits a b s _ g -> y", K=k, N=n, block_size=16), types, feeds, constants=constants)
    zeros = {**constants, "z": DRAW.floats(n, blocks) + 8}
    one = ms("MatMulNBits a b s z g -> y", K=k, N=n, block_size=16)
    check(one, types, feeds, constants=zeros, scale=5.0)
    with pytest.raises(UnsupportedError, match="packed zero points"):
        import_model(alone(one, types, {**constants, "z": DRAW.whole(n, 1)}))


def test_narrow_floats_and_other_forms_of_weights() -> None:
    constants = {"b": _packed(DRAW.whole(4, 2, 16, high=15), 4), "s": DRAW.steps(4, 2).astype(np.float16)}
    one = ms("MatMulNBits a b s -> y", K=32, N=4, block_size=16)
    check(one, {"a": f16["b", 32]}, {"a": DRAW.floats(3, 32, dtype=np.float16)}, constants=constants)
    with pytest.raises(UnsupportedError, match="one device"):
        import_model(
            alone(
                ms("MatMulNBits a b s -> y", K=32, N=4, block_size=16, weight_prepacked=1), {"a": f16[1, 32]}, constants
            )
        )
    with pytest.raises(UnsupportedError, match="3 bits"):
        import_model(
            alone(ms("MatMulNBits a b s -> y", K=32, N=4, block_size=16, bits=3), {"a": f16[1, 32]}, constants)
        )


INDICES = np.array([[0, 5], [3, -1]])


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
def test_rows_of_a_packed_table(bits: int, zero: bool) -> None:
    high = 2**bits - 1
    constants = {"x": _packed(DRAW.whole(6, 32, high=high), bits), "s": DRAW.steps(6, 2)}
    if zero:
        constants["z"] = _packed(DRAW.whole(6, 2, high=high), bits)
    one = ms(f"GatherBlockQuantized x i s {'z' if zero else ''} -> y", bits=bits, block_size=16)
    check(one, {"i": i64["a", "b"]}, {"i": INDICES}, {"i": INDICES[:1, :1]}, constants=constants)


@pytest.mark.slow
@pytest.mark.parametrize(("gathered", "blocked"), [(0, 1), (1, 1), (1, 0)])
@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
def test_a_table_of_four_bits(gathered: int, blocked: int, kind: Any) -> None:
    table, scales = DRAW.whole(6, 32, high=7).astype(kind), DRAW.steps(6, 2)
    zeros = DRAW.whole(6, 2, high=7).astype(kind)
    constants = {"x": table, "s": scales, "z": zeros}
    if blocked == 0:
        constants = {n: np.ascontiguousarray(a.T) for n, a in constants.items()}
    one = ms("GatherBlockQuantized x i s z -> y", block_size=16, gather_axis=gathered, quantize_axis=blocked)
    check(one, {"i": i64[2, 2]}, {"i": INDICES}, constants=constants)


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("per_column", [False, True])
def test_products_of_bytes_as_floats(signed: bool, per_column: bool) -> None:
    kind = np.int8 if signed else np.uint8
    constants = {
        "b": DRAW.weights(5, 4, dtype=kind),
        "t": DRAW.steps(4) if per_column else _number(0.02),
        "w": DRAW.whole(4, dtype=kind) if per_column else _number(3, kind),
        "c": DRAW.floats(4),
    }
    feeds = [{"a": DRAW.floats(2, 3, 5)}, {"a": DRAW.floats(1, 3, 5)}]
    check(ms("DynamicQuantizeMatMul a b t w c -> y"), {"a": f32["b", 3, 5]}, *feeds, constants=constants, scale=3.0)
    more = {**constants, "s": _number(0.1), "z": _number(7, np.uint8)}
    one = ms("MatMulIntegerToFloat a b s t z w c -> y")
    check(one, {"a": u8["b", 3, 5]}, {"a": DRAW.whole(2, 3, 5)}, constants=more)
    rows = {n: more[n] for n in ("b", "s", "t", "z", "w")}
    check(ms("QGemm a s z b t w -> y", alpha=0.5), {"a": u8["m", 5]}, {"a": DRAW.whole(3, 5)}, constants=rows)
    turned = {
        **rows,
        "b": DRAW.weights(4, 5, dtype=kind),
        "c": DRAW.whole(4, dtype=np.int32, low=-99, high=99),
        "u": _number(0.3),
        "v": _number(9, np.uint8),
    }
    one = ms("QGemm a s z b t w c u v -> y", transA=1, transB=1)
    check(one, {"a": u8[5, "m"]}, {"a": DRAW.whole(5, 3)}, constants=turned)


def test_scales_that_we_do_not_take() -> None:
    types = {"a": u8[3, 5], "b": u8[5, 4], "s": f32[3], "t": f32[4]}
    with pytest.raises(UnsupportedError, match="a left side"):
        import_model(alone(ms("MatMulIntegerToFloat a b s t -> y"), types))


KINDS = [np.uint8, np.int8]
TYPES = {np.uint8: u8, np.int8: i8}


def _steps(kind: Any) -> dict[str, Array]:
    return {"s": _number(0.05), "z": _number(100, kind), "t": _number(0.0625), "u": _number(20, kind)}


def _near(one: Any, kind: Any, feeds: dict[str, Array], constants: dict[str, Array]) -> None:
    """As onnxruntime has it but for halves, which its kernels round on the way there."""
    types = {n: TYPES[kind][a.shape] for n, a in feeds.items()}
    got = run(one, types, feeds, constants)["y"].astype(np.int32)
    expected = by_onnxruntime(alone(one, types, constants), feeds)["y"].astype(np.int32)
    assert np.abs(got - expected).max() <= 1
    assert np.mean(got != expected) < 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Add", "Mul"])
def test_sums_and_products_of_bytes(kind: Any, name: str) -> None:
    constants = {**_steps(kind), "v": _number(0.03), "w": _number(50, kind)}
    feeds = {"a": DRAW.whole(2, 3, 4, dtype=kind), "b": DRAW.whole(3, 1, dtype=kind)}
    _near(ms(f"QLinear{name} a s z b v w t u -> y"), kind, feeds, constants)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_through_an_activation(kind: Any) -> None:
    every = np.arange(256).astype(np.uint8).view(kind).reshape(4, 64)
    constants = {**_steps(kind), "t": _number(1 / 256)}
    for one in (
        ms("QLinearSigmoid x s z t u -> y"),
        ms("QLinearLeakyRelu x s z t u -> y", alpha=0.1),
        ms("QLinearSoftmax x s z t u -> y", opset=13),
    ):
        _near(one, kind, {"x": every}, constants)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("opset", "axis"), [(12, 0), (12, 1), (13, 1)])
def test_softmax_of_bytes(kind: Any, opset: int, axis: int) -> None:
    one = ms("QLinearSoftmax x s z t u -> y", opset=opset, axis=axis)
    constants = {**_steps(kind), "t": _number(1 / 256), "u": _number(np.iinfo(kind).min, kind)}
    _near(one, kind, {"x": DRAW.whole(2, 3, 4, dtype=kind)}, constants)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_in_the_steps_of_the_result(kind: Any) -> None:
    constants = {**_steps(kind), "v": _number(0.06), "w": _number(50, kind)}
    feeds = {"a": DRAW.whole(2, 3, dtype=kind), "b": DRAW.whole(2, 4, dtype=kind)}
    _near(ms("QLinearConcat t u a s z b v w -> y", axis=-1), kind, feeds, constants)
    both = {n: DRAW.whole(2, 3, dtype=kind) for n in "ab"}
    _near(ms("QLinearWhere c a s z b v w t u -> y"), kind, both, {**constants, "c": np.array([[True], [False]])})
    with pytest.raises(LoadError, match="4 inputs"):
        import_model(alone(ms("QLinearConcat t u a s z b -> y", axis=0), {n: u8[2, 3] for n in "ab"}, _steps(np.uint8)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "window",
    [
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"pads": [1, 1, 1, 1], "strides": [2, 2], "count_include_pad": 1},
        {"strides": [2, 2], "ceil_mode": 1},
        {"channels_last": 1},
    ],
)
def test_means_of_bytes(kind: Any, window: dict[str, Any]) -> None:
    feeds = {"x": DRAW.whole(2, 6, 6, 5, dtype=kind)}
    one = ms("QLinearAveragePool x s z t u -> y", kernel_shape=[3, 3], **window)
    types, constants = {"x": TYPES[kind][2, 6, 6, 5]}, _steps(kind)
    got = run(one, types, feeds, constants)["y"].astype(np.int32)
    expected = by_onnxruntime(alone(one, types, constants), feeds)["y"].astype(np.int32)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", [0, 1])
def test_means_of_whole_channels(kind: Any, last: int) -> None:
    feeds = {"x": DRAW.whole(2, 3, 5, 4, dtype=kind)}
    _near(ms("QLinearGlobalAveragePool x s z t u -> y", channels_last=last), kind, feeds, _steps(kind))


@pytest.mark.slow
def test_the_mean_over_axes() -> None:
    x = DRAW.whole(2, 3, 4)
    one = ms("QLinearReduceMean x s z t u -> y", axes=[1], keepdims=0)
    got = run(one, {"x": u8["b", 3, "s"]}, {"x": x}, _steps(np.uint8))["y"]
    floats = ((x.astype(np.float64) - 100) * 0.05).mean(1)
    assert np.abs(got - np.clip(np.rint(floats / 0.0625) + 20, 0, 255)).max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_to_bytes_and_back(kind: Any) -> None:
    whole = {"s": _number(0.05), "z": _number(100, kind)}
    check(ms("QuantizeLinear x s z -> y"), {"x": f32["b", 4]}, {"x": DRAW.floats(3, 4) * 5}, constants=whole)
    along = {"s": DRAW.steps(4), "z": DRAW.whole(4, dtype=kind)}
    check(ms("QuantizeLinear x s z -> y", axis=1), {"x": f32["b", 4]}, {"x": DRAW.floats(3, 4)}, constants=along)
    feeds = {"x": DRAW.whole(3, 4, dtype=kind)}
    check(ms("DequantizeLinear x s z -> y", axis=1), {"x": TYPES[kind]["b", 4]}, feeds, constants=along)


@pytest.mark.exhaustive
@pytest.mark.parametrize("last", [0, 1])
def test_a_quantised_convolution(last: int) -> None:
    constants = {
        **_steps(np.uint8),
        "t": _number(0.4),
        "w": DRAW.weights(6, 2, 3, 3),
        "ws": DRAW.steps(6),
        "wz": np.zeros(6, np.int8),
        "b": DRAW.whole(6, dtype=np.int32, low=-999, high=999),
    }
    one = ms("QLinearConv x s z w ws wz t u b -> y", group=2, pads=[1, 0, 1, 2], channels_last=last)
    shape = (2, 6, 6, 4) if last else (2, 4, 6, 6)
    check(one, {"x": u8["n", *shape[1:]]}, {"x": DRAW.whole(*shape)}, constants=constants)


def _lstm(directions: int, *, per_gate: bool, kind: Any = np.int8) -> dict[str, Array]:
    """Weights of four features to three hidden ones."""
    shape = (directions, 12) if per_gate else (directions,)
    low, high = (0, 0) if per_gate else (-3, 3) if kind is np.int8 else (120, 130)
    zeros = [DRAW.whole(*shape, dtype=kind, low=low, high=high) for _ in range(2)]
    return {
        "w": DRAW.weights(directions, 4, 12, dtype=kind),
        "r": DRAW.weights(directions, 3, 12, dtype=kind),
        "ws": DRAW.steps(*shape),
        "wz": zeros[0],
        "rs": DRAW.steps(*shape),
        "rz": zeros[1],
    }


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "per_gate"), [(np.int8, False), (np.int8, True), (np.uint8, False)])
def test_lstm_with_quantised_weights(direction: str, kind: Any, per_gate: bool) -> None:
    count = 2 if direction == "bidirectional" else 1
    constants = {**_lstm(count, per_gate=per_gate, kind=kind), "b": DRAW.floats(count, 24)}
    one = ms("DynamicQuantizeLSTM x w r b _ h c _ ws wz rs rz -> y yh yc", hidden_size=3, direction=direction)
    types = {"x": f32["s", "b", 4], "h": f32[count, "b", 3], "c": f32[count, "b", 3]}
    feeds = [
        {"x": DRAW.floats(s, b, 4), "h": DRAW.floats(count, b, 3), "c": DRAW.floats(count, b, 3)}
        for s, b in ((5, 2), (2, 1))
    ]
    check(one, types, *feeds, constants=constants)


@pytest.mark.slow
@pytest.mark.parametrize("attributes", [{}, {"clip": 0.5}, {"input_forget": 1}])
def test_options_of_a_quantised_lstm(attributes: dict[str, Any]) -> None:
    constants = {**_lstm(1, per_gate=False), "p": DRAW.floats(1, 9)}
    one = ms("DynamicQuantizeLSTM x w r _ _ _ _ p ws wz rs rz -> y yh yc", hidden_size=3, **attributes)
    check(one, {"x": f32["s", "b", 4]}, {"x": DRAW.floats(5, 2, 4)}, constants=constants)


def test_weights_of_another_shape_than_the_gates() -> None:
    constants = _lstm(1, per_gate=False)
    one = ms("DynamicQuantizeLSTM x w r _ _ _ _ _ ws wz rs rz -> y", hidden_size=4)
    with pytest.raises(LoadError, match="gates of 4"):
        import_model(alone(one, {"x": f32["s", "b", 4]}, constants))


def test_dynamic_quantize_lstm_refuses_sequences_of_different_lengths() -> None:
    made = model(
        [node("DynamicQuantizeLSTM x w r _ n _ _ _ s z s z -> y", domain="com.microsoft", hidden_size=2)],
        {"x": f32[3, 2, 4], "n": i32[2]},
        ["y"],
        domains={"com.microsoft": 1},
        initializers={
            "w": np.ones((1, 4, 8), np.int8),
            "r": np.ones((1, 2, 8), np.int8),
            "s": np.ones(1, np.float32),
            "z": np.zeros(1, np.int8),
        },
    )
    with pytest.raises(UnsupportedError, match="sequence_lens"):
        import_model(made)
