"""Applies rules until none applies: operands first, each value once, no recursion."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.derive.edit import Edit, Log
from dovetail.ir import leaf
from dovetail.ir.value import Op, Value
from dovetail.passes.canonical.rule import Rule

_MOST_REWRITES = 1000
"""How many rewrites one value may set off. No chain of rules is near as long; with this none can be endless."""


class Canonicalizer:
    """Finds the canonical form of values whose operands are canonical already, and remembers it."""

    def __init__(self, rules: Iterable[Rule], log: Log | None = None) -> None:
        self.table: dict[Op, tuple[list[Rule], list[Rule]]] = {}
        for rule in sorted(rules, key=lambda rule: rule.final):
            for op in rule.ops:
                always, on_constant = self.table.setdefault(op, ([], []))
                (on_constant if rule.on_constant else always).append(rule)
        self.known: dict[Value, Value] = {}
        self.log = log

    def step(self, value: Value, operands: tuple[Value, ...]) -> Value | None:
        """What stands in place of a value, given its new operands; None where it is for the caller to make it anew."""
        entry = self.table.get(value.op)
        if entry is None:
            return None
        known = self.known
        for operand in operands:
            if operand not in known:
                known[operand] = operand
        current = value.with_operands(operands)
        found = known.get(current)
        if found is None:
            if _first(current, entry) is None:
                known[current] = found = current
            else:
                found = self.settle(current)
        # Among the attributes may be sub-graphs, and those the caller enters.
        return None if found is current and (current is value or current.attrs) else found

    def settle(self, root: Value) -> Value:
        """The canonical form of a value and of everything below it that is not known yet."""
        known = self.known
        instead: dict[Value, Value] = {}
        stack = [root]
        left = _MOST_REWRITES
        while stack:
            value = stack[-1]
            if value in known:
                stack.pop()
                continue
            if value in instead:
                # What stands in its place is settled by now, unless it leads back here.
                known[value] = known.get(instead[value], value)
                continue
            pending = [v for v in value.operands if v not in known]
            if pending:
                stack.extend(pending)
                continue
            renewed = value.with_operands(tuple([known[v] for v in value.operands]))
            if renewed is not value:
                instead[value] = renewed
                stack.append(renewed)
                continue
            entry = self.table.get(value.op)
            fired = None if entry is None else _first(value, entry)
            if fired is None:
                known[value] = value
                continue
            rule, result = fired
            if rule.final:
                self._note(rule, value, result)
                known[value] = known[result] = result
                continue
            left -= 1
            if left < 0 or result in instead:
                known[value] = value
                continue
            self._note(rule, value, result)
            instead[value] = result
            stack.append(result)
        return known[root]

    def _note(self, rule: Rule, before: Value, after: Value) -> None:
        if self.log is not None:
            self.log.add(Edit(rule.name, "", rule.numerics, (before,), (after,), final=rule.final))


def _first(value: Value, entry: tuple[list[Rule], list[Rule]]) -> tuple[Rule, Value] | None:
    """The first rule that has something to say, and what."""
    always, on_constant = entry
    if on_constant:
        for operand in value.operands:
            if operand.op is leaf.CONST or operand.op is leaf.NUMBER:
                fired = _try(value, on_constant)
                if fired is not None:
                    return fired
                break
    return _try(value, always) if always else None


def _try(value: Value, rules: list[Rule]) -> tuple[Rule, Value] | None:
    for rule in rules:
        result = rule.rewrite(value)
        # A rewrite never changes a type, not even to one that is equal under the constraints of the graph.
        if result is not None and result is not value and result.known_type == value.known_type:
            return rule, result
    return None
