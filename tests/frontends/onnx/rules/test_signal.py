"""Fourier transforms, windows and mel filters against onnxruntime and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from dovetail.errors import LoadError
from dovetail.frontends.onnx import import_model
from dovetail.frontends.onnx.file.types import NUMBERS
from dovetail.ir.dtype import DType, f16, f32, f64, i32, i64
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node


def signal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def transform(
    parts: int, given: str = "", *, opset: int = 20, known: dict[str, Array] | None = None, **attrs: Any
) -> onnx.ModelProto:
    return model(
        [node(f"DFT x {given} -> y", **attrs)],
        {"x": f32["b", "s", "t", parts]},
        ["y"],
        opset=opset,
        initializers=known or {},
    )


def as_complex(x: Array) -> Array:
    return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)


def assert_transformed(made: onnx.ModelProto, x: Array, expected: Array) -> None:
    (got,) = by_dovetail(made, {"x": x})
    found = got["y"][..., 0] if got["y"].shape[-1] == 1 else as_complex(got["y"])
    assert got["y"].dtype == x.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2, -2, -3])
def test_every_axis(parts: int, axis: int) -> None:
    at = axis if axis >= 0 else axis + 4
    for length in (1, 5, 8):
        shape = [2, 3, 2]
        shape[at] = length
        x = signal(*shape, parts)
        expected = np.fft.fft(as_complex(x), axis=at)
        assert_transformed(transform(parts, "_ a", known={"a": np.array(axis)}), x, expected)
        assert_transformed(transform(parts, opset=17, axis=axis), x, expected)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_the_inverse(parts: int) -> None:
    x = signal(2, 6, 3, parts)
    made = transform(parts, "_ a", inverse=1, known={"a": np.array(1)})
    assert_transformed(made, x, np.fft.ifft(as_complex(x), axis=1))
    assert_like_onnxruntime(made, {"x": x}, {"x": signal(1, 4, 2, parts)}, scale=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("length", [4, 7, 9, 12])
def test_a_length_that_cuts_or_fills(length: int) -> None:
    known = {"n": np.array(length), "a": np.array(1)}
    for parts in (1, 2):
        x = signal(2, 7, 2, parts)
        made = transform(parts, "n a", known=known)
        assert_transformed(made, x, np.fft.fft(as_complex(x), n=length, axis=1))
        assert_like_onnxruntime(made, {"x": x}, {"x": signal(1, 15, 1, parts)}, scale=8.0)


@pytest.mark.slow
@pytest.mark.parametrize("length", [6, 7])
def test_one_side_and_back(length: int) -> None:
    known = {"n": np.array(length), "a": np.array(1)}
    real, half = signal(2, length, 3, 1), signal(2, 4, 3, 2)
    there = transform(1, "n a", known=known, onesided=1)
    assert_transformed(there, real, np.fft.rfft(real[..., 0], n=length, axis=1))
    assert_like_onnxruntime(there, {"x": real}, scale=8.0)
    back = transform(2, "n a", known=known, onesided=1, inverse=1)
    assert_transformed(back, half, np.fft.irfft(as_complex(half), n=length, axis=1))


@pytest.mark.slow
def test_one_side_back_of_a_length_that_is_not_given() -> None:
    made = transform(2, "_ a", known={"a": np.array(1)}, onesided=1, inverse=1)
    for points in (3, 5):
        x = signal(1, points, 2, 2)
        assert_transformed(made, x, np.fft.irfft(as_complex(x), axis=1))


@pytest.mark.slow
def test_a_length_that_is_a_size() -> None:
    made = model(
        ["Shape w -> s", "Squeeze s -> n", node("DFT x n a -> y")],
        {"x": f32["b", "t", 1], "w": f32["m"]},
        ["y"],
        opset=20,
        initializers={"a": np.array(1)},
    )
    feeds = [{"x": signal(2, 6, 1), "w": signal(m)} for m in (4, 6, 9)]
    for feed, got in zip(feeds, by_dovetail(made, *feeds), strict=True):
        expected = np.fft.fft(feed["x"][..., 0], n=len(feed["w"]), axis=1)
        np.testing.assert_allclose(as_complex(got["y"]), expected, rtol=1e-4, atol=1e-4)


def test_doubles() -> None:
    made = model([node("DFT x -> y", axis=1)], {"x": f64[1, 50, 2]}, ["y"], opset=17)
    x = signal(1, 50, 2, dtype=np.float64)
    (got,) = by_dovetail(made, {"x": x})
    np.testing.assert_allclose(as_complex(got["y"]), np.fft.fft(as_complex(x), axis=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("parts", "attributes"),
    [(2, {"onesided": 1}), (1, {"onesided": 1, "inverse": 1}), (1, {"axis": 3}), (3, {})],
)
def test_signals_that_are_refused(parts: int, attributes: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match="DFT"):
        import_model(transform(parts, opset=17, **attributes))


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("onesided", [0, 1])
def test_frames(window: bool, onesided: int) -> None:
    known = {"step": np.array(3)} | ({"w": np.hanning(8).astype(np.float32)} if window else {"n": np.array(8)})
    made = model(
        [node(f"STFT x step {'w' if window else '_ n'} -> y", onesided=onesided)],
        {"x": f32["b", "t", 1]},
        ["y"],
        opset=17,
        initializers=known,
    )
    assert_like_onnxruntime(made, {"x": signal(2, 20, 1)}, {"x": signal(1, 8, 1)}, scale=8.0)


def test_frames_of_a_signal_without_its_last_axis() -> None:
    known = {"step": np.array(3), "n": np.array(8)}
    made = model(["STFT x step _ n -> y"], {"x": f32["b", "t"]}, ["y"], opset=17, initializers=known)
    assert_like_onnxruntime(made, {"x": signal(2, 20)}, scale=8.0)


@pytest.mark.slow
def test_frames_of_complex_points() -> None:
    made = model(
        [node("STFT x step w -> y", onesided=0)],
        {"x": f32["b", "t", 2], "w": f32[6]},
        ["y"],
        opset=17,
        initializers={"step": np.array(2)},
    )
    x, w = signal(2, 13, 2), signal(6)
    (got,) = by_dovetail(made, {"x": x, "w": w})
    framed = np.stack([as_complex(x)[:, i : i + 6] * w for i in range(0, 8, 2)], axis=1)
    np.testing.assert_allclose(as_complex(got["y"]), np.fft.fft(framed), rtol=1e-4, atol=1e-4)
    made.graph.node[0].attribute[0].i = 1
    with pytest.raises(LoadError, match="a signal of"):
        import_model(made)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op: str, periodic: int) -> None:
    made = model([node(f"{op} n -> y", periodic=periodic)], {"n": i64[()]}, ["y"], opset=17)
    assert_like_onnxruntime(made, {"n": np.array(10)}, {"n": np.array(7)})


@pytest.mark.parametrize("dtype", [f16, f32, f64, i32])
def test_windows_of_other_types(dtype: DType) -> None:
    made = model(
        [node("HammingWindow n -> y", output_datatype=NUMBERS[dtype])],
        {},
        ["y"],
        opset=17,
        initializers={"n": np.array(9, np.int32)},
    )
    (got,) = by_dovetail(made, {})
    expected = 25 / 46 - 21 / 46 * np.cos(2 * np.pi * np.arange(9) / 9)
    assert got["y"].dtype == dtype.numpy
    np.testing.assert_allclose(got["y"], expected.astype(dtype.numpy), rtol=1e-3)


MEL = {
    "bands": np.array(8),
    "points": np.array(64),
    "rate": np.array(8192),
    "low": np.array(0.0, np.float32),
    "high": np.array(4096.0, np.float32),
}


@pytest.mark.parametrize("given", [(), ("low", "high"), ("bands", "points", "rate", "low", "high")])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_mel_filters(given: tuple[str, ...], dtype: DType) -> None:
    types = {"bands": i64, "points": i64, "rate": i64, "low": f32, "high": f32}
    made = model(
        [node(f"MelWeightMatrix {' '.join(MEL)} -> y", output_datatype=NUMBERS[dtype])],
        {name: types[name][()] for name in given},
        ["y"],
        opset=17,
        initializers={k: v for k, v in MEL.items() if k not in given},
    )
    feed = {k: v for k, v in MEL.items() if k in given}
    other = {"low": np.array(80.0, np.float32), "bands": np.array(12)}
    assert_like_onnxruntime(made, feed, {k: other.get(k, v) for k, v in feed.items()})
