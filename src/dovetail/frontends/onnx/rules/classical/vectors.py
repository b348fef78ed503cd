"""Support vector machines of ai.onnx.ml, and the map that scikit-learn's exporters put after a classifier."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.classical.scores import DOMAIN, best, labels, transformed
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops import build

MOST_CLASSES = 64
"""Classes of a machine with probabilities: each of them is a few steps in every trip of the coupling."""
TRIPS = 100
"""Trips of the coupling of pairs, at most."""
SURE = 1e-7
"""How near to 0 and 1 the probability of a pair may be."""


@rule("SVMRegressor", domain=DOMAIN)
def svm_regressor(
    n: Node,
    x: Value,
    *,
    coefficients: tuple[float, ...],
    rho: tuple[float, ...],
    support_vectors: tuple[float, ...] = (),
    n_supports: int = 0,
    kernel_type: str = "LINEAR",
    kernel_params: tuple[float, ...] = (),
    one_class: int = 0,
    post_transform: str = "NONE",
) -> Value:
    """The weighted sum of the kernels of all support vectors, or its sign for one class: [batch, 1]."""
    if post_transform != "NONE":
        raise n.unsupported(f"post_transform {post_transform!r}", hint="runtimes ignore it; export it as an operator")
    x = _rows(x)
    if n_supports:
        vectors = _matrix(n, support_vectors, n_supports)
        x = _kernels(n, x, vectors, kernel_type, kernel_params)
    y = ops.matmul(x, _constant(_matrix(n, coefficients, 1).T)) + float(np.float32(_first(n, rho)))
    return ops.where(ops.greater(y, 0), leaf.scalar(1, f32), leaf.scalar(-1, f32)) if one_class else y


@rule("SVMClassifier", domain=DOMAIN)
def svm_classifier(
    n: Node,
    x: Value,
    *,
    coefficients: tuple[float, ...],
    rho: tuple[float, ...],
    support_vectors: tuple[float, ...] = (),
    vectors_per_class: tuple[int, ...] = (),
    classlabels_ints: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    prob_a: tuple[float, ...] = (),
    prob_b: tuple[float, ...] = (),
    kernel_type: str = "LINEAR",
    kernel_params: tuple[float, ...] = (),
    post_transform: str = "NONE",
) -> tuple[Value, Value]:
    """The class that wins most of the pairs, and the probabilities of all classes or the scores of all pairs."""
    count = len(classlabels_ints) or len(classlabels_strings)
    x = _rows(x)
    if not vectors_per_class:
        if count < 3:
            raise n.unsupported(f"a linear machine of {count} classes", hint="export it as a LinearClassifier")
        sums = ops.matmul(x, _constant(_matrix(n, coefficients, count).T)) + float(np.float32(_first(n, rho)))
        return labels(n, best(sums), classlabels_ints, classlabels_strings), transformed(n, sums, post_transform)
    pairs = list(combinations(range(count), 2))
    total = sum(vectors_per_class)
    if (
        count < 2
        or len(vectors_per_class) != count
        or len(rho) < len(pairs)
        or len(coefficients) != (count - 1) * total
    ):
        raise n.malformed(f"{len(vectors_per_class)} groups of vectors and {len(rho)} offsets for {count} classes")
    kernels = _kernels(n, x, _matrix(n, support_vectors, total), kernel_type, kernel_params)
    weights = _pair_weights(np.array(coefficients, np.float32).reshape(count - 1, total), vectors_per_class)
    scores = ops.matmul(kernels, _constant(weights)) + _constant(np.array(rho[: len(pairs)], np.float32))
    wins = [[float(c == i) - float(c == j) for c in range(count)] for i, j in pairs]
    won = ops.where(ops.greater(scores, 0), leaf.scalar(0.5, f32), leaf.scalar(-0.5, f32))
    chosen = labels(n, best(ops.matmul(won, _constant(np.array(wins)))), classlabels_ints, classlabels_strings)
    if prob_a:
        if len(prob_a) < len(pairs) or len(prob_a) != len(prob_b) or count > MOST_CLASSES:
            raise n.unsupported(f"{len(prob_a)} and {len(prob_b)} slopes and offsets for {count} classes")
        slope, offset = (_constant(np.array(given[: len(pairs)], np.float32)) for given in (prob_a, prob_b))
        sure = ops.minimum(ops.maximum(ops.sigmoid(-(scores * slope + offset)), SURE), 1 - SURE)
        return chosen, transformed(n, _coupled(sure, pairs, count), post_transform)
    if count == 2:
        if post_transform not in ("NONE", "LOGISTIC"):
            raise n.unsupported(f"post_transform {post_transform!r} of one score", hint="NONE and LOGISTIC are read")
        scores = ops.concat(-scores, scores, axis=-1)
    return chosen, transformed(n, scores, post_transform)


@rule("ZipMap", domain=DOMAIN)
def zip_map(
    n: Node, x: Value, *, classlabels_int64s: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = ()
) -> Value:
    """The scores as a matrix, one column for each label; the map from labels to scores is left to the caller."""
    count = len(classlabels_int64s) or len(classlabels_strings)
    if x.rank == 0 or x.shape[-1] != count:
        raise n.malformed(f"{count} labels for {x.type}")
    return x


def _rows(x: Value) -> Value:
    return ops.cast(build.expand_dims(x, 0) if x.rank == 1 else x, dtype=f32)


def _constant(array: Array) -> Value:
    return leaf.constant(np.ascontiguousarray(array, np.float32))


def _first(n: Node, rho: tuple[float, ...]) -> float:
    if not rho:
        raise n.malformed("no rho")
    return rho[0]


def _matrix(n: Node, numbers: tuple[float, ...], rows: int) -> Array:
    if rows < 1 or not numbers or len(numbers) % rows:
        raise n.malformed(f"{len(numbers)} numbers for {rows} rows")
    return np.array(numbers, np.float32).reshape(rows, -1)


def _kernels(n: Node, x: Value, vectors: Array, kind: str, given: tuple[float, ...]) -> Value:
    """How near each row is to each of the support vectors: [batch, vectors]."""
    if given and len(given) != 3:
        raise n.malformed(f"{len(given)} kernel_params")
    gamma, coef0, degree = (float(np.float32(p)) for p in given or (0.0, 0.0, 0.0))
    if kind == "RBF":
        apart = build.expand_dims(x, -2) - _constant(vectors)
        return ops.exp(-gamma * build.squeeze_dims(ops.reduce_sum(apart * apart, axes=(-1,)), -1))
    product = ops.matmul(x, _constant(vectors.T))
    match kind:
        case "LINEAR":
            return product
        case "POLY":
            base = gamma * product + coef0
            powers = {1.0: base, 2.0: base * base, 3.0: base * base * base}
            return powers[degree] if degree in powers else ops.pow_(base, degree)
        case "SIGMOID":
            return ops.tanh(gamma * product + coef0)
        case _:
            raise n.unsupported(f"kernel_type {kind!r}", hint="LINEAR, POLY, RBF and SIGMOID are read")


def _pair_weights(coefficients: Array, vectors_per_class: tuple[int, ...]) -> Array:
    """The weight of each support vector in the score of each pair of classes: [vectors, pairs].

    A vector has a coefficient for each other class: those of earlier classes first.
    """
    group = np.repeat(np.arange(len(vectors_per_class)), vectors_per_class)
    pairs = list(combinations(range(len(vectors_per_class)), 2))
    weights = np.zeros((len(group), len(pairs)), np.float32)
    for p, (i, j) in enumerate(pairs):
        weights[group == i, p] = coefficients[j - 1, group == i]
        weights[group == j, p] = coefficients[i, group == j]
    return weights


def _coupled(sure: Value, pairs: list[tuple[int, int]], count: int) -> Value:
    """Probabilities of classes from those of pairs, by Wu, Lin and Weng's second method: the p with Qp = pᵀQp.

    A row stops where its error is below a bound, so that the rows of a batch do not depend on each other.
    """
    place = {pair: p for p, pair in enumerate(pairs)}

    def of_pair(i: int, j: int) -> Value:
        """The probability of class i against class j, [batch, 1]."""
        p = place[min(i, j), max(i, j)]
        found = build.slice_axis(sure, axis=-1, start=p, stop=p + 1)
        return found if i < j else 1 - found

    rows: list[Value] = []
    for t in range(count):
        squares = [of_pair(j, t) for j in range(count) if j != t]
        whole = sum((s * s for s in squares[1:]), squares[0] * squares[0])
        cells = [whole if j == t else -of_pair(j, t) * of_pair(t, j) for j in range(count)]
        rows.append(ops.concat(*cells, axis=-1))
    q = ops.concat(*(build.expand_dims(row, -2) for row in rows), axis=-2)
    start = build.broadcast_to(leaf.scalar(1 / count, f32), (sure.shape[0], count))
    bound = float(np.float32(0.005) / np.float32(count))

    def products(p: Value, q: Value) -> tuple[Value, Value]:
        each = build.squeeze_dims(ops.matmul(q, build.expand_dims(p, -1)), -1)
        return each, ops.reduce_sum(p * each, axes=(-1,))

    def going(p: Value, q: Value) -> Value:
        each, whole = products(p, q)
        return ops.greater_equal(ops.reduce_max(ops.abs_(each - whole), axes=(-1,)), bound)

    def trip(p: Value, q: Value) -> tuple[Value, ...]:
        before, (each, whole), goes_on = p, products(p, q), going(p, q)
        for t in range(count):
            row = build.select(q, axis=-2, index=t)
            own, at = (build.slice_axis(v, axis=-1, start=t, stop=t + 1) for v in (row, each))
            step = (whole - at) / own
            scale = 1 + step
            whole = (whole + step * (step * own + 2 * at)) / scale / scale
            each = (each + step * row) / scale
            p = (p + step * _constant(np.eye(1, count, t))) / scale
        return (ops.where(goes_on, p, before),)

    def condition(p: Value, q: Value) -> Value:
        return build.squeeze_dims(ops.reduce_any(going(p, q), axes=(-2, -1)), (-2, -1))

    return ops.while_loop(condition, trip, (start,), (q,), limit=TRIPS).carries[0]
