"""Every primitive that XLA computes, by name, and those that flag what NumPy would refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.targets.xla.meanings import elementwise, images, indexing, matrices, products, reductions, shapes

MEANINGS: dict[str, Callable[..., Any]] = {
    **elementwise.MEANINGS,
    **shapes.MEANINGS,
    **reductions.MEANINGS,
    **products.MEANINGS,
    **matrices.MEANINGS,
    **indexing.MEANINGS,
    **images.MEANINGS,
}
FLAGS = indexing.FLAGS

__all__ = ["FLAGS", "MEANINGS"]
