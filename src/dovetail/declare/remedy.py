"""Remedies: what a model would have to hold instead, for a guard that refuses to hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value

Change: TypeAlias = Mapping[str, Any]
"""What was caught, by name, as it would have to be: operands by their types, options and numbers as they are."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change to what a pattern caught that makes its guard hold. It may change what the model computes."""

    name: str
    words: str
    """The change in words, as reports say it."""
    change: Callable[..., Change | None]
    asks: tuple[str, ...]

    @staticmethod
    def of(change: Callable[..., Change | None]) -> Remedy:
        first = (inspect.getdoc(change) or "").split("\n")[0].rstrip(".")
        return Remedy(
            change.__name__, first[:1].lower() + first[1:], change, tuple(inspect.signature(change).parameters)
        )

    def changes(self, names: Mapping[str, Any]) -> Change | None:
        """What has to change of what was caught; None where this remedy does not help."""
        return self.change(**{name: names.get(name) for name in self.asks})


def typed(value: Value, *, shape: tuple[Size, ...] | None = None, dtype: DType | None = None) -> TensorType:
    """The type of a value with another shape, or in another dtype."""
    return TensorType(dtype or value.dtype, value.shape if shape is None else shape)


def every(wanted: Callable[[Value], TensorType], **operands: Value | None) -> Change:
    """The same change to each of several operands; those that are left out stay out."""
    return {name: wanted(value) for name, value in operands.items() if value is not None}


__all__ = ["Change", "Remedy", "every", "typed"]
