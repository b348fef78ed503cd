"""What the tests of control flow share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.ir import leaf
from dovetail.ir.dtype import bool_, i64
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.targets.reference.interpreter import evaluate

Array = NDArray[Any]

FLAG = TensorType(bool_, ())
COUNT = TensorType(i64, ())


def run(outputs: dict[str, Value] | Value, **feeds: Any) -> dict[str, Array]:
    return evaluate(Graph.of(outputs), {k: np.asarray(v) for k, v in feeds.items()})


def count_input(name: str = "n") -> Value:
    return leaf.input(name, COUNT)


def identity(*types: TensorType) -> Subgraph:
    return Subgraph(types, tuple(leaf.argument(i, t) for i, t in enumerate(types)))
