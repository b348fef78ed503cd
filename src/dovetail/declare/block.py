"""Blocks: declared ops of the highest level, which models are written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, get_args

from dovetail.declare.fused import FusedOp, Result
from dovetail.errors import TypeRuleError
from dovetail.ir.value import Value, make

P = ParamSpec("P")
Policy = Literal["direct", "fusable"]
"""`direct` is born fused; `fusable` is spelled out in primitives, and fusion finds what it can."""


class Block(FusedOp[P]):
    """A declared op that is lowered before any optimisation, by its own policy."""

    def __init__(self, body: Callable[P, Result], *, shapes: str) -> None:
        super().__init__(body, shapes=shapes, stage="block")

    def build(self, policy: Policy, *args: Any, **kwargs: Any) -> Value:
        """The block under a policy; the other arguments are those of its body."""
        plain = super().__call__(*args, **kwargs)
        return make(self, plain.operands, self.normal(plain.operands, {**plain.attrs, "policy": policy}))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Value:
        """The block, to be lowered as `fusable`."""
        return self.build("fusable", *args, **kwargs)

    def arguments(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
        return super().arguments(operands, _without_policy(attrs))

    def normal(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
        policy = attrs.get("policy", "fusable")
        if policy not in get_args(Policy):
            raise TypeRuleError(f"the policy {policy!r} of {self.name}", hint="use direct or fusable")
        return {**super().normal(operands, _without_policy(attrs)), "policy": policy}


def _without_policy(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k != "policy"}


def block(*, shapes: str) -> Callable[[Callable[P, Result]], Block[P]]:
    """Declare a block by its body."""
    return lambda body: Block(body, shapes=shapes)
