"""Which arrays of a model are constants: those whose numbers decide patterns and shapes."""

from __future__ import annotations

from dataclasses import replace

from dovetail.frontends.onnx.file.skim import HASHED
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array, is_table_of_truths

_SMALL = {"float": 8, "complex": 8}
_MOST_CONSTANT = 4096


def matters(array: Array, dtype: DType, *, train: bool) -> bool:
    """Whether the numbers of an array matter to patterns and shapes; others are parameters.

    A model that is trained has parameters of a few floats too, such as the bias of a few classes; single numbers and
    masks stay constants.
    """
    if not train or not dtype.is_float:
        return array.size <= _SMALL.get(dtype.kind, _MOST_CONSTANT) or _is_mask(array)
    # Gains and biases that nobody has trained yet are all ones or zeros, and no masks.
    return array.size < 2 or (_is_mask(array) and bool((array != array.flat[0]).any()))


def without(graph: Graph, names: set[str]) -> Graph:
    """A graph without some parameters, as far as no value reads them."""
    dropped = names - {value.attrs["name"] for value in graph.parameters}
    if not dropped:
        return graph
    params = {name: array for name, array in graph.params.items() if name not in dropped}
    declared = tuple([value for value in graph.declared if value.attrs["name"] not in dropped])
    return replace(graph, params=params, declared=declared)


def _is_mask(array: Array) -> bool:
    """Whether it is a table that tells which places count, written in floats.

    Numbers of larger arrays decide nothing: they may still be read, and two files that differ in them are one graph.
    """
    return array.ndim > 1 and array.dtype.kind == "f" and array.nbytes <= HASHED and is_table_of_truths(array)


__all__ = ["matters", "without"]
