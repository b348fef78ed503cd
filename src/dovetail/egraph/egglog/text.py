"""The facts of a graph and the rules, as one egglog program that runs on its own and checks our engine's matches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dovetail.declare.fused import FusedOp
from dovetail.egraph.decide import Vocabulary
from dovetail.egraph.egglog.facts import Facts
from dovetail.egraph.egglog.program import LOAD_FACTS, Program
from dovetail.egraph.egglog.session import groups
from dovetail.egraph.egglog.words import text
from dovetail.egraph.engine import EGraph, egraph_of
from dovetail.egraph.proof import Application
from dovetail.egraph.rules import Declared, RuleSet
from dovetail.egraph.saturate import saturate
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value


def program_text(graph: Graph, vocabulary: Vocabulary) -> str:
    """Return the rules that can apply to a graph, the graph as facts, and a check for each match of our engine."""
    pages: list[_Page] = []

    def finder(stages: Sequence[Sequence[FusedOp[...]]], strict: bool) -> list[RuleSet]:
        program, rule_sets = Program(stages, strict=strict), list[RuleSet]()
        for group in groups(stages):
            pages.append(_Page(program, group))
            rule_sets += [_Written(pages[-1], Declared(stages[n], strict=strict), n) for n in group]
        return rule_sets

    egraph = egraph_of(graph.values, {v: graph.uses.count(v) for v in graph.values})
    saturate(egraph, replace(vocabulary, groups=(), finder=finder).phases())
    return "\n".join(line for page in pages for line in page.lines()) + "\n"


class _Page:
    """A part of the program that stands alone: strata that no other rules come between."""

    def __init__(self, program: Program, group: range) -> None:
        self._program = program
        self._group = group
        self._facts: Facts | None = None
        self._commands: list[str] = []
        self._checks: list[str] = []

    def lines(self) -> list[str]:
        return ["(push)", *self._commands, *self._checks, "(pop)"] if self._commands else []

    def tell(self, egraph: EGraph, stratum: int) -> None:
        """Write down the e-graph, before the first stratum, and the commands that look for a stratum and apply it."""
        if self._facts is None:
            facts = self._facts = Facts(self._program, egraph, self._group)
            title = f"; {len(facts.values)} classes, {len(facts.rules)} rules that can apply to them"
            self._commands += [title, *self._program.commands(facts.rules), *facts.text(), LOAD_FACTS]
        self._commands += self._program.steps(stratum)

    def check(self, application: Application, egraph: EGraph) -> None:
        """Write down a check that egglog finds the same."""
        claim = f"(check (= {self._term(application.root, egraph)} {self._node(application.result, egraph)}))"
        self._checks += [f"; {text(application.name)}", claim]

    def _term(self, value: Value, egraph: EGraph) -> str:
        assert self._facts is not None
        known = self._facts.numbers.get(egraph.find(value) if value in egraph else value)
        return self._node(value, egraph) if known is None else f"(N {known})"

    def _node(self, value: Value, egraph: EGraph) -> str:
        words = self._program.words
        symbol = words.symbol(value)
        attributes = [str(words.attribute(value.attrs[key])) for key in symbol.keys]
        # A result of several is at most one op above what has a number.
        return f"({' '.join([symbol.name, *(self._term(v, egraph) for v in value.operands), *attributes])})"


class _Written:
    """One stratum of declared ops, found by our matcher and written down for egglog."""

    def __init__(self, page: _Page, rules: Declared, stratum: int) -> None:
        self._page = page
        self._rules = rules
        self._stratum = stratum

    def applications(self, egraph: EGraph, nodes: Iterable[Value]) -> Iterator[Application]:
        self._page.tell(egraph, self._stratum)
        applications_ = list(self._rules.applications(egraph, nodes))
        for application in applications_:
            self._page.check(application, egraph)
        yield from applications_
