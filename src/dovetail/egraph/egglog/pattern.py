"""A traced pattern as a query: what must be in the tables of an e-graph for the pattern to be there."""

from __future__ import annotations

from typing import Any

from dovetail.egraph.egglog.words import WRITTEN, Words
from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.match.undo import is_loose
from dovetail.ops.elementwise import bit_not, div, mul
from dovetail.ops.movement import part, permute, slice_, split


class Query:
    """The atoms of a pattern, and the variables that hold what it catches."""

    def __init__(self, words: Words, results: tuple[Value, ...]) -> None:
        self.words = words
        self.atoms: list[str] = []
        self.values: dict[Value, str] = {}
        """The variable of every value in the pattern."""
        self.caught: dict[str, str] = {}
        """The variables of caught values, by name."""
        self.numbers: dict[str, str] = {}
        """The variables of caught numbers, by name."""
        self._unnamed = 0
        self._inside = walk(results[:1])
        self._of_parts = _caught_by_parts_alone(self._inside)
        for value in self._inside:
            self.values[value] = f"v{len(self.values)}"
            if value.op is leaf.HOLE:
                self.caught[value.attrs["name"]] = self.values[value]
        for value in self._inside:
            if value.op is not leaf.HOLE and not self._is_number_of_loose(value):
                self._node(value)

    def type_of(self, variable: str) -> str:
        """Return the variable of the type of a value."""
        name = f"t-{variable}"
        atom = f"(= {name} (type {variable}))"
        if atom not in self.atoms:
            self.atoms.append(atom)
        return name

    def _is_number_of_loose(self, value: Value) -> bool:
        """Return whether only products read a number: they match on it themselves."""
        readers = [v for v in self._inside if value in v.operands]
        return value.op is leaf.NUMBER and all(_factor_and_number(v) is not None for v in readers)

    def _node(self, value: Value) -> None:
        variable = self.values[value]
        factored = _factor_and_number(value)
        if value.op is leaf.NUMBER:
            self._number(variable, value.attrs["value"])
        elif factored is not None:
            self._scaled(value, *factored)
        elif value.op is permute and is_loose(value):
            self._of_first("swapped", value)
        elif value.op is bit_not and is_loose(value):
            self._of_first("negated", value)
        elif value.op is split:
            self._of_first("split-like", value, "axis", "parts", "size", open_=True)
        elif value.op is slice_:
            self._of_first("slice-like", value, "axis", "start", "stop", "step")
        elif value.op is part:
            within = value.operands[0].op in (leaf.HOLE, slice_) and value.operands[0] not in self._of_parts
            self._of_first("part-within" if within else "part-like", value, "axis", "index", "parts")
        else:
            self._plain(value)

    def _plain(self, value: Value) -> None:
        symbol, variable = self.words.symbol(value), self.values[value]
        operands = " ".join(self.values[v] for v in value.operands)
        attributes = " ".join(self.attribute(value.attrs[key]) for key in symbol.keys)
        if symbol.commutes:
            self.atoms.append(f"({symbol.name}~ {operands} {attributes} {variable})")
        else:
            self.atoms.append(f"(= {variable} ({symbol.name} {operands} {attributes}))")

    def _of_first(self, relation: str, value: Value, *keys: str, open_: bool = False) -> None:
        """Add a fact about a value and its operand; with `open_`, an attribute that the pattern omits may be any."""
        attributes = [
            self._fresh() if open_ and value.attrs[key] is None else self.attribute(value.attrs[key]) for key in keys
        ]
        listed = " ".join([self.values[value], self.values[value.operands[0]], *attributes])
        self.atoms.append(f"({relation} {listed})")

    def _number(self, variable: str, number: Any) -> None:
        if isinstance(number, leaf.Hole):
            written = WRITTEN.index(number.written)
            self.atoms.append(f"(holds-number {variable} {written} {self._caught(number)})")
        else:
            self.atoms.append(f"(is-number {variable} {self.words.attribute(number)})")

    def _scaled(self, value: Value, factor: Value, number: Value) -> None:
        """Add a product with a number, or the quotient that is the same."""
        scale, name = number.attrs["value"], value.op.name
        ends = f"{self.values[value]} {self.values[factor]}"
        if isinstance(scale, leaf.Hole):
            self.atoms.append(f"({name}-caught {ends} {WRITTEN.index(scale.written)} {self._caught(scale)})")
        else:
            self.atoms.append(f"({name}-number {ends} {self.words.attribute(scale)})")

    def attribute(self, pattern: Any) -> str:
        """Return an attribute as a number, or as a variable with the conditions on it."""
        match pattern:
            case leaf.Hole():
                name = self._caught(pattern)
                if not pattern.or_none:
                    self.atoms.append(f"(!= {name} {self.words.nothing})")
                return name
            case leaf.SizeOf(of=of, axis=axis):
                return self._questioned(of, f"size {{}} {axis}")
            case leaf.DTypeOf(of=of):
                return self._questioned(of, "dtype {}")
            case tuple() if _is_open(pattern):  # pyright: ignore[reportUnknownArgumentType]
                return self._tuple(pattern)  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return str(self.words.attribute(pattern))

    def _tuple(self, items: tuple[Any, ...]) -> str:
        name = self._fresh()
        self.atoms.append(f"(length {name} {len(items)})")
        for index, item in enumerate(items):
            self.atoms.append(f"(item {name} {index} {self.attribute(item)})")
        return name

    def _questioned(self, of: Value, question: str) -> str:
        name = self._fresh()
        if of in self.values:
            self.atoms.append(f"({question.format(self.type_of(self.values[of]))} {name})")
        return name

    def _caught(self, hole: leaf.Hole) -> str:
        return self.numbers.setdefault(hole.name, f"n{len(self.numbers)}")

    def _fresh(self) -> str:
        self._unnamed += 1
        return f"u{self._unnamed}"


def products() -> list[str]:
    """Return the rules by which a quotient is a product with the inverse, and vice versa."""
    rules: list[str] = []
    as_is, inverse = WRITTEN.index("as_is"), WRITTEN.index("inverse")
    straight = {"mul": "(mul-2~ f c p)", "div": "(= p (div-2 f c))"}
    for name, other in (("mul", "div"), ("div", "mul")):
        rules += [
            f"(relation {name}-number (V V i64))",
            f"(relation {name}-caught (V V i64 i64))",
            f"(rule ({straight[name]} (is-number c k)) (({name}-number p f k)) :ruleset mirror)",
            f"(rule ({straight[name]} (holds-number c w n)) (({name}-caught p f w n)) :ruleset mirror)",
            f"(rule ({straight[other]} (= t (type p)) (inexact t) (is-number c j) (inverse k j))"
            f" (({name}-number p f k)) :ruleset mirror)",
        ]
        for scaling, spelled in ((as_is, inverse), (inverse, as_is)):
            rules.append(
                f"(rule ({straight[other]} (= t (type p)) (inexact t) (holds-number c {spelled} n))"
                f" (({name}-caught p f {scaling} n)) :ruleset mirror)"
            )
    return rules


def _factor_and_number(value: Value) -> tuple[Value, Value] | None:
    """Return both operands of a product with a number, or of a quotient by one."""
    if value.op not in (mul, div):
        return None
    left, right = value.operands
    if value.op is mul and left.op is leaf.NUMBER:
        return right, left
    return (left, right) if right.op is leaf.NUMBER else None


def _is_open(items: tuple[Any, ...]) -> bool:
    return any(isinstance(item, leaf.Hole | leaf.SizeOf | leaf.DTypeOf) for item in items)


def _caught_by_parts_alone(inside: list[Value]) -> set[Value]:
    """Return the holes that only parts read. A slice could be a part of many things, so these are parts as such."""
    read = {v for value in inside if value.op is not part for v in value.operands}
    return {v for v in inside if v.op is leaf.HOLE and v not in read}
