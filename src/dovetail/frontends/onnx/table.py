"""The operators that are read, as a table: which versions, what must be known when a model is imported, attributes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import onnx.defs

from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.importing.functions import has_body
from dovetail.frontends.onnx.importing.rule import Rule
from dovetail.frontends.onnx.importing.supported import NEWEST
from dovetail.frontends.onnx.rules import REGISTRY

How = Literal["rule", "body", "none"]
"""A rule of ours, the body by which ONNX defines the operator, or nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operator."""

    domain: str
    """Empty for ONNX's own."""
    name: str
    how: How
    versions: str
    """The versions of its domain that are read; empty where none is."""
    known: tuple[str, ...]
    """Inputs whose contents must be known when the model is imported."""
    attributes: tuple[str, ...]
    refused: tuple[str, ...]
    """Attributes of its newest version that no rule takes: a node that has one is refused."""
    doc: str


def rows(rules: Iterable[Rule] | None = None) -> tuple[Row, ...]:
    """Every operator of ONNX's domains, and those of others that have a rule, by domain and name."""
    by_name: dict[tuple[str, str], list[Rule]] = {}
    for rule in REGISTRY.all() if rules is None else rules:
        by_name.setdefault((rule.domain, rule.op_type), []).append(rule)
    newest: dict[tuple[str, str], Any] = {}
    oldest: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (str(schema.domain), str(schema.name))
        oldest[key] = min(schema.since_version, oldest.get(key, schema.since_version))
        if key not in newest or schema.since_version > newest[key].since_version:
            newest[key] = schema
    found: list[Row] = []
    for key in sorted({*by_name, *newest}):
        declared, schema = by_name.get(key, []), newest.get(key)
        if declared:
            found.append(_by_rules(key, declared, schema, oldest.get(key, 1)))
        else:
            found.append(_without_rule(key, schema))
    return tuple(found)


def _by_rules(key: tuple[str, str], rules: list[Rule], schema: Any, first: int) -> Row:
    ordered = sorted(rules, key=lambda r: r.since)
    latest = ordered[-1]
    known = [p.name for r in ordered for p in r.parameters if p.kind != "value"]
    taken = {name for r in ordered for name in r.attributes} | {p.name.rstrip("_") for p in latest.parameters}
    return Row(
        *key,
        "rule",
        ", ".join(_range(max(r.since, first), r.until) for r in ordered),
        tuple(dict.fromkeys(name.rstrip("_") for name in known)),
        tuple(sorted({name for r in ordered for name in r.attributes})),
        tuple(sorted(set(map(str, schema.attributes)) - taken)) if schema is not None else (),
        latest.doc,
    )


def _without_rule(key: tuple[str, str], schema: Any) -> Row:
    domain, name = key
    version = NEWEST if not domain else schema.since_version
    if schema.deprecated or not has_body(name, version, domain):
        return Row(domain, name, "none", "", (), (), (), "deprecated" if schema.deprecated else "")
    return Row(domain, name, "body", f"{schema.since_version}+", (), tuple(sorted(map(str, schema.attributes))), (), "")


def _range(since: int, until: int | None) -> str:
    if until is None:
        return f"{since}+"
    return f"{since}" if since == until else f"{since} to {until}"


def page(listed: Iterable[Row]) -> str:
    """The table as a page of Markdown."""
    listed = tuple(listed)
    lines = [
        "# Operators",
        "",
        "What dovetail reads of ONNX, generated from the rules by `make golden`. Versions are those of the operator's "
        f"domain, up to {NEWEST} of ONNX's own. An input is *known* where its contents must be known when the model is "
        "imported: a constant, something computed from constants and sizes, or an input that is fixed with "
        "`dovetail.compile(path, fixed={…})`. A node with an attribute that is refused, or an operator that is not "
        "listed, ends in a typed error. How often each passes ONNX's own suite is in [conformance](conformance.md).",
    ]
    for domain in sorted({row.domain for row in listed if row.how == "rule"}):
        lines += ["", f"## {domain or 'ai.onnx'}", ""]
        lines += ["| operator | versions | known inputs | attributes | refused | computes |", "|---" * 6 + "|"]
        for row in listed:
            if row.domain == domain and row.how == "rule":
                cells = [row.name, row.versions, *map(", ".join, (row.known, row.attributes, row.refused)), row.doc]
                lines.append(f"| {' | '.join(_cell(c) for c in cells)} |")
    bodies = [row for row in listed if row.how == "body"]
    if bodies:
        lines += ["", "## By the body that ONNX gives", "", "These are read as what their definition writes out.", ""]
        lines += _by_domain(bodies)
    missing = [row for row in listed if row.how == "none"]
    if missing:
        lines += ["", "## Not supported", "", *_by_domain(missing)]
    return "\n".join([*lines, ""])


def _by_domain(listed: Iterable[Row]) -> list[str]:
    found: dict[str, list[str]] = {}
    for row in listed:
        found.setdefault(row.domain or "ai.onnx", []).append(f"{row.name} ({row.doc})" if row.doc else row.name)
    return [f"- {domain}: {', '.join(names)}" for domain, names in found.items()]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
