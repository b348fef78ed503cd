"""Control dependencies on ops that bind symbolic sizes, so that dead-code elimination keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.frontends.shared.computed import with_dependencies
from dovetail.ir.type import TupleType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.passes.specialize import fresh_symbols, value_symbols


def with_binders(results: Sequence[Value], made: Iterable[Value]) -> list[Value]:
    """The results, with control dependencies on those of the values made that bind a size which they mention."""
    binders = {name: value for value in walk(made) for name in fresh_symbols(value)}
    found = list(results)
    missing = _unbound(found) & binders.keys() if binders else set[str]()
    while missing:
        for at, result in enumerate(found):
            needed = sorted(_unbound([result]) & missing)
            if needed:
                found[at] = with_dependencies(result, *(_first(binders[name]) for name in needed))
        missing = _unbound(found) & binders.keys()
    return found


def _unbound(results: Sequence[Value]) -> set[str]:
    """The symbols that results mention and that none of their operands binds."""
    order = walk(results)
    mentioned = {name for value in order for name in value_symbols(value)}
    return mentioned - {name for value in order for name in fresh_symbols(value)}


def _first(value: Value) -> Value:
    return value[0] if isinstance(value.type, TupleType) else value
