"""A limit for constant folding: attributes may make an op costly although its operands and its result are small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

LARGEST_NUMBER = 2**20


def is_cheap_to_fold(attrs: Mapping[str, Any]) -> bool:
    """Whether constant folding of an op is cheap; padding by a billion is not, however small the result."""
    return all(map(_is_cheap, attrs.values()))


def _is_cheap(attr: Any) -> bool:
    if isinstance(attr, tuple):
        return all(map(_is_cheap, cast(tuple[Any, ...], attr)))
    return not isinstance(attr, int) or abs(attr) <= LARGEST_NUMBER
