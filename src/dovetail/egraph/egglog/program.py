"""Declared ops as a program for egglog: for every pattern the rules that find it, ask its guards, and apply it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.declare.guard import Guard
from dovetail.derive.condition import Condition, OpaqueGuardError, condition_of
from dovetail.egraph.egglog.guard import Guards, Question, UnprintableError
from dovetail.egraph.egglog.known import Known
from dovetail.egraph.egglog.pattern import Query, products
from dovetail.egraph.egglog.words import Words, prelude, text
from dovetail.egraph.rules import Form
from dovetail.ir import leaf
from dovetail.ir.origin import unrecorded
from dovetail.ir.value import Value
from dovetail.ir.walk import walk

LOAD_FACTS = "(run-schedule (run given))"
"""The command that makes nodes of the facts."""


@dataclass(frozen=True, slots=True)
class Printed:
    """One pattern as rules, and what the columns of its matches hold: roots, caught values, caught numbers."""

    number: int
    form: Form
    fused: Value
    """What it makes, with holes for what it catches."""
    roots: int
    values: tuple[str, ...]
    numbers: tuple[str, ...]
    open: tuple[Guard, ...]
    """Guards that no rule can ask; they are asked about every match that was found."""
    commands: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[int, int]:
        return self.roots + len(self.values), len(self.numbers)

    def match(self, kind: str, arguments: Sequence[str]) -> str:
        return f"({table_of(kind, self.columns)} {self.number} {' '.join(arguments)})"


def table_of(kind: str, columns: tuple[int, int]) -> str:
    """Return the relation of matches with these numbers of values and numbers: `found`, or `good` where all guards
    hold.
    """
    return f"{kind}-{columns[0]}-{columns[1]}"


class Program:
    """Rules as commands, printed on first use, and the words that they are written in."""

    def __init__(self, stages: Sequence[Sequence[FusedOp[...]]], *, strict: bool = False) -> None:
        self.words = Words()
        self.guards = Guards(self.words)
        self.strata = range(len(stages))
        self._forms = [
            (stratum, Form(op, variant, strict=strict))
            for stratum, ops in enumerate(stages)
            for op in ops
            for variant in op.patterns
            if not (strict and variant.spelling)
        ]
        self._printed: dict[int, Printed] = {}
        for sample in (leaf.hole("x") * leaf.hole("y"), leaf.hole("x") / leaf.hole("y")):
            self.words.symbol(sample)

    def rules(self, nodes: Iterable[Value], strata: Collection[int]) -> list[Printed]:
        """Return the rules of some strata that can apply to these nodes, and to what the rules make of them."""
        known, rules_ = Known(nodes), list[Printed]()
        for number, (stratum, form) in enumerate(self._forms):
            if stratum in strata and known.may_hold(walk([form.variant.pattern])):
                printed = self._printed.get(number) or self._print(number, stratum, form)
                self._printed[number] = printed
                rules_.append(printed)
                known.add(printed.fused)
                known.add(leaf.item(printed.fused, leaf.Hole("index")))  # type: ignore[arg-type]  # any of its results
        return rules_

    def commands(self, rules: Sequence[Printed]) -> list[str]:
        """Everything but facts, in an order in which it can be read."""
        tables = [
            f"(relation {table_of(kind, c)} ({' '.join(['i64', *['V'] * c[0], *['i64'] * c[1]])}))"
            for c in dict.fromkeys(rule.columns for rule in rules)
            for kind in ("found", "good")
        ]
        symbols = [command for symbol in self.words.symbols.values() for command in symbol.declared()]
        sets = [f"(ruleset {step}-{number})" for number in self.strata for step in ("match", "good", "apply")]
        listed = [command for rule in rules for command in rule.commands]
        return [*prelude(), *symbols, *products(), *tables, *self.guards.commands, *sets, *listed]

    @staticmethod
    def steps(stratum: int) -> tuple[str, str]:
        """Return the commands that find the matches of a stratum whose guards hold, and those that apply them."""
        look = f"(run-schedule (saturate (run mirror)) (run match-{stratum}) (run guards) (run good-{stratum}))"
        return look, f"(run-schedule (run apply-{stratum}))"

    def _print(self, number: int, stratum: int, form: Form) -> Printed:
        query = Query(self.words, form.variant.results)
        root, *others = (self._result(query, result) for result in form.variant.results)
        # What a spelling does not write is left out of the call too.
        choice = {n: v for n, v in form.variant.choice.items() if not isinstance(v, leaf.Hole) or n in query.numbers}
        bound: dict[str, Any] = {**choice, "result": leaf.hole("result")}
        variables = {**query.caught, "result": root}
        is_value = {name: isinstance(v, Value) for name, v in bound.items()}
        questions, open_ = self._conditions(form, bound, is_value)
        values = tuple(name for name, v in choice.items() if isinstance(v, Value))
        numbers = tuple(name for name, v in choice.items() if isinstance(v, leaf.Hole))
        with unrecorded():
            fused = form.op(**choice)
        rule = Printed(number, form, fused, 1 + len(others), values, numbers, open_)
        columns = [root, *others, *(query.caught[n] for n in values), *(query.numbers[n] for n in numbers)]
        answers = {
            n: query.type_of(variables[n]) if is_value[n] else query.numbers[n] for a in questions for n in a.names
        }
        asks = " ".join(a.of(answers, holds=False) for a in questions)
        name = text(f"{form.op.name}[{form.variant.label}]")
        body, match = " ".join(query.atoms), rule.match("found" if questions else "good", columns)
        later = [f"; asked of each match, for no rule can: {text(guard.name)}" for guard in open_]
        commands = [f"; {name}", *later, f"(rule ({body}) ({match} {asks}) :ruleset match-{stratum})"]
        if questions:
            types = [f"(= {t} (type {variables[n]}))" for n, t in answers.items() if is_value[n]]
            holds = [a.of(answers, holds=True) for a in questions]
            commands.append(
                f"(rule ({' '.join([match, *types, *holds])}) ({rule.match('good', columns)}) :ruleset good-{stratum})"
            )
        actions = " ".join(self._actions(fused, form, query, columns))
        commands.append(f"(rule ({rule.match('good', columns)}) ({actions}) :ruleset apply-{stratum})")
        return replace(rule, commands=tuple(commands))

    def _result(self, query: Query, result: Value) -> str:
        """Return the variable of a result; for an item that the pattern does not match itself, that of its tuple."""
        return query.values.get(result) or query.values[result.operands[0]]

    def _conditions(
        self, form: Form, bound: dict[str, Any], is_value: dict[str, bool]
    ) -> tuple[list[Question], tuple[Guard, ...]]:
        questions: list[Question] = []
        open_: list[Guard] = []
        for guard in form.op.guards:
            try:
                condition: Condition = condition_of(guard, bound)
                if condition.paths != ((),):
                    questions.append(self.guards.question(condition, is_value))
            except (OpaqueGuardError, UnprintableError):
                open_.append(guard)
        return questions, tuple(open_)

    def _actions(self, fused: Value, form: Form, query: Query, columns: Sequence[str]) -> list[str]:
        """Return the actions of a match: unite its root, or each of its results, with the fused op's."""
        symbol = self.words.symbol(fused)
        operands = [query.values[v] for v in fused.operands]
        attributes = [query.attribute(fused.attrs[key]) for key in symbol.keys]
        built = f"({' '.join([symbol.name, *operands, *attributes])})"
        results = form.variant.results
        if len(results) == 1:
            return [f"(union {columns[0]} {built})"]
        item = self.words.symbol(leaf.item(leaf.hole("x"), 0)).name
        actions = [f"(let fused {built})"]
        for index, (result, variable) in enumerate(zip(results, columns, strict=False)):
            old = variable
            if result not in query.values:
                old = f"({item} {variable} {self.words.attribute(result.attrs['index'])})"
            actions.append(f"(union {old} ({item} fused {self.words.attribute(index)}))")
        return actions
