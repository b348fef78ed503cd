"""egglog as the matcher of declared ops: it holds the e-graph, finds the matches and unites what they make equal."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dovetail.declare.fused import FusedOp
from dovetail.egraph.egglog.facts import Facts
from dovetail.egraph.egglog.program import LOAD_FACTS, Printed, Program, table_of
from dovetail.egraph.egglog.words import table
from dovetail.egraph.engine import EGraph
from dovetail.egraph.proof import Application
from dovetail.egraph.rules import Form, applied
from dovetail.errors import OptionError
from dovetail.ir.spell import quote
from dovetail.ir.value import Value
from dovetail.match import Bound, matches

_MAX_MATCHES = 64
"""How many matches of a pattern are compared with the one that egglog found."""


class Engine:
    """A running egglog. Commands go in one by one: each part of a parsed program carries a copy of its source."""

    def __init__(self) -> None:
        try:
            from egglog import bindings  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
        except ImportError:
            raise OptionError(
                "the engine egglog is not installed", hint="python -m pip install 'dovetail-ml[egglog]'"
            ) from None
        self._running: Any = bindings.EGraph()  # pyright: ignore[reportUnknownMemberType]

    def run(self, command: str) -> None:
        self._running.run_program(*self._running.parse_program(command))

    def load(self, rows: Mapping[str, Sequence[tuple[int, ...]]]) -> None:
        """Tables of facts, as files: much faster than as commands."""
        with tempfile.TemporaryDirectory(prefix="dovetail-egglog-") as folder:
            for number, (name, listed) in enumerate(rows.items()):
                if listed:
                    file = Path(folder, f"{number}.tsv")
                    file.write_text("".join(["\t".join(map(str, row)) + "\n" for row in listed]), encoding="ascii")
                    self.run(f"(input {table(name)} {quote(file.as_posix())})")

    def classes(self) -> dict[int, Any]:
        """Return what egglog calls the class of each number."""
        rows = self._running.freeze().functions["N"].rows
        return {self._running.value_to_i64(row.inputs[0]): row.output for row in rows}

    def matches(self, tables: Iterable[tuple[int, int]]) -> list[tuple[int, list[Any], list[int]]]:
        """Return the matches whose guards hold: number of the rule, classes, numbers."""
        functions, number = self._running.freeze().functions, self._running.value_to_i64
        matches_: list[tuple[int, list[Any], list[int]]] = []
        for columns in tables:
            values = 1 + columns[0]
            for row in functions[table_of("good", columns)].rows:
                inputs = row.inputs
                matches_.append((number(inputs[0]), inputs[1:values], [number(v) for v in inputs[values:]]))
        return matches_


class Session:
    """A program, and the running egglog with the facts of the latest e-graph."""

    def __init__(self, stages: Sequence[Sequence[FusedOp[...]]], *, strict: bool = False) -> None:
        self.program = Program(stages, strict=strict)
        self.engine = Engine()
        self.facts: Facts | None = None
        self._rules: dict[int, Printed] = {}
        self._done: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()

    def tell(self, egraph: EGraph, strata: Collection[int]) -> None:
        """Start anew with this e-graph, and with the rules of these strata that can apply to it."""
        self.engine = Engine()
        self.facts = Facts(self.program, egraph, strata)
        self._rules = {rule.number: rule for rule in self.facts.rules}
        for command in self.program.commands(self.facts.rules):
            if not command.startswith(";"):
                self.engine.run(command)
        self.engine.load(self.facts.rows)
        self.engine.run(LOAD_FACTS)
        self._done.clear()

    def look(self, stratum: int) -> Iterator[_Match]:
        """Yield the new matches of one stratum. Those that guards refuse are removed before any is applied."""
        assert self.facts is not None
        self.engine.run(self.program.steps(stratum)[0])
        numbers: dict[Any, int] = {}
        for number, name in sorted(self.engine.classes().items(), reverse=True):
            numbers[name] = number
        tables = dict.fromkeys(rule.columns for rule in self._rules.values())
        # A result of several that is new here is made by a match, and no pattern catches it.
        matches = {(r, tuple(numbers.get(v, -1) for v in vs), tuple(ns)) for r, vs, ns in self.engine.matches(tables)}
        for key in sorted(matches - self._done):
            self._done.add(key)
            yield _Match(self._rules[key[0]], *key[1:])

    def refuse(self, match: _Match) -> None:
        columns = [*(f"(N {c})" for c in match.classes), *map(str, match.attributes)]
        self.engine.run(f"(delete {match.rule.match('good', columns)})")

    def apply(self, stratum: int) -> None:
        self.engine.run(self.program.steps(stratum)[1])

    def names(self, match: _Match, egraph: EGraph) -> dict[str, Any]:
        """Return what a match caught, by name, with values that stand for their classes."""
        assert self.facts is not None
        rule, values, attributes = match.rule, self.facts.values, self.program.words.attributes
        caught = [values[c] for c in match.classes[rule.roots :]]
        leaders = [egraph.find(v) if v in egraph else v for v in caught]
        numbers = [attributes[a] for a in match.attributes]
        return {**dict(zip(rule.values, leaders, strict=True)), **dict(zip(rule.numbers, numbers, strict=True))}


class _Match:
    """A match as egglog has it: numbers of classes and of attributes."""

    __slots__ = ("attributes", "classes", "rule")

    def __init__(self, rule: Printed, classes: tuple[int, ...], attributes: tuple[int, ...]) -> None:
        self.rule = rule
        self.classes = classes
        self.attributes = attributes


class Matched:
    """One stratum of declared ops, found by egglog. The first of a group loads the e-graph's facts anew."""

    def __init__(self, session: Session, group: range, stratum: int) -> None:
        self.session = session
        self._group = group
        self._stratum = stratum

    def applications(self, egraph: EGraph, nodes: Iterable[Value]) -> Iterator[Application]:
        session = self.session
        if self._stratum == self._group.start:
            session.tell(egraph, self._group)
        assert session.facts is not None
        values = session.facts.values
        together: dict[tuple[int, int], list[_Match]] = {}
        for match in session.look(self._stratum):
            together.setdefault((match.rule.number, match.classes[0]), []).append(match)
        distinct: dict[Hashable, tuple[Application, ...]] = {}
        for (rule, root), listed in together.items():
            names = [session.names(match, egraph) for match in listed]
            left = dict(enumerate(listed))
            for index, applications in located(listed[0].rule.form, values[root], names, egraph):
                # Another order of the same operands would be another node of the same cost.
                distinct.setdefault((rule, frozenset(applications[0].covers)), applications)
                left.pop(index, None)
            for match in left.values():
                session.refuse(match)
        session.apply(self._stratum)
        for applications in distinct.values():
            yield from applications


def located(
    form: Form, root: Value, caught: Sequence[Mapping[str, Any]], egraph: EGraph
) -> Iterator[tuple[int, tuple[Application, ...]]]:
    """Yield the applications for matches of one pattern at one root; our matcher says which nodes each covers."""
    for node in egraph.equal(root):
        if node.op is form.variant.pattern.op:
            for bound in islice(matches(form.variant.pattern, node, equal=egraph.equal), _MAX_MATCHES):
                index = next((i for i, names in enumerate(caught) if _same(bound, names, egraph)), None)
                applications = () if index is None else applied(form, bound, node, egraph)
                if index is not None and applications:
                    yield index, applications


def _same(bound: Bound, names: Mapping[str, Any], egraph: EGraph) -> bool:
    for name, actual in bound.names.items():
        expected = names[name]
        if isinstance(actual, Value):
            if actual is not expected and (actual not in egraph or egraph.find(actual) is not expected):
                return False
        elif actual != expected:
            return False
    return True


def by_egglog(stages: Sequence[Sequence[FusedOp[...]]], strict: bool) -> list[Matched]:
    """Return every stratum as a set of rules that egglog matches."""
    session = Session(stages, strict=strict)
    return [Matched(session, group, number) for group in groups(stages) for number in group]


def groups(stages: Sequence[Sequence[FusedOp[...]]]) -> list[range]:
    """Strata that no other rules come between: those that recognise, and those that fuse."""
    cut = next((i for i, stratum in enumerate(stages) if stratum[0].stage != "recognise"), len(stages))
    return [range(cut), range(cut, len(stages))]
