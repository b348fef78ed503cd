"""Linear models of ai.onnx.ml."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.classical.scores import DOMAIN, best, labels, transformed
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value


@rule("LinearRegressor", domain=DOMAIN)
def linear_regressor(
    n: Node,
    x: Value,
    *,
    coefficients: tuple[float, ...] = (),
    intercepts: tuple[float, ...] = (),
    targets: int = 1,
    post_transform: str = "NONE",
) -> Value:
    """x @ coefficientsᵀ + intercepts, one column for each target."""
    return transformed(n, _product(n, x, coefficients, intercepts, targets), post_transform)


@rule("LinearClassifier", domain=DOMAIN)
def linear_classifier(
    n: Node,
    x: Value,
    *,
    coefficients: tuple[float, ...],
    intercepts: tuple[float, ...] = (),
    classlabels_ints: tuple[int, ...] = (),
    classlabels_strings: tuple[str, ...] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Value, Value]:
    """The label of the best class of each row, and the scores of all classes."""
    count = len(classlabels_ints) or len(classlabels_strings)
    features = x.shape[-1]
    if count < 2 or not isinstance(features, int) or len(coefficients) != count * features:
        raise n.unsupported(f"{len(coefficients)} coefficients for {count} classes", hint="export a row for each class")
    scores = _product(n, x, coefficients, intercepts, count)
    chosen = labels(n, best(scores), classlabels_ints, classlabels_strings)
    return chosen, transformed(n, scores, post_transform)


def _product(n: Node, x: Value, coefficients: tuple[float, ...], intercepts: tuple[float, ...], rows: int) -> Value:
    if x.rank != 2 or rows < 1 or len(coefficients) % rows or (intercepts and len(intercepts) != rows):
        raise n.malformed(f"{len(coefficients)} coefficients and {len(intercepts)} intercepts for {rows} rows")
    weights = np.array(coefficients, np.float32).reshape(rows, -1).T
    product = ops.matmul(ops.cast(x, dtype=f32), leaf.constant(np.ascontiguousarray(weights)))
    return product + leaf.constant(np.array(intercepts, np.float32)) if intercepts else product
