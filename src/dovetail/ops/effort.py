"""How much an op may ask for beside its operands and its result, judged by the numbers in its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

LARGEST_NUMBER = 2**20


def is_modest(attrs: Mapping[str, Any]) -> bool:
    """Whether computing an op while compiling is cheap; padding by a billion is not, however small the result."""
    return all(map(_is_modest, attrs.values()))


def _is_modest(attr: Any) -> bool:
    if isinstance(attr, tuple):
        return all(map(_is_modest, cast(tuple[Any, ...], attr)))
    return not isinstance(attr, int) or abs(attr) <= LARGEST_NUMBER
