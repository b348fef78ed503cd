"""Dataclasses that are cheap to define: the standard library's, with methods that are written on their first call.

The standard library compiles six functions for each frozen class. Importing dovetail and compiling a first program
define 300 classes, most of which are never compared, hashed or printed, and many of which are never made. The standard
decorator takes 0.29 s for them, a tenth of which is left here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from reprlib import recursive_repr
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, cast

_BY_HAND = frozenset(["__init__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__"])
"""Methods whose rules we leave to the standard library where a class has one of its own."""


_SPECIAL = ("ClassVar", "InitVar", "KW_ONLY")
"""Types that make no field, or another kind of field."""


class _Absent:
    """An argument that was not passed; its field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Absent()

Fields = Sequence[dataclasses.Field[Any]]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, weakref_slot=False):
        """`dataclasses.dataclass`; a class with a dataclass as its base, or without a docstring, is left to it."""

        def define(cls):
            inherits = any("__dataclass_fields__" in base.__dict__ for base in cls.__mro__[1:])
            if inherits or not cls.__doc__ or not _BY_HAND.isdisjoint(cls.__dict__):
                whole = dataclasses.dataclass(frozen=frozen, slots=slots, eq=eq, weakref_slot=weakref_slot)
                return whole(cls)
            bare = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, weakref_slot=weakref_slot)
            return _complete(_with_fields(cls, bare), frozen, slots, eq)

        return define if cls is None else define(cls)


def _with_fields(cls: Any, decorate: Callable[[Any], Any]) -> Any:
    """The class with its fields. The standard library looks for ClassVar and others in every type that is a text."""
    written = inspect.get_annotations(cls)
    kinds = [kind for kind in written.values() if isinstance(kind, str)]
    text = " ".join(kinds)
    if len(kinds) < len(written) or any([word in text for word in _SPECIAL]):
        return decorate(cls)
    cls.__annotations__ = dict.fromkeys(written, object)
    found = decorate(cls)
    found.__annotations__ = written
    for field in dataclasses.fields(found):
        field.type = written[field.name]
    return found


def _complete(cls: Any, frozen: bool, slots: bool, eq: bool) -> type:
    """Add the methods to a class that has its fields."""
    fields = dataclasses.fields(cls)
    if any("InitVar" in str(field.type) for field in cls.__dataclass_fields__.values()):
        raise TypeError(f"{cls.__qualname__} has an InitVar: decorate it with dataclasses.dataclass")
    _write_later(cls, "__init__", lambda: _init(cls, fields, frozen, slots))
    cls.__signature__ = _Signature(cls, lambda: _init(cls, fields, frozen, slots))
    if "__repr__" not in cls.__dict__:
        _write_later(cls, "__repr__", lambda: recursive_repr()(_repr(cls, fields)))
    if eq:
        _write_later(cls, "__eq__", lambda: _eq(cls, fields))
        if frozen:
            _write_later(cls, "__hash__", lambda: _hash(cls, fields))
        else:
            cls.__hash__ = None
    if frozen:
        _freeze(cls, frozenset([field.name for field in fields]), slots)
    params = cls.__dataclass_params__  # a class that inherits from this one reads them
    params.init, params.repr, params.eq, params.frozen = True, True, eq, frozen
    return cls


def _write_later(cls: Any, name: str, write: Callable[[], Callable[..., Any]]) -> None:
    """Add a method that is written when it is first called."""

    def first(self: Any, /, *args: Any, **named: Any) -> Any:
        written = write()
        setattr(cls, name, written)
        return written(self, *args, **named)

    first.__name__, first.__qualname__ = name, f"{cls.__qualname__}.{name}"
    setattr(cls, name, first)


class _Signature:
    """The signature of a class, for `inspect`: that of its __init__, which may not be written yet."""

    def __init__(self, cls: type, write: Callable[[], Callable[..., None]]) -> None:
        self.cls = cls
        self.write = write

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        own = owner.__init__
        found = inspect.signature(self.write() if own is cast(Any, self.cls).__init__ else own)
        return found.replace(parameters=list(found.parameters.values())[1:])


def _init(cls: type, fields: Fields, frozen: bool, slots: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"_SET": object.__setattr__, "_ABSENT": _ABSENT}
    parameters, named, lines = ["self"], ["*"], list[str]()
    for field in fields:
        name, value = field.name, field.name
        has_default, has_factory = field.default is not dataclasses.MISSING, False
        if field.default_factory is not dataclasses.MISSING:
            has_factory = True
            known[f"_FACTORY_{name}"] = field.default_factory
        if has_default:
            known[f"_DEFAULT_{name}"] = field.default
        if field.init:
            default = f"=_DEFAULT_{name}" if has_default else "=_ABSENT" if has_factory else ""
            (named if field.kw_only else parameters).append(f"{name}{default}")
            value = f"_FACTORY_{name}() if {name} is _ABSENT else {name}" if has_factory else name
        elif has_factory:
            value = f"_FACTORY_{name}()"
        elif has_default and slots:
            value = f"_DEFAULT_{name}"
        else:
            continue
        slot = cls.__dict__.get(name)
        if not frozen:
            lines.append(f"self.{name} = {value}")
        elif isinstance(slot, MemberDescriptorType):  # it looks up no name: a quarter less time than `_SET`
            known[f"_SET_{name}"] = slot.__set__
            lines.append(f"_SET_{name}(self, {value})")
        else:
            lines.append(f"_SET(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    if len(named) > 1:
        parameters += named
    made = _function(cls, "__init__", parameters, lines or ["pass"], known)
    made.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return made


def _repr(cls: type, fields: Fields) -> Callable[[Any], str]:
    shown = ", ".join([f"{f.name}={{self.{f.name}!r}}" for f in fields if f.repr])
    return _function(cls, "__repr__", ["self"], [f'return f"{{self.__class__.__qualname__}}({shown})"'])


def _eq(cls: type, fields: Fields) -> Callable[[Any, Any], bool]:
    compared = [f.name for f in fields if f.compare]
    lines = [
        "if other.__class__ is self.__class__:",
        f" return {_values('self', compared)} == {_values('other', compared)}",
        "return NotImplemented",
    ]
    return _function(cls, "__eq__", ["self", "other"], lines)


def _hash(cls: type, fields: Fields) -> Callable[[Any], int]:
    hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    return _function(cls, "__hash__", ["self"], [f"return hash({_values('self', hashed)})"])


def _values(of: str, names: Sequence[str]) -> str:
    return f"({''.join([f'{of}.{name}, ' for name in names])})"


def _function(
    cls: type, name: str, parameters: Sequence[str], lines: Sequence[str], known: dict[str, Any] | None = None
) -> Callable[..., Any]:
    text = f"def {name}({', '.join(parameters)}):\n" + "\n".join([f" {line}" for line in lines])
    scope: dict[str, Any] = {"__name__": cls.__module__, **(known or {})}
    exec(text, scope)
    made = scope.pop(name)
    made.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


def _freeze(cls: type, names: frozenset[str], slots: bool) -> None:
    """Refuse assignments to fields, and restore them from a pickle all the same."""

    def refuse_set(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def refuse_delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    methods: dict[str, Callable[..., Any]] = {"__setattr__": refuse_set, "__delattr__": refuse_delete}
    if slots:
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    for name, method in methods.items():
        setattr(cls, name, method)


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: Sequence[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


__all__ = ["dataclass"]
