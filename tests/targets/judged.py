"""What the tests of the interpreter share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail.errors import BindError
from dovetail.ir.graph import Graph
from dovetail.targets.reference.interpreter import evaluate

Array = NDArray[Any]


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def refusal_of(graph: Graph, feeds: Mapping[str, Any], **options: Any) -> BindError:
    with pytest.raises(BindError) as caught:
        evaluate(graph, feeds, **options)
    assert caught.value.hint
    return caught.value
