"""Arrays for the inputs and parameters of a graph, checked by name and dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np

from dovetail.errors import BindError
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, of_numpy
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found, bare_symbol
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value

Accepts = Callable[[DType, DType], bool]
"""Whether a tensor that is declared with the first dtype may have the second."""


def bind_leaves(
    graph: Graph,
    feeds: Mapping[str, Array],
    params: Mapping[str, Array] | None = None,
    *,
    accepts: Accepts | None = None,
) -> dict[Value, Array]:
    """The array of each input and parameter; `params` go before those that the graph came with."""
    inputs = {str(v.attrs["name"]): v for v in graph.inputs}
    parameters = {str(v.attrs["name"]): v for v in graph.parameters}
    bound = {**graph.params, **(params or {})}
    _refuse_unknown("input", feeds, inputs, parameters, "pass it in params")
    _refuse_unknown("parameter", params or {}, {**parameters, **graph.params}, inputs, "pass it with the inputs")
    arrays: dict[Value, Array] = {}
    for kind, leaves, named in (("input", inputs, feeds), ("parameter", parameters, bound)):
        for name, value in leaves.items():
            if name not in named:
                raise BindError(f"the {kind} {name} ({value.type}) is missing", hint=f"pass an array for {name!r}")
            arrays[value] = check_array(f"the {kind} {name}", value, named[name], accepts)
    return arrays


def check_array(name: str, value: Value, array: object, accepts: Accepts | None = None) -> Array:
    """The array, if it has the dtype that the value's type declares."""
    declared = value.tensor.dtype
    if not isinstance(array, np.ndarray | np.generic):
        raise BindError(
            f"{name} is a {type(array).__name__}, and an array is wanted",
            hint=f"pass a NumPy array of {declared.name}",
        )
    held: Array = np.asarray(cast(Any, array))
    actual = of_numpy(held.dtype)
    if actual is None or not (actual is declared or (accepts is not None and accepts(declared, actual))):
        raise BindError(
            f"{name} has the dtype {held.dtype}, and its type is {value.type}",
            hint=f"pass it as {declared.name}: array.astype({declared.numpy.name!r})",
        )
    return held.astype(actual.numpy, copy=False)


def _refuse_unknown(
    kind: str, named: Mapping[str, Array], known: Mapping[str, object], others: Mapping[str, Value], advice: str
) -> None:
    for name in named:
        if name in known:
            continue
        if name in others:
            raise BindError(f"{name!r} is given as {_ARTICLE[kind]}, and it is none", hint=advice)
        raise BindError(
            f"there is no {kind} named {name!r}", hint=f"the {kind}s are {', '.join(sorted(known)) or 'none'}"
        )


_ARTICLE = {"input": "an input", "parameter": "a parameter"}


class Shaped(Protocol):
    """What has the shape of an array."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...


def actual_leaf(value: Value, array: Shaped, *, bare: bool = False) -> Found:
    """Return the shape of a leaf's array; with `bare`, only sizes that are one symbol are left to solve."""
    type, name = value.tensor, named_leaf(value)
    if bare and not type.is_static and array.ndim == type.rank:
        known = zip(type.shape, array.shape, strict=True)
        sizes = [s if isinstance(s, int) or bare_symbol(s) else size for s, size in known]
        type = TensorType(type.dtype, tuple(sizes))
    return Found(name, type, array.shape)


def named_leaf(value: Value) -> str:
    """What messages call a leaf."""
    if value.op is leaf.INPUT or value.op is leaf.PARAM:
        return f"the {'input' if value.op is leaf.INPUT else 'parameter'} {value.attrs['name']}"
    return f"argument {value.attrs['index']}" if value.op is leaf.ARGUMENT else f"the value of {value.op.name}"
