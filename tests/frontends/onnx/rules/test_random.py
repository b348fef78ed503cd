"""Random tensors: which numbers come is ours to choose, how they lie is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from dovetail.errors import LoadError
from dovetail.frontends.onnx import import_model
from dovetail.frontends.onnx.file.types import NUMBERS
from dovetail.ir.dtype import DType, bool_, f16, f32, f64, i32, i64
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node


def drawn(made: onnx.ModelProto, **feeds: Array) -> dict[str, Array]:
    first, second = by_dovetail(made, feeds, feeds)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    return first


def tensor(op: str, **attributes: Any) -> Array:
    return drawn(model([node(f"{op} -> y", **attributes)], {}, ["y"]))["y"]


@pytest.mark.parametrize("dtype", [f16, f32, f64])
def test_normal_numbers(dtype: DType) -> None:
    y = tensor("RandomNormal", shape=[100, 200], mean=3.0, scale=2.0, dtype=NUMBERS[dtype], seed=1.5)
    assert y.shape == (100, 200) and y.dtype == dtype.numpy
    numbers = y.astype(np.float64)
    assert abs(numbers.mean() - 3.0) < 0.05 and abs(numbers.std() - 2.0) < 0.05


@pytest.mark.parametrize("dtype", [f16, f32, f64])
def test_even_numbers(dtype: DType) -> None:
    y = tensor("RandomUniform", shape=[100, 200], low=-1.0, high=3.0, dtype=NUMBERS[dtype])
    numbers = y.astype(np.float64)
    assert y.dtype == dtype.numpy and numbers.min() >= -1 and numbers.max() <= 3
    assert abs(numbers.mean() - 1.0) < 0.05 and abs(numbers.std() - 4 / 12**0.5) < 0.05


def test_a_seed_decides_and_without_one_the_name_does() -> None:
    made = model(
        [
            node("RandomUniform -> a", shape=[8], seed=1.0),
            node("RandomUniform -> b", shape=[8], seed=1.0),
            node("RandomUniform -> c", shape=[8], seed=2.0),
            node("RandomUniform -> d", shape=[8]),
            node("RandomUniform -> e", shape=[8]),
        ],
        {},
        list("abcde"),
    )
    y = drawn(made)
    np.testing.assert_array_equal(y["a"], y["b"])
    others = [y[name].tolist() for name in "acde"]
    assert len({tuple(o) for o in others}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike"])
def test_the_shape_of_another_tensor(op: str) -> None:
    made = model([node(f"{op} x -> y", dtype=11), node(f"{op} x -> z")], {"x": f32["n", 2]}, ["y", "z"])
    for got, size in zip(
        by_dovetail(made, *({"x": np.zeros((n, 2), np.float32)} for n in (3, 5))), (3, 5), strict=True
    ):
        assert got["y"].shape == got["z"].shape == (size, 2)
        assert (got["y"].dtype, got["z"].dtype) == (np.float64, np.float32)
    whole = model([f"{op} x -> y"], {"x": i64["n"]}, ["y"])
    with pytest.raises(LoadError, match="random numbers of i64"):
        import_model(whole)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, bool_, i32, f64])
def test_coins(dtype: DType | None) -> None:
    attributes: dict[str, Any] = {} if dtype is None else {"dtype": NUMBERS[dtype]}
    made = model([node("Bernoulli p -> y", seed=3.0, **attributes)], {"p": f32["n"]}, ["y"])
    p = np.repeat(np.array([0, 0.25, 1], np.float32), 4000)
    y = drawn(made, p=p)["y"]
    assert y.dtype == (dtype or f32).numpy
    never, sometimes, always = y.reshape(3, -1).astype(np.float64)
    assert never.sum() == 0 and always.sum() == 4000 and abs(sometimes.mean() - 0.25) < 0.03


@pytest.mark.slow
def test_classes() -> None:
    made = model([node("Multinomial x -> y", sample_size=4000, seed=1.0, dtype=7)], {"x": f32["n", 3]}, ["y"])
    shares = np.array([[0.2, 0.0, 0.8], [0.0, 1.0, 0.0]])
    with np.errstate(divide="ignore"):
        y = drawn(made, x=(np.log(shares) + 5).astype(np.float32))["y"]
    assert y.shape == (2, 4000) and y.dtype == np.int64
    for row, expected in zip(y, shares, strict=True):
        found = np.bincount(row, minlength=3) / 4000
        np.testing.assert_allclose(found, expected, atol=0.03)
        assert not found[expected == 0].any()


# Dropout ----------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32)


@pytest.mark.parametrize("opset", [7, 10, 12, 13, 22])
def test_nothing_is_left_out_in_inference(opset: int) -> None:
    attributes: dict[str, Any] = {"ratio": 0.4} if opset < 12 else {}
    made = model([node("Dropout x -> y", **attributes)], {"x": f32["n", 40]}, ["y"], opset=opset)
    assert_like_onnxruntime(made, {"x": X}, {"x": X[:3]})


@pytest.mark.parametrize(("opset", "dtype"), [(6, np.float32), (7, np.float32), (10, np.bool_), (12, np.bool_)])
def test_the_mask_of_inference(opset: int, dtype: Any) -> None:
    attributes: dict[str, Any] = {"is_test": 1} if opset < 7 else {}
    made = model([node("Dropout x -> y m", **attributes)], {"x": f32["n", 40]}, ["y", "m"], opset=opset)
    got = drawn(made, x=X)
    np.testing.assert_array_equal(got["y"], X)
    assert got["m"].dtype == dtype and got["m"].shape == X.shape and got["m"].all()


def assert_dropped(got: dict[str, Array], ratio: float) -> None:
    mask = got["m"].astype(bool)
    assert abs(1 - mask.mean() - ratio) < 0.05
    np.testing.assert_allclose(got["y"], np.where(mask, X / np.float32(1 - ratio), 0), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [None, 0.0, 0.25])
@pytest.mark.parametrize("known", [True, False])
def test_training(ratio: float | None, known: bool) -> None:
    given = {"t": np.array(True)} | ({} if ratio is None else {"r": np.array(ratio, np.float32)})
    types = {"t": bool_[()], "r": f32[()]}
    made = model(
        [node(f"Dropout x {'_' if ratio is None else 'r'} t -> y m", seed=5)],
        {"x": f32["n", 40], **({} if known else {k: types[k] for k in given})},
        ["y", "m"],
        opset=13,
        initializers=given if known else {},
    )
    assert_dropped(drawn(made, x=X, **({} if known else given)), 0.5 if ratio is None else ratio)
    if not known:
        got = drawn(made, x=X, **given | {"t": np.array(False)})
        np.testing.assert_array_equal(got["y"], X)
        assert got["m"].all()


def test_training_was_the_default_once() -> None:
    made = model([node("Dropout x -> y m", ratio=0.25)], {"x": f32["n", 40]}, ["y", "m"], opset=6)
    assert_dropped(drawn(made, x=X), 0.25)
