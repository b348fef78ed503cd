"""A group rule is declared once: what a member is, what all members share, and how they become one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from typing import Any, Literal, TypeAlias

from dovetail.declare.fused import Call, FusedOp, Variant
from dovetail.declare.guard import Guard
from dovetail.errors import TraceError
from dovetail.ir.value import Value

Joined: TypeAlias = Callable[[Sequence[Call]], tuple[Value, ...]]
"""Builds the joined form out of the members; gives back one value for each, in order."""


class Group:
    """Any number of values of one form that share an operand and are computed better together."""

    def __init__(self, member: Callable[..., Value], *, shared: str, shapes: str) -> None:
        self.name = member.__name__
        self.doc = inspect.getdoc(member) or ""
        self.member = member
        self.shared = shared
        self.shapes = shapes
        # One wide product may add up in another order than several narrow ones.
        self.numerics: Literal["exact", "reassociated", "approximate"] = "reassociated"
        # A member is found like a declared op: same signature, same choices, same guards.
        self._pattern = FusedOp(member, shapes=shapes, stage="fuse")
        self._joined: Joined | None = None
        self.kind_of: Callable[[Call], Hashable] = lambda member: None
        """Members are joined with those of their kind."""
        if all(p.name != shared or p.optional for p in self._pattern.signature.operands):
            raise TraceError(
                f"{self.name} shares {shared!r}, which is not an operand of every member",
                hint=f"share one of {', '.join(p.name for p in self._pattern.signature.operands if not p.optional)}",
            )

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Every form of a member, the largest first."""
        return self._pattern.variants

    @property
    def guards(self) -> Sequence[Guard]:
        return self._pattern.guards

    def requires(self, *, reason: str, hint: str = "") -> Callable[[Callable[..., bool]], Callable[..., bool]]:
        """Declare a fact that must hold of a member; one that does not fit stays out alone."""
        return self._pattern.requires(reason=reason, hint=hint)

    def kind(self, of: Callable[[Call], Hashable]) -> Callable[[Call], Hashable]:
        """Declare what members must have in common besides the shared operand and their options."""
        self.kind_of = of
        return of

    def with_kinds(self, merged: Callable[[Hashable], Hashable]) -> Group:
        """The same group, in which members of several kinds are of one."""
        found, kind_of = copy(self), self.kind_of
        found.kind_of = lambda member: merged(kind_of(member))
        return found

    def joined(self, build: Joined) -> Joined:
        """Declare how members become one."""
        self._joined = build
        return build

    def join(self, members: Sequence[Call]) -> tuple[Value, ...]:
        """The joined form: one value for each member."""
        if self._joined is None:
            raise TraceError(
                f"{self.name} does not say how its members are joined", hint=f"declare @{self.name}.joined"
            )
        results = self._joined(members)
        if len(results) != len(members):
            raise TraceError(
                f"{self.name} makes {len(results)} values of {len(members)} members",
                hint="give back one value for each member, in order",
            )
        return results

    def __call__(self, *args: Any, **kwargs: Any) -> Value:
        """One member, spelled out."""
        return self.member(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<group {self.name}>"


def group_rule(*, shared: str, shapes: str = "") -> Callable[[Callable[..., Value]], Group]:
    """Declare a group by one of its members; `shared` names the operand that all of them have in common."""
    return lambda member: Group(member, shared=shared, shapes=shapes)


__all__ = ["Group", "group_rule"]
