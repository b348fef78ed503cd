"""Plans as text: the graph, then how it runs. `parse_plan(print_plan(plan), ops)` equals the plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from dovetail.errors import GraphError
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph
from dovetail.ir.spell import name, quote
from dovetail.ir.text import local_names, parse_graph, print_graph
from dovetail.ir.text_lex import WORDS, Lexer
from dovetail.ir.value import Op, Value
from dovetail.passes.memory_rules import NO_RULES
from dovetail.passes.specialize import symbols_of
from dovetail.plan.alias import Alias
from dovetail.plan.arena import Pool, Slot
from dovetail.plan.donation import Donation
from dovetail.plan.liveness import results_of
from dovetail.plan.manifest import manifest_of
from dovetail.plan.phases import Phase
from dovetail.plan.plan import Plan, Step

_MEMORY = ("arena_size", "scratch_size", "bound_size", "unshared_bytes", "peak")
# Every line of a graph but its first and last is indented, so that this stands nowhere inside it.
_START = re.compile(r"^plan(?= )", re.MULTILINE)
_POOLS: tuple[str, ...] = get_args(Pool)


def print_plan(plan: Plan) -> str:
    """Print the graph as text, then one line for each option, total, step and view."""
    names = local_names(plan.graph, plan.graph.values)
    lines = [
        f"plan {name(plan.target)} {{",
        f"  alignment {plan.alignment}",
        f"  fingerprint {quote(plan.fingerprint)}",
    ]
    lines += [f"  option {name(key)} = {_spell(value)}" for key, value in plan.options.items()]
    lines += [f"  {total}({getattr(plan, total)})" for total in _MEMORY]
    lines += [_step(step, plan, names) for step in plan.steps]
    for one in plan.donations:
        why = f" copied({one.copied}) {quote(one.reason)}" if one.reason else ""
        lines.append(f"  donate {name(one.input)} to {name(one.output)}{why}")
    for value, alias in plan.aliases.items():
        sizes = ", ".join(map(str, (alias.offset, *alias.strides)))
        lines.append(f"  view {names[value]} of {names[alias.root]} ({sizes})")
    return "\n".join([print_graph(plan.graph) + lines[0], *lines[1:], "}", ""])


def _step(step: Step, plan: Plan, names: Mapping[Value, str]) -> str:
    overs = step.overs or [None] * len(step.results)
    slots = [
        _slot(plan.slots[r], names) + (f" over {names[over]}" if over is not None else "")
        for r, over in zip(step.results, overs, strict=True)
    ]
    return f"  {step.phase} {name(step.name)}: {names[step.value]} in {' '.join(slots)}"


def _slot(slot: Slot, names: Mapping[Value, str]) -> str:
    donor = f" of {names[slot.donor]}" if slot.donor is not None else ""
    return f"{slot.pool}({slot.offset}, {slot.size}){donor}"


def _spell(option: Any) -> str:
    match option:
        case None | bool():
            return str(option).lower()
        case int() | float():
            return repr(option)
        case str():
            return quote(option)
        case tuple():
            items = [_spell(item) for item in cast(tuple[Any, ...], option)]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        case _:
            raise GraphError(
                f"the option {option!r} has no text form", hint="use None, bool, int, float, str and tuples"
            )


def parse_plan(text: str, ops: Iterable[Op]) -> Plan:
    """Parse a plan in the vocabulary of `ops`."""
    start = _START.search(text)
    if start is None:
        Lexer(text).fail("a text without a plan", "write plan target { … } behind the graph", len(text))
    graph = parse_graph(text[: start.start()], ops)
    return _Parser(text, start.end(), graph).plan()


class _Parser(Lexer):
    tokens_of_a_size = 1 << 16
    """Sums and products of the sizes of a graph are longer than those."""

    def __init__(self, text: str, start: int, graph: Graph) -> None:
        super().__init__(text)
        self.at = start
        self.skip()
        self.graph = graph
        self.values = {local: value for value, local in local_names(graph, graph.values).items()}
        self.steps: list[Step] = []
        self.slots: dict[Value, Slot] = {}
        self.aliases: dict[Value, Alias] = {}
        self.donations: list[Donation] = []
        self.options: dict[str, Any] = {}
        self.totals: dict[str, Size] = {}
        self.alignment = 0
        self.fingerprint = ""

    def plan(self) -> Plan:
        target = self.name()
        self.need("{")
        while not self.take("}"):
            self.statement()
        if self.at < len(self.text):
            self.expected("the end of the text", "a text holds one plan")
        known = {"alignment": self.alignment, "fingerprint": self.fingerprint}
        missing = [m for m in _MEMORY if m not in self.totals] + [m for m, bound in known.items() if not bound]
        if missing:
            self.fail(f"a plan without {' and '.join(missing)}", "print the plan again")
        bound, late = symbols_of(self.graph)
        return Plan(
            graph=self.graph,
            target=target,
            alignment=self.alignment,
            options=self.options,
            steps=tuple(self.steps),
            slots=self.slots,
            aliases=self.aliases,
            manifest=manifest_of(self.graph),
            symbols=tuple(sorted(bound | late)),
            fingerprint=self.fingerprint,
            donations=tuple(self.donations),
            memory_limit=0,
            rules=NO_RULES,
            **self.totals,
        )

    def statement(self) -> None:
        start = self.at
        match self.word():
            case "alignment":
                self.alignment = self.whole()
            case "fingerprint":
                self.fingerprint = self.string()
            case "option":
                key = self.name()
                self.need("=")
                self.options[key] = self.option()
            case "bind":
                self.step("bind")
            case "run":
                self.step("run")
            case "view":
                self.view()
            case "donate":
                self.donate()
            case str() as total if total in _MEMORY:
                self.totals[total] = self.listed(1)[0]
            case _:
                self.fail("a line that is no part of a plan", "write run, bind, view, donate, option or a total", start)

    def step(self, phase: Phase) -> None:
        label = self.name()
        self.need(":")
        value = self.value()
        self.keyword("in")
        overs: list[Value | None] = []
        for result in results_of(value):
            start, pool = self.at, self.word()
            if pool not in _POOLS:
                self.fail(f"{pool!r} is no memory", f"use one of {', '.join(_POOLS)}", start)
            offset, size = self.listed(2)
            donor = None
            if pool == "donated":
                self.keyword("of")
                donor = self.value()
            self.slots[result] = Slot(offset, size, cast(Pool, pool), donor)
            start = self.at
            overs.append(self.value() if self.word() == "over" else None)
            if overs[-1] is None:
                self.at = start
        self.steps.append(Step(label, value, phase, tuple(overs) if any(t is not None for t in overs) else ()))

    def donate(self) -> None:
        source = self.name()
        self.keyword("to")
        output = self.name()
        start = self.at
        if self.word() == "copied":
            (copied,) = self.listed(1)
            self.donations.append(Donation(output, source, copied, self.string()))
        else:
            self.at = start
            self.donations.append(Donation(output, source))

    def view(self) -> None:
        value = self.value()
        self.keyword("of")
        root = self.value()
        offset, *strides = self.listed(1 + value.rank)
        self.aliases[value] = Alias(root, offset, tuple(strides))

    def value(self) -> Value:
        start = self.at
        local = self.local()
        if local is None:
            local = name(self.name())
        value = self.values.get(local)
        if value is None:
            self.fail(f"{local[:40]!r} is no value of the graph", "use the names of the graph above", start)
        return value

    def keyword(self, word: str) -> None:
        if self.word() != word:
            self.expected(repr(word))

    def whole(self) -> int:
        number = self.number()
        if not isinstance(number, int):
            self.expected("a whole number")
        return number

    def listed(self, count: int) -> list[Size]:
        start = self.at
        sizes = self.sizes()
        if len(sizes) != count:
            self.fail(f"{len(sizes)} sizes, and {count} are wanted", "print the plan again", start)
        return sizes

    def option(self) -> Any:
        number = self.number()
        if number is not None:
            return number
        if self.sees('"'):
            return self.string()
        if self.take("("):
            items: list[Any] = []
            while not self.take(")"):
                items.append(self.option())
                if not self.take(","):
                    self.need(")")
                    break
            return tuple(items)
        start, word = self.at, self.word()
        if word == "none":
            return None
        if word not in WORDS:
            self.fail(f"{word!r} is no option", "write a number, text in quotes, true, false, none or a tuple", start)
        return WORDS[word]
