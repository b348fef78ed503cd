"""Rules by family. Each rule is one entry in its family's file, which is imported when a model has its operator."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

from dovetail.frontends.onnx.importing.rule import Rule
from dovetail.frontends.onnx.rules.families import FAMILIES


def rules_of(domain: str, op_type: str) -> tuple[Rule, ...]:
    """The rules of one operator, for all versions of its domain."""
    families = FAMILIES.get(operator(domain, op_type), "").split()
    declared = [rule for family in families for rule in _declared(family)]
    return tuple(rule for rule in declared if (rule.domain, rule.op_type) == (domain, op_type))


def all_rules() -> tuple[Rule, ...]:
    """Every rule of every family."""
    return tuple(rule for family in _families() for rule in _declared(family))


def families_module() -> str:
    """The content of `families.py`."""
    found: dict[str, dict[str, None]] = {}
    for family in _families():
        for rule in _declared(family):
            found.setdefault(operator(rule.domain, rule.op_type), {})[family] = None
    lines = [f'    "{name}": "{" ".join(found[name])}",' for name in sorted(found)]
    title = '"""The families that have rules for each operator, generated from them by `make golden`."""'
    return "\n".join([title, "", "FAMILIES = {", *lines, "}", ""])


def operator(domain: str, op_type: str) -> str:
    """An operator by one name: Gelu, com.microsoft.Gelu."""
    return f"{domain}.{op_type}" if domain else op_type


def _families() -> Iterator[str]:
    for module in sorted(pkgutil.walk_packages(__path__, f"{__name__}."), key=lambda module: module.name):
        if not module.ispkg:
            yield module.name.removeprefix(f"{__name__}.")


def _declared(family: str) -> tuple[Rule, ...]:
    # A module of functions that families share has none.
    return getattr(import_module(f"{__name__}.{family}"), "RULES", ())


__all__ = ["all_rules", "families_module", "operator", "rules_of"]
