"""Custom operators of a user: each is read as the body that it is given.

A declared op is spelled out by its body, so that it fuses and has its gradient as everything else. A plain function of
values does without a fusion of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dovetail.declare.fused import FusedOp
from dovetail.errors import OptionError
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Rule
from dovetail.ir.value import Value

CustomOps: TypeAlias = Mapping[str, FusedOp[...] | Callable[..., Any]]
"""Bodies by the names of operators, as torch.library has them: "mylib::scaled"."""


def custom_rules(given: CustomOps) -> dict[str, Rule]:
    """The rules of custom operators."""
    found: dict[str, Rule] = {}
    for name, body in given.items():
        space, _, op = name.partition("::")
        if not space or not op or not callable(body):
            raise OptionError(
                f"custom_ops has {body!r} for {name!r}", hint='map "namespace::operator" to a declared op or a function'
            )
        whole = f"{space}.{op}" if "." in op else f"{space}.{op}.default"
        found[whole] = Rule(whole, _read_as(body))
    return found


def _read_as(body: FusedOp[...] | Callable[..., Any]) -> Callable[..., Made]:
    spelled: Callable[..., Any] = body.body if isinstance(body, FusedOp) else body

    def function(n: Node, *arguments: Any, **keywords: Any) -> Made:
        names = n.call.names or tuple(f"argument {i}" for i in range(len(arguments)))
        given = list(zip(names, arguments, strict=False))
        tensors = [a for _, a in given if _is_tensor(a)]
        numbers = {name: a for name, a in given if not _is_tensor(a)}
        try:
            made = spelled(*tensors, **numbers, **keywords)
        except TypeError as error:
            raise OptionError(
                f"the body of {n.op_type} does not take what the operator is called with: {error}",
                hint="it gets the tensors in order, and everything else by the names of the schema",
                where=n.where,
            ) from error
        return made if isinstance(made, Value) else tuple(made)

    return function


def _is_tensor(given: Any) -> bool:
    return isinstance(given, Value) or given is None


__all__ = ["CustomOps", "custom_rules"]
