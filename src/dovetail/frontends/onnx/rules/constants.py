"""Values that a node holds or hands on."""

from __future__ import annotations

import numpy as np

from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.ir import leaf
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops.build import broadcast_to


@rule("Constant")
def constant(
    n: Node,
    *,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
    sparse_value: messages.SparseTensorProto | None = None,
) -> Value:
    """A tensor that is part of the model."""
    if value_string is not None or value_strings is not None:
        raise n.unsupported("tensors of string")
    given: list[Array] = [] if value is None else [value]
    given += [np.asarray(v, np.float32) for v in (value_float, value_floats) if v is not None]
    given += [np.asarray(v, np.int64) for v in (value_int, value_ints) if v is not None]
    if sparse_value is not None:
        given.append(n.around.tensors.dense(sparse_value, n.where))
    if len(given) != 1:
        raise n.malformed(f"{len(given)} values")
    (array,) = given
    if array.ndim and array.size > 1 and _is_uniform(array):
        return broadcast_to(leaf.constant(array.reshape(-1)[0]), array.shape)
    return n.around.array_value(n.name, array)


def _is_uniform(array: Array) -> bool:
    """Whether all elements have the same bits: NaN is itself, and 0.0 is not -0.0."""
    bits = array.reshape(-1).view(np.uint8).reshape(array.size, -1)
    return bool((bits == bits[0]).all())


@rule("Identity")
def identity(n: Node, x: Value) -> Value:
    """The same tensor."""
    return x
