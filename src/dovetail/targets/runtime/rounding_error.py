"""How far products are from float64 whose factors a kernel rounds to bf16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from dovetail.ir.dtype import bf16
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.spec import Packed

_ROWS, _COLUMNS = 16, 64
"""Of what is measured: columns are taken from everywhere in a matrix."""


@runtime_checkable
class Rounds(Protocol):
    """A packing that rounds weights to bf16."""

    def by_column(self, *given: Array) -> list[Array]:
        """Matrices [columns, k] before they are rounded."""
        ...


def rounding_error(binding: Packed, read: Callable[[Value], Array]) -> float:
    """The norm of what rounding changes, over the norm of products of random activations with the weights."""
    assert isinstance(binding.pack, Rounds), "what does not round has no error"
    away = whole = 0.0
    for matrix in binding.pack.by_column(*[read(value) for value in (binding.value, *binding.beside)]):
        count = len(matrix)
        some = matrix[np.unique(np.linspace(0, count - 1, min(count, _COLUMNS), dtype=np.int64))] if count else matrix
        x = np.random.default_rng(0).standard_normal((_ROWS, some.shape[1]), np.float32)
        exact = _wide(x) @ _wide(some).T
        found = _wide(x.astype(bf16.numpy)) @ _wide(some.astype(bf16.numpy)).T
        away += float(np.square(found - exact).sum())
        whole += float(np.square(exact).sum())
    return (away / whole) ** 0.5 if whole > 0 else 0.0


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


__all__ = ["Rounds", "rounding_error"]
