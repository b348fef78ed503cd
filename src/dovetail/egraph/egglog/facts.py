"""An e-graph as tables of numbers: its nodes, and all that patterns and guards ask about them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

from dovetail.egraph.egglog.program import Printed, Program
from dovetail.egraph.egglog.words import WRITTEN, rows_text, text
from dovetail.egraph.engine import EGraph
from dovetail.ir import leaf
from dovetail.ir.leaf import Hole
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.match.attributes import UNITS, attributes_as, is_split
from dovetail.match.matcher import is_number, rounded_to
from dovetail.match.undo import part_of, undone
from dovetail.ops.elementwise import bit_not
from dovetail.ops.movement import part, permute, slice_, split, unsqueeze

Rows = dict[str, list[tuple[int, ...]]]
_GIVEN = (leaf.INPUT, leaf.PARAM, leaf.ARGUMENT, leaf.CONST)
_X = leaf.hole("x")


class Facts:
    """Everything that egglog is told about one e-graph."""

    def __init__(self, program: Program, egraph: EGraph, strata: Collection[int]) -> None:
        self.rules = program.rules(egraph.nodes, strata)
        """The rules that can apply to it."""
        self._words = program.words
        self._egraph = egraph
        self.numbers: dict[Value, int] = {}
        """The number of each class, by what stands for it, and of values that matching may make."""
        self.values: list[Value] = []
        self.rows: Rows = {}
        asked = _Asked(self.rules)
        for leader in egraph.leaders:
            self._number(leader)
        for leader in egraph.leaders:
            for node in egraph.equal(leader):
                self._node(self.numbers[leader], node)
                self._looks(asked, self.numbers[leader], node)
        self._about_words(program, asked)

    def number_of(self, value: Value) -> int:
        """The number of the class of a value; one that is new is told with all below it."""
        known = self.numbers.get(self._egraph.find(value) if value in self._egraph else value)
        if known is not None:
            return known
        for each in walk([value], until=self.numbers):
            if each not in self._egraph and each not in self.numbers:
                self._node(self._number(each), each)
        return self.numbers[value]

    def text(self) -> Iterator[str]:
        """The facts as commands, with the names of values and attributes beside them for those who read."""
        for number, value in enumerate(self.values):
            name = value.attrs["name"] if value.op in (leaf.INPUT, leaf.PARAM) else value.op.name
            yield f"; {number} = {text(name)} {text(value.type)}"
        for number, attribute in enumerate(self._words.attributes):
            yield f"; attribute {number} = {text(attribute)}"
        for name, rows in self.rows.items():
            yield from rows_text(name, rows)

    def _number(self, value: Value) -> int:
        number = self.numbers[value] = len(self.values)
        self.values.append(value)
        if isinstance(value.type, TensorType):
            self._tell("type-of", number, self._words.type(value.type))
        return number

    def _tell(self, name: str, *row: int) -> None:
        self.rows.setdefault(name, []).append(row)

    def _node(self, number: int, node: Value) -> None:
        if node.op in _GIVEN:
            return
        symbol = self._words.symbol(node)
        attributes = [self._words.attribute(node.attrs[key]) for key in symbol.keys]
        self._tell(symbol.name, number, *(self.number_of(v) for v in node.operands), *attributes)

    def _looks(self, asked: _Asked, number: int, node: Value) -> None:
        """What a node is taken for, beside what it is."""
        if node.op is leaf.CONST:
            self._constant(asked, number, node)
            return
        if not isinstance(node.type, TensorType):
            return
        # The same questions as the matcher's, asked of every node beforehand.
        for name, pattern in asked.undone.items():
            if node.op is pattern.op and node.attrs == pattern.attrs:
                self._tell(name, number, self.number_of(node.operands[0]))
            elif (rest := undone(pattern, node)) is not None:
                self._tell(name, number, self.number_of(rest))
        if node.op is split:
            axis: int = node.attrs["axis"]
            self._like("split-like", number, node, (axis, node.shape[axis - 1], node.shape[axis]))
        elif node.op is part or node.op is slice_:
            self._slice(asked, number, node)
        elif node.op in UNITS:
            self._units(asked, number, node)

    def _slice(self, asked: _Asked, number: int, node: Value) -> None:
        found = attributes_as(_SLICE, node)
        if found is not None:
            self._like("slice-like", number, node, tuple(found[k] for k in ("axis", "start", "stop", "step")))
        found = attributes_as(_PART, node)
        as_part = None if found is None else tuple(found[k] for k in ("axis", "index", "parts"))
        if as_part is not None:
            self._like("part-like", number, node, as_part)
            self._like("part-within", number, node, as_part)
        for pattern in asked.parts:
            if as_part != tuple(pattern.attrs[k] for k in ("axis", "index", "parts")):
                whole = part_of(pattern, node)
                if whole is not None:
                    numbers = [self._words.attribute(pattern.attrs[k]) for k in ("axis", "index", "parts")]
                    self._tell("part-within", number, self.number_of(whole), *numbers)

    def _units(self, asked: _Asked, number: int, node: Value) -> None:
        """An axis of size 1 that is another one for a pattern, or the result of a split."""
        symbol = self._words.symbol(node)
        for pattern in asked.units:
            if pattern.op is node.op and pattern.attrs != node.attrs and attributes_as(pattern, node) == pattern.attrs:
                self._tell(
                    symbol.name, number, self.number_of(node.operands[0]), self._words.attribute(pattern.attrs["axes"])
                )
        if node.op is unsqueeze:
            for axis in (a for a in asked.splits if is_split(node, a)):
                self._like("split-like", number, node, (axis, node.shape[axis - 1], node.shape[axis]))

    def _like(self, name: str, number: int, node: Value, attributes: tuple[Any, ...]) -> None:
        listed = [self._words.attribute(a) for a in attributes]
        self._tell(name, number, self.number_of(node.operands[0]), *listed)

    def _constant(self, asked: _Asked, number: int, node: Value) -> None:
        found = leaf.scalar_of(node)
        if found is None:
            return
        array = node.attrs["value"].array
        for wanted in asked.numbers:
            if is_number(array, wanted):
                self._tell("is-number", number, self._words.attribute(wanted))
        if isinstance(found, complex):
            return
        plain = float(found) if isinstance(found, bool) else found
        self._tell("holds-number", number, WRITTEN.index("as_is"), self._words.attribute(plain))
        rounded = partial(rounded_to, array.dtype)
        for written in WRITTEN[1:]:
            inner = Hole("x", written).recover(float(found), rounded)
            if math.isfinite(rounded(inner)) and rounded(inner):
                self._tell("holds-number", number, WRITTEN.index(written), self._words.attribute(inner))

    def _about_words(self, program: Program, asked: _Asked) -> None:
        words = self._words
        for number, type in enumerate(words.types):
            self._tell("dtype", number, words.attribute(type.dtype))
            if type.dtype.is_inexact:
                self._tell("inexact", number)
            for axis in range(1, len(type.shape) + 1):
                self._tell("size", number, -axis, words.attribute(type.shape[-axis]))
        for wanted in asked.numbers:
            if isinstance(wanted, int | float) and wanted:
                self._tell("inverse", words.attribute(wanted), words.attribute(1.0 / wanted))
        for name, rows in program.guards.rows().items():
            self.rows[name] = rows
        for number, value in enumerate(words.attributes):
            if isinstance(value, tuple):
                self._tell("length", number, len(value))  # pyright: ignore[reportUnknownArgumentType]
                for index, item in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                    self._tell("item", number, index, words.attribute(item))


class _Asked:
    """What the patterns of a program ask for beyond ops and attributes."""

    def __init__(self, rules: Sequence[Printed]) -> None:
        inside = walk([v for rule in rules for v in rule.form.variant.results])
        fixed = [v.attrs["value"] for v in inside if v.op is leaf.NUMBER and not isinstance(v.attrs["value"], Hole)]
        inverses = [1.0 / n for n in fixed if isinstance(n, int | float) and n]
        self.numbers = tuple(dict.fromkeys([*fixed, *inverses]))
        self.parts = [v for v in inside if v.op is part]
        self.units = tuple({(v.op, v.attrs["axes"]): v for v in inside if v.op in UNITS}.values())
        self.splits: tuple[int, ...] = tuple(dict.fromkeys([v.attrs["axis"] for v in inside if v.op is split]))
        ops = {v.op for v in inside}
        swap = {"swapped": permute(_X, order=(-1, -2))} if permute in ops else {}
        negate = {"negated": bit_not(_X)} if bit_not in ops else {}
        self.undone: dict[str, Value] = {**swap, **negate}


_SLICE = slice_(_X, axis=-1, start=0, stop=1)
_PART = part(_X, axis=-1, index=0, parts=2)
