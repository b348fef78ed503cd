"""Features before a model of ai.onnx.ml: scaled, normalised, chosen, encoded."""

from __future__ import annotations

import math

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import collected, rule
from dovetail.frontends.onnx.rules.classical.scores import DOMAIN
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, i64
from dovetail.ir.value import Value
from dovetail.ops import build

MOST_KEYS = 4096
"""Entries of a LabelEncoder: each element is compared with all of them."""


@rule("Scaler", domain=DOMAIN)
def scaler(n: Node, x: Value, *, offset: tuple[float, ...], scale: tuple[float, ...]) -> Value:
    """(x - offset) * scale, one pair for each feature or one for all."""
    shift, factor = (leaf.constant(np.array(v, np.float32)) for v in (offset, scale))
    return (ops.cast(x, dtype=f32) - shift) * factor


@rule("Normalizer", domain=DOMAIN)
def normalizer(n: Node, x: Value, *, norm: str = "MAX") -> Value:
    """Each row by its largest element, its sum of absolute values, or its length; a row of zeros stays."""
    x = ops.cast(x, dtype=f32)
    match norm:
        case "MAX":
            size = ops.reduce_max(x, axes=(-1,))
        case "L1":
            size = ops.reduce_l1(x, axes=(-1,))
        case "L2":
            size = ops.reduce_l2(x, axes=(-1,))
        case _:
            raise n.malformed(f"the norm {norm!r}", hint="it is MAX, L1 or L2")
    return x / ops.where(ops.equal(size, 0), 1, size)


@rule("Binarizer", domain=DOMAIN)
def binarizer(n: Node, x: Value, *, threshold: float = 0.0) -> Value:
    """1 where an element is above the threshold, else 0."""
    return ops.cast(ops.greater(x, threshold), dtype=x.dtype)


@rule("Imputer", domain=DOMAIN)
def imputer(
    n: Node,
    x: Value,
    *,
    imputed_value_floats: tuple[float, ...] = (),
    imputed_value_int64s: tuple[int, ...] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Value:
    """Elements that are missing (NaN, or one number) get another value, one for each feature or one for all."""
    floats = x.dtype.is_inexact
    put = imputed_value_floats if floats else imputed_value_int64s
    if not put:
        raise n.malformed(f"nothing to put into {x.type}")
    if floats and math.isnan(replaced_value_float):
        missing = ops.is_nan(x)
    else:
        missing = ops.equal(x, replaced_value_float if floats else replaced_value_int64)
    return ops.where(missing, leaf.constant(np.array(put, x.dtype.numpy)), x)


@rule("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(n: Node, x: Value, indices: Value) -> Value:
    """The elements of the last axis that the indices name."""
    x = build.expand_dims(x, 0) if x.rank == 1 else x
    return ops.gather(x, build.reshape(indices, (indices.tensor.count,)), axis=-1)


@rule("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(n: Node, *xs: Value, inputdimensions: tuple[int, ...] = ()) -> Value:
    """Features of several tensors in one row."""
    return ops.concat(*(ops.cast(build.expand_dims(x, 0) if x.rank == 1 else x, dtype=f32) for x in xs), axis=-1)


@rule("LabelEncoder", domain=DOMAIN, since=2)
def label_encoder(
    n: Node,
    x: Value,
    *,
    keys_int64s: tuple[int, ...] = (),
    keys_floats: tuple[float, ...] = (),
    values_int64s: tuple[int, ...] = (),
    values_floats: tuple[float, ...] = (),
    default_int64: int = -1,
    default_float: float = -0.0,
    default_string: str = "_Unused",
) -> Value:
    """Each element replaced by the value of its key, or by the default."""
    keys, values = keys_int64s or keys_floats, values_int64s or values_floats
    if not keys or len(keys) != len(values):
        raise n.unsupported(f"{len(keys)} keys and {len(values)} values that are numbers", hint="strings are not read")
    if len(keys) > MOST_KEYS:
        raise n.unsupported(f"{len(keys)} keys", hint=f"up to {MOST_KEYS} are read")
    of, other = (i64, default_int64) if values_int64s else (f32, default_float)
    table = np.array([*values, other], of.numpy)
    same = ops.equal(build.expand_dims(x, -1), leaf.constant(np.array(keys, x.dtype.numpy)))
    places = leaf.constant(np.arange(len(keys)))
    first = ops.reduce_min(ops.where(same, places, leaf.scalar(len(keys), i64)), axes=(-1,))
    return ops.gather(leaf.constant(table), build.squeeze_dims(first, -1), axis=0)


RULES = collected(globals())
