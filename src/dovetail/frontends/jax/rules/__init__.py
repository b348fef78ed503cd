"""The rules of StableHLO's operations, by name; each makes values of primitives."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dovetail.frontends.jax.importing import Rule
from dovetail.frontends.jax.rules import control, elementwise, indexing, libraries, products, reductions, shapes

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **elementwise.RULES,
        **shapes.RULES,
        **reductions.RULES,
        **products.RULES,
        **indexing.RULES,
        **control.RULES,
        **libraries.RULES,
    }
)

__all__ = ["RULES"]
