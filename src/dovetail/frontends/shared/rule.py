"""Rules: how one operator of a framework becomes values, and the registry that has those of a front end.

A rule is a function with a decorator of its front end, in the module of its family; nothing else lists it:

    @rule("Gather")
    def gather(n: Node, x: Value, indices: Value, *, axis: int = 0) -> Value:
        return ops.gather(x, indices, axis=axis)

The docstring is its line in the table of operators.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, TypeAlias, TypeVar, cast

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value

Made: TypeAlias = Value | Sequence[Value | None]
"""The results of an operator, in order; None where a rule does not make one, which nothing else may read."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operator becomes values."""

    op: str
    function: Callable[..., Made]

    @property
    def doc(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    def __call__(self, node: Any, *operands: Any, **attributes: Any) -> Made:
        """Return what the function makes of an operator."""
        return self.function(node, *operands, **attributes)


R = TypeVar("R", bound=Rule)


class Registry(Generic[R]):
    """The rules of a front end, one module for each family; a module is imported when its rules are asked for."""

    def __init__(self, package: str, kind: type[R], index: Mapping[str, str] | None = None) -> None:
        """`index` names the families of each operator, so that the others need not be imported."""
        self._package, self._kind = package, kind
        self._index: Mapping[str, str] = index or {}
        self._read: dict[str, tuple[R, ...]] = {}

    def families(self) -> Iterator[str]:
        """The modules in which rules may stand, in alphabetical order."""
        path, prefix = import_module(self._package).__path__, f"{self._package}."
        for module in sorted(pkgutil.walk_packages(path, prefix), key=lambda module: module.name):
            if not module.ispkg:
                yield module.name.removeprefix(prefix)

    def declared(self, family: str) -> tuple[R, ...]:
        """The rules that a module declares, in the order of its lines."""
        if family not in self._read:
            listed = vars(import_module(f"{self._package}.{family}")).values()
            tuples = [cast("tuple[Any, ...]", value) for value in listed if isinstance(value, tuple)]
            self._read[family] = tuple(rule for rules in tuples for rule in rules if isinstance(rule, self._kind))
        return self._read[family]

    def all(self) -> tuple[R, ...]:
        """Every rule of every family."""
        return tuple(rule for family in self.families() for rule in self.declared(family))

    def of(self, op: str) -> tuple[R, ...]:
        """The rules of one operator, from the families that the index names."""
        return tuple(
            rule for family in self._index.get(op, "").split() for rule in self.declared(family) if rule.op == op
        )

    @cached_property
    def by_name(self) -> Mapping[str, R]:
        """Every rule by its operator, where each has one."""
        return {rule.op: rule for rule in self.all()}

    def index_text(self) -> str:
        """The text of the module that holds the index."""
        found: dict[str, dict[str, None]] = {}
        for family in self.families():
            for rule in self.declared(family):
                found.setdefault(rule.op, {})[family] = None
        lines = [f'    "{name}": "{" ".join(found[name])}",' for name in sorted(found)]
        title = '"""The families that have rules for each operator, generated from them by `make golden`."""'
        return "\n".join([title, "", "FAMILIES = {", *lines, "}", ""])


__all__ = ["Made", "Registry", "Rule"]
