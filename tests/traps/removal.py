"""How a defence is taken away: a few lines that bring one old mistake back while they are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

from pytest import MonkeyPatch

from dovetail.declare import FusedOp
from dovetail.declare.group import Group

Removal = Callable[[MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Defence:
    """A test of a trap, and what makes it fail: the mistake in words, and how it is brought back."""

    test: Callable[[], None]
    mistake: str
    remove: Removal

    @property
    def trap(self) -> int:
        return trap_of(self.test.__name__)

    def __str__(self) -> str:
        return f"{self.trap:02}-{self.mistake}"


def trap_of(name: str) -> int:
    """The number in `test_trap_NN_…`."""
    return int(name.split("_")[2])


def without_guard(op: FusedOp[...] | Group, name: str) -> Removal:
    """The guard always holds."""

    def remove(patch: MonkeyPatch) -> None:
        assert any(g.name == name for g in op.guards), f"{op.name} has no guard {name}"
        guards = [replace(g, holds=_always) if g.name == name else g for g in op.guards]
        patch.setattr(op, "guards", guards)

    return remove


def replaced(target: str, new: Any) -> Removal:
    """What a dotted name stands for is another thing."""
    return wrapped(target, lambda old: new)


def wrapped(target: str, around: Callable[[Any], Any]) -> Removal:
    """What a dotted name stands for is what `around` makes of it."""

    def remove(patch: MonkeyPatch) -> None:
        owner, name = target.rsplit(".", 1)
        patch.setattr(resolve_name(owner), name, around(resolve_name(target)))

    return remove


def spelled(op: FusedOp[...], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Removal:
    """The op is spelled out for other arguments than it was given; what is matched stays as it was."""

    def remove(patch: MonkeyPatch) -> None:
        body: Callable[..., Any] = op.body

        def other(*args: Any, **kwargs: Any) -> Any:
            given = op.signature.bind(op.name, args, kwargs)
            return body(**{**given, **change(given)})

        patch.setattr(op, "body", other)

    return remove


def both(*removals: Removal) -> Removal:
    """Several at once."""

    def remove(patch: MonkeyPatch) -> None:
        for one in removals:
            one(patch)

    return remove


def _always(**caught: Any) -> bool:
    return True


def constantly(result: Any) -> Callable[..., Any]:
    """A function that gives one result whatever it is asked."""
    return lambda *args, **kwargs: result
