"""Scores of classes and targets as operators of ai.onnx.ml return them."""

from __future__ import annotations

import numpy as np

from dovetail import library, ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, f64
from dovetail.ir.value import Value
from dovetail.ops import build

DOMAIN = "ai.onnx.ml"


def as_floats(x: Value) -> Value:
    """Features in the type that they are compared in: f64 stays, everything else is f32."""
    return x if x.dtype is f64 else ops.cast(x, dtype=f32)


def transformed(n: Node, scores: Value, post_transform: str) -> Value:
    """Scores [batch, classes] after the function that the node names."""
    match post_transform:
        case "NONE":
            return scores
        case "LOGISTIC":
            return ops.sigmoid(scores)
        case "SOFTMAX":
            return library.softmax.body(scores)
        case "SOFTMAX_ZERO":
            # Scores of exactly 0 take no part.
            present = ops.not_equal(scores, 0)
            top = ops.reduce_max(scores, axes=(-1,))
            parts = ops.where(present, ops.exp(scores - top), 0)
            total = ops.reduce_sum(parts, axes=(-1,))
            return parts / ops.where(ops.equal(total, 0), 1, total)
        case _:
            raise n.unsupported(f"post_transform {post_transform!r}", hint="it is read with every other one")


def labels(n: Node, best: Value, ints: tuple[int, ...], strings: tuple[str, ...]) -> Value:
    """The label of the class with each index."""
    if strings:
        raise n.unsupported("labels that are strings", hint="export the model with integers as labels")
    return ops.gather(leaf.constant(np.array(ints, np.int64)), best, axis=0)


def best(scores: Value) -> Value:
    """The index of the largest score of each row, the first of several."""
    return build.squeeze_dims(ops.arg_max(scores, axis=-1), -1)
