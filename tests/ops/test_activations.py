"""Activations against their definitions, number by number."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, DType, f32
from dovetail.ir.value import Value
from tests.ops.meaning import array, run
from tests.tolerances import assert_close

POINTS = [-20.0, -3.0, -1.5, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 3.5, 7.0, 20.0]


def _elu(x: float, alpha: float) -> float:
    return x if x > 0 else alpha * math.expm1(x)


def _hard_sigmoid(x: float, alpha: float) -> float:
    return min(max(alpha * x + 0.5, 0.0), 1.0)


def _shrink(x: float, threshold: float, bias: float) -> float:
    return x + bias if x < -threshold else x - bias if x > threshold else 0.0


CASES: dict[str, tuple[Callable[[Value], Value], Callable[[float], float]]] = {
    "leaky_relu": (lambda x: ops.leaky_relu(x, slope=0.25), lambda x: x if x >= 0 else 0.25 * x),
    "prelu": (lambda x: ops.prelu(x, -2.0), lambda x: x if x >= 0 else -2 * x),
    "elu": (lambda x: ops.elu(x, alpha=1.5), lambda x: _elu(x, 1.5)),
    "celu": (lambda x: ops.celu(x, alpha=2.0), lambda x: x if x > 0 else 2 * math.expm1(x / 2)),
    "selu": (ops.selu, lambda x: 1.0507009873554805 * _elu(x, 1.6732632423543772)),
    "hard_sigmoid": (ops.hard_sigmoid, lambda x: _hard_sigmoid(x, 0.2)),
    "hard_swish": (ops.hard_swish, lambda x: x * _hard_sigmoid(x, 1 / 6)),
    "hard_tanh": (ops.hard_tanh, lambda x: min(max(x, -1), 1)),
    "relu6": (ops.relu6, lambda x: min(max(x, 0), 6)),
    "mish": (ops.mish, lambda x: x * math.tanh(math.log1p(math.exp(x)))),
    "softsign": (ops.softsign, lambda x: x / (1 + abs(x))),
    "hard_shrink": (ops.shrink, lambda x: _shrink(x, 0.5, 0.0)),
    "soft_shrink": (lambda x: ops.shrink(x, threshold=0.5, bias=0.5), lambda x: _shrink(x, 0.5, 0.5)),
    "threshold": (lambda x: ops.threshold(x, above=1.0, other=7.0), lambda x: x if x > 1 else 7.0),
    "thresholded_relu": (ops.threshold, lambda x: x if x > 1 else 0.0),
    "log_sigmoid": (ops.log_sigmoid, lambda x: -math.log1p(math.exp(-x))),
    "tanh_shrink": (ops.tanh_shrink, lambda x: x - math.tanh(x)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_activations(name: str, dtype: DType) -> None:
    build, function = CASES[name]
    got = run(build(leaf.constant(array(dtype, POINTS))))
    assert_close(got, np.array([function(x) for x in POINTS]), dtype)


@pytest.mark.parametrize("name", CASES)
def test_nan_stays_nan(name: str) -> None:
    got = run(CASES[name][0](leaf.constant(np.array([np.nan], np.float32))))
    assert np.isnan(got).all()


LIMITS = {
    "leaky_relu": (math.inf, -math.inf),
    "elu": (math.inf, -1.5),
    "celu": (math.inf, -2.0),
    "hard_sigmoid": (1.0, 0.0),
    "relu6": (6.0, 0.0),
    "log_sigmoid": (0.0, -math.inf),
    "soft_shrink": (math.inf, -math.inf),
}


@pytest.mark.parametrize("name", LIMITS)
def test_at_infinity(name: str) -> None:
    got = run(CASES[name][0](leaf.constant(np.array([np.inf, -np.inf], np.float32))))
    assert got.tolist() == list(LIMITS[name])


@pytest.mark.parametrize("name", ["leaky_relu", "elu", "celu"])
def test_far_out_nothing_overflows_on_the_unused_side(name: str) -> None:
    got = run(CASES[name][0](leaf.constant(np.array([1e4, 6e4], np.float16))))
    assert got.tolist() == np.array([1e4, 6e4], np.float16).tolist()


def test_prelu_broadcasts_its_slope() -> None:
    x = leaf.constant(np.full((2, 3, 2), -1.0, np.float32))
    slope = leaf.constant(np.array([[1.0], [2.0], [3.0]], np.float32))
    assert run(ops.prelu(x, slope)).tolist() == [[[-1, -1], [-2, -2], [-3, -3]]] * 2


def test_glu() -> None:
    x = np.array([[1.0, -2.0, 0.0, 3.0], [4.0, 5.0, -1.0, -3.0]], np.float32)
    expected = [[a / (1 + math.exp(-c)), b / (1 + math.exp(-d))] for a, b, c, d in x.tolist()]
    assert_close(run(ops.glu(leaf.constant(x))), np.array(expected), f32)
    assert_close(run(ops.glu(leaf.constant(x.T), axis=0)), np.array(expected).T, f32)
    with pytest.raises(TypeRuleError, match="equal parts"):
        ops.glu(leaf.constant(np.zeros(3, np.float32)))


def test_shrink_takes_whole_numbers() -> None:
    x = leaf.constant(np.array([-3, -1, 0, 1, 3], np.int32))
    assert run(ops.shrink(x, threshold=1, bias=1)).tolist() == [-2, 0, 0, 0, 2]


@pytest.mark.parametrize("name", CASES)
def test_patterns_may_use_them_all(name: str) -> None:
    assert CASES[name][0](leaf.hole("x")).known_type is None
