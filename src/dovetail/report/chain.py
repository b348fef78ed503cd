"""Chains: which rules led from the nodes as written to a kernel, each with what it found and what it made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from dovetail.dataclass import dataclass
from dovetail.derive.edit import CONGRUENCE, Edit, Numerics
from dovetail.ir import leaf
from dovetail.ir.graph import Subgraph
from dovetail.ir.literal import Literal
from dovetail.ir.text import local_names
from dovetail.ir.value import Value
from dovetail.passes.edit_scope import ScopeFinder
from dovetail.passes.history import History, Made
from dovetail.report.paint import Line, Piece, line
from dovetail.report.record import Node

_MOST_TEXT = 160
_MOST_ATTRIBUTE = 24


@dataclass(frozen=True, slots=True)
class Link:
    """One application of a rule in words."""

    sweep: str
    """The pass that applied it."""
    rule: str
    variant: str
    numerics: Numerics
    node: Node | None
    """The node as written that it was about; None where there is none."""
    before: str
    after: str
    proof: tuple[Link, ...] = ()
    """The applications that it is made of, where it takes several."""

    @property
    def name(self) -> str:
        return f"{self.rule} [{self.variant}]" if self.variant else self.rule


@dataclass(frozen=True)
class Teller:
    """Tells edits in the words of the graph as written."""

    history: History

    def chain(self, value: Value) -> tuple[Link, ...]:
        """What led to a value of the final graph, step by step."""
        links = self.history.chain(value).links
        # Equal operands alone are no rule: those of the operands are told where they were applied.
        return tuple(self.link(made) for made in links if made.edit.proof or made.edit.rule != CONGRUENCE)

    def link(self, made: Made) -> Link:
        edit = made.edit
        nodes = self.history.nodes(edit)
        before, after = self._sides(edit)
        proof = tuple(self.link(Made(made.sweep, each)) for each in edit.proof)
        node = self.node(nodes[0]) if nodes else None
        return Link(made.sweep, edit.rule, edit.variant, edit.numerics, node, before, after, proof)

    def node(self, value: Value) -> Node:
        graph = self.history.written if value in self._names else self.history.start
        return Node(self._names.get(value, ""), value.op.name, graph.where(value))

    @cached_property
    def _names(self) -> dict[Value, str]:
        return local_names(self.history.written, self.history.written.values)

    @cached_property
    def _scopes(self) -> ScopeFinder:
        return ScopeFinder()

    def _sides(self, edit: Edit) -> tuple[str, str]:
        """Both sides as expressions of what they stand on."""
        inside = self._scopes.scope(edit).inside
        told: dict[Value, str] = {}
        for value in sorted(inside, key=self._scopes.depth):
            operands = [told.get(v) or self._given(v) for v in value.operands]
            told[value] = _short(f"{value.op.name}({', '.join([*operands, *_attributes(value)])})")
        sides = [[told.get(v) or self._given(v) for v in side] for side in (edit.before, edit.after)]
        before, after = (", ".join(side[:2]) + (", …" if len(side) > 2 else "") for side in sides)
        return before, after

    def _given(self, value: Value) -> str:
        """What an operand is called: by its own name, or by that of the node as written that it equals."""
        if value.op is leaf.CONST:
            literal: Literal = value.attrs["value"]
            return str(literal.array) if literal.array.shape == () else str(value.type)
        known = self.history.written_twins.get(value)
        return self._names[known] if known is not None else f"{value.op.name}(…)"


def _attributes(value: Value) -> list[str]:
    """The attributes that can be told in a few letters."""
    found: list[str] = []
    for name, attr in value.attrs.items():
        text = "" if isinstance(attr, Subgraph) else f"{name}={attr}"
        if text and len(text) <= _MOST_ATTRIBUTE and name != "operands" and attr is not None:
            found.append(text)
    return found


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def chain_lines(links: tuple[Link, ...], indent: str = "  ") -> list[Line]:
    """A chain for people: each rule, where it was applied, and both of its sides."""
    lines: list[Line] = []
    for number, link in enumerate(links, 1):
        head = f"{indent}{number:>2}. "
        where = f"  at {link.node}" if link.node is not None else ""
        lines.append(line(head, Piece(link.name, "good"), f"  ({link.sweep}, {link.numerics}){where}", hang=len(head)))
        lines.append(line(" " * len(head), f"{link.before} → {link.after}", hang=len(head) + 2))
        for inner in link.proof:
            lines.append(line(" " * len(head), Piece(inner.name, "note"), f"  ({inner.numerics})", hang=len(head) + 2))
            lines.append(line(" " * (len(head) + 2), f"{inner.before} → {inner.after}", hang=len(head) + 4))
    return lines


def link_dict(link: Link) -> Mapping[str, object]:
    """A link as plain data."""
    return {
        "pass": link.sweep,
        "rule": link.rule,
        "variant": link.variant,
        "numerics": link.numerics,
        "node": None if link.node is None else link.node.name,
        "where": None if link.node is None else link.node.where,
        "before": link.before,
        "after": link.after,
        "proof": [link_dict(each) for each in link.proof],
    }


__all__ = ["Link", "Teller", "chain_lines", "link_dict"]
