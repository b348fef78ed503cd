"""Orthogonal polynomials by their recurrences, in f64; the order is a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Number, Rule, rule
from dovetail.ir import leaf
from dovetail.ir.dtype import f64
from dovetail.ir.value import Value
from dovetail.ops import build

First = Callable[[Value], Value]
Step = Callable[[Value, Value, Value, Value], Value]
"""The polynomial of order k from x, k and those of orders k - 2 and k - 1."""


def _chebyshev(x: Value, k: Value, p: Value, q: Value) -> Value:
    return (x + x) * q - p


def _hermite_h(x: Value, k: Value, p: Value, q: Value) -> Value:
    return (x + x) * q - (k - 1.0) * 2.0 * p


def _hermite_he(x: Value, k: Value, p: Value, q: Value) -> Value:
    return x * q - (k - 1.0) * p


def _laguerre(x: Value, k: Value, p: Value, q: Value) -> Value:
    return ((k * 2.0 - 1.0 - x) * q - (k - 1.0) * p) / k


def _legendre(x: Value, k: Value, p: Value, q: Value) -> Value:
    return ((k * 2.0 - 1.0) * x * q - (k - 1.0) * p) / k


def _evaluated(n: Node, x: Value, order: Value, first: First, step: Step) -> Value:
    """The polynomial of each order at each x; 0 for a negative order."""
    known = ops.trunc(ops.where(ops.is_finite(order), order, -1.0))
    wide, upto = (build.broadcast_to(v, n.shape) for v in (x, known))
    if n.type.count == 0:
        return build.zeros(n.shape, n.dtype)

    def more(k: Value, p: Value, q: Value, x: Value, upto: Value) -> Value:
        left = ops.less_equal(k, upto)
        return build.reshape(ops.reduce_any(left, axes=tuple(range(-left.rank, 0))), ()) if left.rank else left

    def next_order(k: Value, p: Value, q: Value, x: Value, upto: Value) -> tuple[Value, Value, Value]:
        return k + 1.0, q, ops.where(ops.less_equal(k, upto), step(x, k, p, q), q)

    one = build.full(n.shape, 1.0, f64)
    start = [leaf.scalar(2.0, f64), one, first(wide)]
    found = ops.while_loop(more, next_order, start, [wide, upto]).carries[2]
    return ops.where(ops.less(upto, 0.0), 0.0, ops.where(ops.equal(upto, 0.0), 1.0, found))


def _families(declared: Mapping[str, tuple[First, Step, str]]) -> tuple[Rule, ...]:
    def rules(op: str, first: First, step: Step, doc: str) -> tuple[Rule, ...]:
        def read(n: Node, x: Number, order: Number) -> Value:
            at = n.value(x, f64)
            if op.startswith("shifted"):
                at = at * 2.0 - 1.0
            return cast(_evaluated(n, at, n.value(order, f64), first, step), n.dtype)

        read.__doc__ = doc
        return rule(*(f"special_{op}.{kind}" for kind in ("default", "x_scalar", "n_scalar")))(read)

    return tuple(r for op, (first, step, doc) in declared.items() for r in rules(op, first, step, doc))


FAMILIES = _families(
    {
        "chebyshev_polynomial_t": (lambda x: x, _chebyshev, "Chebyshev polynomial of the first kind"),
        "chebyshev_polynomial_u": (lambda x: x + x, _chebyshev, "Chebyshev polynomial of the second kind"),
        "chebyshev_polynomial_v": (lambda x: x + x - 1.0, _chebyshev, "Chebyshev polynomial of the third kind"),
        "chebyshev_polynomial_w": (lambda x: x + x + 1.0, _chebyshev, "Chebyshev polynomial of the fourth kind"),
        "shifted_chebyshev_polynomial_t": (lambda x: x, _chebyshev, "First Chebyshev polynomial of 2x - 1"),
        "shifted_chebyshev_polynomial_u": (lambda x: x + x, _chebyshev, "Second Chebyshev polynomial of 2x - 1"),
        "shifted_chebyshev_polynomial_v": (lambda x: x + x - 1.0, _chebyshev, "Third Chebyshev polynomial of 2x - 1"),
        "shifted_chebyshev_polynomial_w": (lambda x: x + x + 1.0, _chebyshev, "Fourth Chebyshev polynomial of 2x - 1"),
        "hermite_polynomial_h": (lambda x: x + x, _hermite_h, "Physicist's Hermite polynomial"),
        "hermite_polynomial_he": (lambda x: x, _hermite_he, "Probabilist's Hermite polynomial"),
        "laguerre_polynomial_l": (lambda x: 1.0 - x, _laguerre, "Laguerre polynomial"),
        "legendre_polynomial_p": (lambda x: x, _legendre, "Legendre polynomial"),
    }
)
