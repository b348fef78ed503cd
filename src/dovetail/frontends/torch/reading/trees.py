"""Nested arguments and results as flat lists and back: torch's structures, with the walk over each prepared once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from dovetail.frontends.torch.reading.package import torch_module

Reader: TypeAlias = Callable[[Any, list[Any]], None]
"""Appends the leaves of a value to a list; `OtherStructureError` where it has another structure."""
Builder: TypeAlias = Callable[[Iterator[Any]], Any]
"""A value of the next leaves."""


class OtherStructureError(Exception):
    """A value whose structure is not the one that a reader is for."""


def reader(spec: Any) -> Reader:
    """What reads values of a structure."""
    if spec.is_leaf():
        return lambda given, into: into.append(given)
    kind, context = spec.type, spec.context
    inner = [reader(child) for child in spec.children()]
    if kind is tuple or kind is list:
        return _sequence_reader(kind, inner)
    if kind is dict:
        return _mapping_reader(list(context), inner)
    flatten = _nodes()[kind].flatten_fn

    def read(given: Any, into: list[Any]) -> None:
        if given.__class__ is not kind:
            raise OtherStructureError
        children, found = flatten(given)
        if found != context:
            raise OtherStructureError
        for child, one in zip(children, inner, strict=True):
            one(child, into)

    return read


def _sequence_reader(kind: type[Any], inner: Sequence[Reader]) -> Reader:
    count = len(inner)

    def read(given: Any, into: list[Any]) -> None:
        if given.__class__ is not kind or len(given) != count:
            raise OtherStructureError
        for child, one in zip(given, inner, strict=True):
            one(child, into)

    return read


def _mapping_reader(keys: Sequence[Any], inner: Sequence[Reader]) -> Reader:
    """Reads dicts and what acts like one, such as the dict of a tokeniser."""
    count = len(keys)

    def read(given: Any, into: list[Any]) -> None:
        if not isinstance(given, Mapping):
            raise OtherStructureError
        found = cast(Mapping[Any, Any], given)
        if len(found) != count:
            raise OtherStructureError
        try:
            for key, one in zip(keys, inner, strict=True):
                one(found[key], into)
        except KeyError:
            raise OtherStructureError from None

    return read


def builder(spec: Any) -> Builder:
    """What builds values of a structure."""
    if spec.is_leaf():
        return next
    kind, context = spec.type, spec.context
    inner = [builder(child) for child in spec.children()]
    if kind is tuple:
        return lambda leaves: tuple([one(leaves) for one in inner])
    if kind is list:
        return lambda leaves: [one(leaves) for one in inner]
    unflatten = _nodes()[kind].unflatten_fn
    return lambda leaves: unflatten([one(leaves) for one in inner], context)


def _nodes() -> Mapping[Any, Any]:
    """How torch takes containers apart, by type."""
    return torch_module("torch.utils._pytree").SUPPORTED_NODES


def plain(given: Any) -> Any:
    """Arguments with dicts for what acts like one and torch does not know: the dict of a tokeniser."""
    kind: type[Any] = given.__class__
    if kind in (list, tuple):
        make = cast(Any, kind)
        return make([plain(item) for item in given])
    if issubclass(kind, Mapping) and kind not in _nodes():
        return {key: plain(value) for key, value in given.items()}
    return given


__all__ = ["Builder", "OtherStructureError", "Reader", "builder", "plain", "reader"]
