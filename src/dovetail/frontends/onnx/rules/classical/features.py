"""Features before a model of ai.onnx.ml: scaled, normalised, chosen, encoded."""

from __future__ import annotations

import math

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.rules.classical.scores import DOMAIN
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, i64
from dovetail.ir.literal import Array
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


@rule("LabelEncoder", domain=DOMAIN, since=2, until=3)
def label_encoder_of_lists(
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
    """Each element replaced by the value of its key, or by the default.

    The standard does not say which of two equal keys counts; here it is the first, as in onnxruntime.
    """
    keys, values = _numbers(keys_int64s, keys_floats), _numbers(values_int64s, values_floats)
    default = np.array(default_int64 if values_int64s else default_float)
    return _looked_up(n, x, keys, values, default, last=False)


@rule("LabelEncoder", domain=DOMAIN, since=4)
def label_encoder(
    n: Node,
    x: Value,
    *,
    keys_int64s: tuple[int, ...] = (),
    keys_floats: tuple[float, ...] = (),
    keys_tensor: Array | None = None,
    values_int64s: tuple[int, ...] = (),
    values_floats: tuple[float, ...] = (),
    values_tensor: Array | None = None,
    default_int64: int = -1,
    default_float: float = -0.0,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
) -> Value:
    """The same, with tensors too. Of two equal keys the last counts, and NaN is equal to NaN.

    onnxruntime takes the first of two equal keys in this version, too, and the standard says the last.
    """
    keys = _numbers(keys_int64s, keys_floats) if keys_tensor is None else keys_tensor.reshape(-1)
    values = _numbers(values_int64s, values_floats) if values_tensor is None else values_tensor.reshape(-1)
    default = np.array(default_int64 if values_int64s else default_float)
    if values_tensor is not None and default_tensor is not None:
        default = default_tensor.reshape(())
    return _looked_up(n, x, keys, values, default, last=True)


def _numbers(integers: tuple[int, ...], floats: tuple[float, ...]) -> Array:
    return np.array(integers, np.int64) if integers else np.array(floats, np.float32)


def _looked_up(n: Node, x: Value, keys: Array, values: Array, default: Array, *, last: bool) -> Value:
    """The value whose key is equal to each element; `last` of several, and then NaN is a key too."""
    if not keys.size or keys.size != values.size:
        raise n.unsupported(f"{keys.size} keys and {values.size} values that are numbers", hint="strings are not read")
    if keys.size > MOST_KEYS:
        raise n.unsupported(f"{keys.size} keys", hint=f"up to {MOST_KEYS} are read")
    if last:
        keys, values = keys[::-1], values[::-1]
    table = np.append(values, default.astype(values.dtype))
    each = build.expand_dims(x, -1)
    same = ops.equal(each, leaf.constant(keys.astype(x.dtype.numpy)))
    if last and keys.dtype.kind == "f" and np.isnan(keys).any():
        same = ops.bit_or(same, ops.bit_and(ops.is_nan(each), leaf.constant(np.isnan(keys))))
    places = leaf.constant(np.arange(keys.size))
    first = ops.reduce_min(ops.where(same, places, leaf.scalar(keys.size, i64)), axes=(-1,))
    return ops.gather(leaf.constant(table), build.squeeze_dims(first, -1), axis=0)
