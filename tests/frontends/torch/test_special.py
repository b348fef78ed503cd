"""Special functions against Python's and NumPy's own, at poles, zeros, tails and edges. They need no torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.polynomial import chebyshev, hermite, hermite_e, laguerre, legendre
from numpy.typing import NDArray

from dovetail.frontends.torch.exported import Call, Exported, Leaf, Output, Ref
from dovetail.frontends.torch.importing.importer import Import
from dovetail.frontends.torch.rules import REGISTRY
from dovetail.ir.dtype import f64
from dovetail.ir.type import TensorType
from dovetail.targets.reference.interpreter import evaluate

Array = NDArray[np.float64]
NEAR = [0.0, -0.0, 1e-300, 1e-9, 0.3, 0.46875, 0.5, 0.999, 1.0, 1.5, 2.0]
POINTS = np.array([*NEAR, 3.99, 4.01, 9.7, 10.0, 26.0, 170.0])
BOTH = np.concatenate([POINTS, -POINTS, [np.inf, -np.inf, np.nan, -2.5, -3.0001, -30.7]])


def computed(op: str, *arrays: Array, before: tuple[int, ...] = ()) -> Array:
    """What the rule of an operator makes of f64 arrays; numbers may stand before them."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    names = [f"x{i}" for i in range(len(arrays))]
    leaves = tuple(Leaf(n, "input", TensorType(f64, a.shape), n) for n, a in zip(names, arrays, strict=True))
    call = Call("y", f"aten.{op}", (*before, *map(Ref, names)), (), {}, TensorType(f64, shape))
    graph = Import(Exported("g", leaves, (call,), (Output(Ref("y")),)), REGISTRY.by_name).graph()
    return evaluate(graph, dict(zip(names, arrays, strict=True)))["output_0"]


def _pole_is_inf(function: Callable[[float], float]) -> Callable[[float], float]:
    def found(x: float) -> float:
        try:
            return function(x)
        except (ValueError, OverflowError):
            return math.inf

    return found


def test_lgamma() -> None:
    expected = [_pole_is_inf(math.lgamma)(x) for x in BOTH.tolist()]
    np.testing.assert_allclose(computed("lgamma.default", BOTH), expected, rtol=1e-12, atol=1e-13)


def test_erfc_is_exact_in_its_tail() -> None:
    expected = [math.erfc(x) for x in BOTH.tolist()]
    np.testing.assert_allclose(computed("erfc.default", BOTH), expected, rtol=2e-14, atol=0)


def test_erfcx_is_the_scaled_tail() -> None:
    x = BOTH[np.abs(BOTH) < 5]
    expected = [math.exp(v * v) * math.erfc(v) for v in x.tolist()]
    np.testing.assert_allclose(computed("special_erfcx.default", x), expected, rtol=1e-13)
    far = np.array([1e3, 1e8, np.inf])
    np.testing.assert_allclose(computed("special_erfcx.default", far), 1 / (far * math.sqrt(math.pi)), rtol=1e-6)


def test_erfinv_and_ndtri_undo_what_they_invert() -> None:
    y = np.array([-0.999999, -0.7, -1e-12, 0.0, 1e-300, 0.3, 0.5, 0.7001, 0.99, 1 - 1e-15])
    found = computed("erfinv.default", y)
    np.testing.assert_allclose([math.erf(x) for x in found.tolist()], y, rtol=1e-14)
    p = np.array([1e-300, 1e-20, 1e-4, 0.1, 0.5, 0.8, 0.999])
    x = computed("special_ndtri.default", p) / math.sqrt(2)
    # Far out, the last digit of x counts a thousand times in p.
    np.testing.assert_allclose([0.5 * math.erfc(-v) for v in x.tolist()], p, rtol=1e-10)
    edges = np.array([0.0, 1.0, -0.1, 1.1, np.nan])
    np.testing.assert_equal(computed("special_ndtri.default", edges), [-np.inf, np.inf, np.nan, np.nan, np.nan])
    np.testing.assert_equal(computed("erfinv.default", edges[1:4] * [-1, 20, 1]), [-np.inf, np.nan, np.nan])


def test_digamma_is_the_slope_of_lgamma() -> None:
    x = np.array([0.2, 0.9, 1.0, 3.7, 9.99, 10.0, 55.0, -0.4, -2.6, -17.3])
    step = 1e-6
    slope = (computed("lgamma.default", x + step) - computed("lgamma.default", x - step)) / (2 * step)
    np.testing.assert_allclose(computed("digamma.default", x), slope, rtol=1e-6, atol=1e-7)
    np.testing.assert_equal(computed("digamma.default", np.array([0.0, -0.0, -3.0])), [-np.inf, np.inf, np.nan])


@pytest.mark.parametrize("order", [1, 2, 4])
def test_polygamma_is_the_slope_of_the_one_before(order: int) -> None:
    x = np.array([0.4, 1.0, 3.7, 9.5, 20.0, -0.4, -2.6])
    step = 1e-6
    high, low = (computed("polygamma.default", x + s, before=(order - 1,)) for s in (step, -step))
    np.testing.assert_allclose(computed("polygamma.default", x, before=(order,)), (high - low) / (2 * step), rtol=1e-6)


@pytest.mark.slow
def test_zeta() -> None:
    x, q = np.array([2.0, 4.0, 3.0, 1.0, 0.5, 2.5, 2.0]), np.array([1.0, 1.0, -0.5, 1.0, 1.0, -0.5, -3.0])
    known = [math.pi**2 / 6, math.pi**4 / 90, -8 + 8 + sum((k + 1.5) ** -3.0 for k in range(200000))]
    found = computed("special_zeta.default", x, q)
    np.testing.assert_allclose(found[:3], known, rtol=1e-9)
    np.testing.assert_equal(found[3:], [np.inf, np.nan, np.nan, np.inf])


def _upper_share(a: float, x: float) -> float:
    return math.exp(-x) * sum(x**k / math.factorial(k) for k in range(int(a)))


@pytest.mark.slow
def test_incomplete_gamma_of_whole_orders() -> None:
    """Of a whole order a, the upper share is exp(-x) times the first a terms of the exponential series."""
    a, x = np.meshgrid([1.0, 2.0, 5.0, 30.0], [1e-3, 0.5, 1.0, 4.9, 5.1, 31.0, 200.0])
    upper = np.vectorize(_upper_share)(a, x)
    np.testing.assert_allclose(computed("igammac.default", a, x), upper, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(computed("igamma.default", a, x), 1 - upper, rtol=1e-9, atol=1e-15)
    edges = np.array([0.0, 0.0, 2.0, 2.0, np.inf, np.inf, -1.0]), np.array([1.0, 0.0, 0.0, np.inf, 1.0, np.inf, 1.0])
    np.testing.assert_equal(computed("igamma.default", *edges), [1, np.nan, 0, 1, 0, np.nan, np.nan])
    np.testing.assert_equal(computed("igammac.default", *edges), [0, np.nan, 1, 0, 1, np.nan, np.nan])


FAMILIES: dict[str, Callable[..., Any]] = {
    "chebyshev_polynomial_t": chebyshev.chebval,
    "hermite_polynomial_h": hermite.hermval,
    "hermite_polynomial_he": hermite_e.hermeval,
    "laguerre_polynomial_l": laguerre.lagval,
    "legendre_polynomial_p": legendre.legval,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_polynomials(family: str) -> None:
    x = np.array([-1.5, -1.0, -0.3, 0.0, 0.5, 1.0, 2.25])
    orders = np.array([[-1.0], [0.0], [1.0], [2.0], [5.0], [11.7]])
    found = computed(f"special_{family}.default", x, orders)
    expected: list[Array] = [FAMILIES[family](x, np.eye(12)[int(n)]) if n >= 0 else x * 0 for n in orders[:, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_chebyshev_polynomials_of_the_other_kinds() -> None:
    angle = np.array([0.3, 1.0, 2.5])
    x, n = np.cos(angle), np.array([[3.0], [9.0]])
    kinds = {
        "u": np.sin((n + 1) * angle) / np.sin(angle),
        "v": np.cos((n + 0.5) * angle) / np.cos(angle / 2),
        "w": np.sin((n + 0.5) * angle) / np.sin(angle / 2),
    }
    for kind, expected in kinds.items():
        np.testing.assert_allclose(computed(f"special_chebyshev_polynomial_{kind}.default", x, n), expected, atol=1e-12)
        shifted = computed(f"special_shifted_chebyshev_polynomial_{kind}.default", (x + 1) / 2, n)
        np.testing.assert_allclose(shifted, expected, atol=1e-12)


WHERE = np.array([1e-9, 0.3, 1.9, 2.1, 7.0, 15.9, 24.9, 25.1, 60.0, 300.0])
"""On both sides of every change from one series to another."""


def test_modified_bessel_functions_of_the_first_kind() -> None:
    both = np.concatenate([WHERE, -WHERE, [0.0]])
    np.testing.assert_allclose(computed("i0.default", both), np.i0(both), rtol=1e-13)
    np.testing.assert_allclose(computed("special_i0e.default", both), np.i0(both) * np.exp(-np.abs(both)), rtol=1e-13)
    # The trapezoidal rule over a period is exact here.
    angle = np.arange(4000) * (2 * np.pi / 4000)
    expected = np.mean(np.exp(np.outer(np.abs(both), np.cos(angle) - 1.0)) * np.cos(angle), axis=1) * np.sign(both)
    np.testing.assert_allclose(computed("special_i1e.default", both), expected, rtol=1e-11, atol=1e-16)
    assert computed("i0.default", np.array([1e4])) == np.inf


@pytest.mark.slow
def test_modified_bessel_functions_of_the_second_kind() -> None:
    """I0 K1 + I1 K0 = 1 / x ties both orders together, and an integral gives K0 alone."""
    first = [computed(f"special_i{order}e.default", WHERE) for order in (0, 1)]
    second = [computed(f"special_scaled_modified_bessel_k{order}.default", WHERE) for order in (0, 1)]
    np.testing.assert_allclose(first[0] * second[1] + first[1] * second[0], 1 / WHERE, rtol=1e-13)
    steps = np.arange(1, 60000) * 5e-4
    integral = 5e-4 * (0.5 + np.exp(np.outer(WHERE, 1.0 - np.cosh(steps))).sum(axis=1))
    np.testing.assert_allclose(second[0], integral, rtol=1e-12)
    plain = computed("special_modified_bessel_k1.default", WHERE)
    np.testing.assert_allclose(plain, second[1] * np.exp(-WHERE), rtol=1e-13)
    np.testing.assert_equal(computed("special_modified_bessel_k0.default", np.array([0.0, -1.0])), [np.inf, np.nan])


@pytest.mark.parametrize("order", [0, 1])
def test_bessel_functions_of_the_first_kind(order: int) -> None:
    both = np.concatenate([WHERE, -WHERE, [0.0]])
    angle = np.arange(4000) * (2 * np.pi / 4000)
    expected = np.mean(np.cos(order * angle - np.outer(both, np.sin(angle))), axis=1)
    np.testing.assert_allclose(computed(f"special_bessel_j{order}.default", both), expected, rtol=0, atol=1e-14)


def test_spherical_bessel_function() -> None:
    x = np.array([0.0, 1e-9, 0.49, 0.51, 3.0, -3.0, np.inf])
    expected = [*np.sinc(x[:-1] / np.pi), 0.0]
    np.testing.assert_allclose(computed("special_spherical_bessel_j0.default", x), expected, atol=1e-15)
