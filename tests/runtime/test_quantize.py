"""Weights in 8 and 4 bits: products are those of the rounded weights, errors are told, and bounds hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import CheckError, OptionError
from dovetail.ir.dtype import u8
from dovetail.ir.literal import Array
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.runtime.quantize import Quantize, QuantizeKind

RNG = np.random.default_rng(0)
W: dict[str, Array] = {
    "first": RNG.normal(size=(96, 128)).astype(np.float32),
    "second": RNG.normal(size=(64, 128)).astype(np.float32),
    "small": RNG.normal(size=(64, 8)).astype(np.float32),
}
X: Array = RNG.normal(size=(5, 96)).astype(np.float32)


def network(arrays: dict[str, Array]) -> Graph:
    """Three products: a matrix as it is, one transposed, and a small one."""
    builder = Builder("quantised", lines=False)
    params = {name: builder.param(name, f32[array.shape], array) for name, array in arrays.items()}
    h = ops.tanh(builder.input("x", f32["n", 96]) @ params["first"])
    h = h @ ops.permute(params["second"], order=(-1, -2))
    builder.output("y", h @ params["small"])
    return builder.graph()


@pytest.mark.parametrize(("kind", "least", "most", "cosine"), [("int8", 3.5, 3.9, 0.9999), ("int4", 6.0, 6.5, 0.98)])
def test_products_are_near_and_weights_are_small(kind: QuantizeKind, least: float, most: float, cosine: float) -> None:
    wanted = dovetail.evaluate(network(W), {"x": X}, lift=True)["y"]
    program = dovetail.compile(network(W), quantize=kind, cache="off")
    found = program.run({"x": X})["y"]
    assert float((found * wanted).sum()) / np.linalg.norm(found) / np.linalg.norm(wanted) > cosine
    told = program.quantized
    assert told is not None and {layer.name for layer in told.layers} == set(W)
    by_name = {layer.name: layer for layer in told.layers}
    for name in ("first", "second"):
        layer = by_name[name]
        assert least < layer.before / layer.after < most and 0 < layer.error < 0.12 and not layer.kept
    assert by_name["small"].kept == "it is small" and "small" in str(told)
    assert program.params.keys() == {"first.blocks", "second.blocks", "small"}


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_errors_are_those_of_the_blocks(kind: QuantizeKind) -> None:
    """The blocks spelled out by their declared meaning have the error that the report has."""
    program = dovetail.compile(network(W), quantize=kind, cache="off")
    assert program.quantized is not None
    builder = Builder("blocks", lines=False)
    blocks = program.params["second.blocks"]
    stored = builder.input("b", u8[blocks.shape])
    builder.output("y", dequantise_blocks(stored, format="q8_0" if kind == "int8" else "q4_1"))
    floats = dovetail.evaluate(builder.graph(), {"b": blocks}, lift=True)["y"]
    error = np.linalg.norm(floats - W["second"].astype(np.float64)) / np.linalg.norm(W["second"])
    layer = next(layer for layer in program.quantized.layers if layer.name == "second")
    assert layer.error == pytest.approx(error, rel=1e-6)


def test_ranges_of_4_bits_are_closer_than_from_the_least_to_the_most() -> None:
    rows = np.random.default_rng(1).normal(size=(64, 256)).astype(np.float32)
    x = rows.reshape(-1, 32)
    low, step = x.min(axis=1, keepdims=True), np.ptp(x, axis=1, keepdims=True) / 15
    plain = np.linalg.norm(low + step * np.rint((x - low) / step) - x) / np.linalg.norm(x)
    builder = Builder("one", lines=False)
    builder.output("y", builder.input("x", f32["n", 256]) @ builder.param("w", f32[256, 64], rows.T.copy()))
    told = dovetail.compile(builder.graph(), quantize="int4", cache="off").quantized
    assert told is not None and told.layers[0].error < 0.96 * plain


def test_a_matrix_with_a_large_error_stays_as_it_is() -> None:
    odd = W["first"].copy()
    odd[::32] *= 1e4
    program = dovetail.compile(network({**W, "first": odd}), quantize=Quantize("int4", keep_above=0.05), cache="off")
    assert program.quantized is not None
    kept = {layer.name: layer.kept for layer in program.quantized.layers}
    assert "error" in kept["second"], "4 bits of normal numbers round more than that"
    assert np.isfinite(program.run({"x": X})["y"]).all()


def test_a_bound_fails_the_compilation() -> None:
    with pytest.raises(CheckError, match="error of"):
        dovetail.compile(network(W), quantize=Quantize("int4", fail_above=0.01), cache="off")


@pytest.mark.slow
def test_a_matrix_of_zeros_is_zeros() -> None:
    zero = {**W, "second": np.zeros_like(W["second"])}
    for kind in ("int8", "int4"):
        assert (dovetail.compile(network(zero), quantize=kind, cache="off").run({"x": X})["y"] == 0).all()


@pytest.mark.parametrize(
    "how", [{"kind": "int3"}, {"keep_above": -1.0}, {"fail_above": float("nan")}, {"kind": 8}, {"keep_above": "1"}]
)
def test_odd_ways_are_refused(how: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        Quantize(**cast(Any, how))
    assert caught.value.hint


@pytest.mark.slow
def test_numbers_beyond_the_scales_stay_as_they_are() -> None:
    """Scales are f16: 60,000 * 127 is the largest number of 8 bits."""
    large = {**W, "second": W["second"] * np.float32(1e36)}
    for kind in ("int8", "int4"):
        program = dovetail.compile(network(large), quantize=kind, cache="off")
        assert program.quantized is not None
        (layer,) = (layer for layer in program.quantized.layers if layer.name == "second")
        assert layer.kept and layer.error == np.inf and "inf%" in str(program.quantized)
    with pytest.raises(OptionError):
        dovetail.compile(network(W), quantize=cast(Any, 8), cache="off")


def test_weights_that_are_not_known_are_refused() -> None:
    """A graph whose parameters are bound later has nothing to quantise: that is said, not passed over."""
    bare = replace(network(W), params={})
    with pytest.raises(OptionError, match=r"without the weights first, second") as caught:
        dovetail.compile(bare, quantize="int8", cache="off")
    assert caught.value.hint and "params=" in caught.value.hint
    program = dovetail.compile(bare, params=W, quantize="int8", cache="off")
    assert program.quantized is not None and {layer.name for layer in program.quantized.layers} == set(W)
