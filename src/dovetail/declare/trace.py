"""Parts of bodies that are computed once for all traces of an op: most of its variants differ elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

R = TypeVar("R")

_made: ContextVar[dict[Any, Any] | None] = ContextVar("dovetail_traced_parts", default=None)
"""What parts have given in the traces under way, by function and arguments."""


@contextmanager
def shared_parts() -> Generator[None]:
    """The traces of one op: parts with equal arguments are computed once."""
    token = _made.set({})
    try:
        yield
    finally:
        _made.reset(token)


def part_of_traces(function: Callable[..., R]) -> Callable[..., R]:
    """Declare a part of a body: a function of values, numbers and options alone, all positional.

    Traces share what it gives. Elsewhere every call computes it, and nothing holds the values of a graph.
    """

    @wraps(function)
    def part(*given: Any) -> R:
        made = _made.get()
        if made is None:
            return function(*given)
        key = (function, given)
        found = made.get(key, made)
        if found is made:
            found = made[key] = function(*given)
        return found

    return part


__all__ = ["part_of_traces", "shared_parts"]
