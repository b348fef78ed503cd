"""Old names that work for one more version and warn: names of modules, keyword options, fields of records.

Each use registers its entries in `NAMES` or `OPTIONS`; `tests/test_renamed.py` tries every one of them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, ParamSpec, TypeVar

from dovetail.errors import OptionError

REMOVED_IN = "0.2"
"""The version that removes every old name of this version."""

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


class OldOptions(NamedTuple):
    """The old keyword options of a function or a class, by their new names."""

    function: Callable[..., Any]
    names: Mapping[str, str]
    fields: bool = False
    """Whether they are attributes of a record, too."""


NAMES: dict[str, Mapping[str, str]] = {}
"""By module: its old names, each with the place of the new one."""
OPTIONS: list[OldOptions] = []


def warn(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that an old name was used; `stacklevel` is that of its user, as seen from here."""
    text = f"{old} is now {new}; the old name goes with dovetail {REMOVED_IN}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


def old_names(module: str, table: Mapping[str, str], other: Callable[[str], Any] | None = None) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which finds its old names; the table has the new place of each.

    `other` finds the names that the module imports on first use, and raises a KeyError for all others.
    """
    NAMES[module] = table

    def find(name: str) -> Any:
        if name not in table:
            try:
                return other(name) if other is not None else table[name]
            except KeyError:
                raise AttributeError(f"module {module!r} has no attribute {name!r}") from None
        place, _, attribute = table[name].rpartition(".")
        found = getattr(import_module(place), attribute)
        warn(f"{module}.{name}", table[name])
        return found

    return find


def old_options(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take keyword options by their old names, too: `@old_options(old="new")`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> R:
            if not names.keys().isdisjoint(options):
                options = with_new_names(function.__qualname__.removesuffix(".__init__"), names, options)
            return function(*args, **options)

        OPTIONS.append(OldOptions(call, names))
        return call

    return decorate


def old_fields(**names: str) -> Callable[[C], C]:
    """Let a record be made with and read by old names of its fields, too."""

    def decorate(cls: C) -> C:
        made: Any = cls
        inner = made.__init__

        def __init__(self: Any, *args: Any, **options: Any) -> None:
            nonlocal inner
            if not names.keys().isdisjoint(options):
                options = with_new_names(cls.__name__, names, options)
            inner(self, *args, **options)
            if made.__init__ is not __init__:  # the first call of a record writes its method (dovetail.dataclass)
                inner, made.__init__ = made.__init__, __init__

        made.__init__ = __init__
        for old, new in names.items():
            setattr(made, old, _old_field(cls.__name__, old, new))
        OPTIONS.append(OldOptions(cls, names, fields=True))
        return cls

    return decorate


def _old_field(owner: str, old: str, new: str) -> property:
    def get(self: Any) -> Any:
        warn(f"{owner}.{old}", new)
        return getattr(self, new)

    return property(get, doc=f"The old name of `{new}`.")


def with_new_names(owner: str, names: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by their new names, and warn of each old one."""
    renamed = dict(options)
    for old in [name for name in options if name in names]:
        new = names[old]
        if new in options:
            raise OptionError(f"{owner} takes {new}, of which {old} is an old name", hint=f"leave {old} out")
        warn(f"the option {old} of {owner}", new, stacklevel=4)
        renamed[new] = renamed.pop(old)
    return renamed


__all__ = [
    "NAMES",
    "OPTIONS",
    "REMOVED_IN",
    "OldOptions",
    "old_fields",
    "old_names",
    "old_options",
    "warn",
    "with_new_names",
]
