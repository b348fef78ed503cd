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
_LEAVES = (leaf.INPUT, leaf.PARAM, leaf.ARGUMENT, leaf.CONST)
_X = leaf.hole("x")


class Facts:
    """All facts about one e-graph that egglog gets."""

    def __init__(self, program: Program, egraph: EGraph, strata: Collection[int]) -> None:
        self.rules = program.rules(egraph.nodes, strata)
        """The rules that can apply to it."""
        self._words = program.words
        self._egraph = egraph
        self.numbers: dict[Value, int] = {}
        """The number of each class, by what stands for it, and of values that matching may make."""
        self.values: list[Value] = []
        self.rows: Rows = {}
        queried = _Queried(self.rules)
        for leader in egraph.leaders:
            self._number(leader)
        for leader in egraph.leaders:
            for node in egraph.equal(leader):
                self._node(self.numbers[leader], node)
                self._looks(queried, self.numbers[leader], node)
        self._about_words(program, queried)

    def number_of(self, value: Value) -> int:
        """Return the number of the class of a value; add facts for a new one and all below it."""
        known = self.numbers.get(self._egraph.find(value) if value in self._egraph else value)
        if known is not None:
            return known
        for each in walk([value], until=self.numbers):
            if each not in self._egraph and each not in self.numbers:
                self._node(self._number(each), each)
        return self.numbers[value]

    def text(self) -> Iterator[str]:
        """Yield the facts as commands, with the names of values and attributes as comments."""
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
        if node.op in _LEAVES:
            return
        symbol = self._words.symbol(node)
        attributes = [self._words.attribute(node.attrs[key]) for key in symbol.keys]
        self._tell(symbol.name, number, *(self.number_of(v) for v in node.operands), *attributes)

    def _looks(self, queried: _Queried, number: int, node: Value) -> None:
        """Add what patterns may take a node for, in addition to what it is."""
        if node.op is leaf.CONST:
            self._constant(queried, number, node)
            return
        if not isinstance(node.type, TensorType):
            return
        # The same questions as the matcher's, asked of every node beforehand.
        for name, pattern in queried.undone.items():
            if node.op is pattern.op and node.attrs == pattern.attrs:
                self._tell(name, number, self.number_of(node.operands[0]))
            elif (rest := undone(pattern, node)) is not None:
                self._tell(name, number, self.number_of(rest))
        if node.op is split:
            axis: int = node.attrs["axis"]
            self._like("split-like", number, node, (axis, node.shape[axis - 1], node.shape[axis]))
        elif node.op is part or node.op is slice_:
            self._slice(queried, number, node)
        elif node.op in UNITS:
            self._units(queried, number, node)

    def _slice(self, queried: _Queried, number: int, node: Value) -> None:
        attributes = attributes_as(_SLICE, node)
        if attributes is not None:
            self._like("slice-like", number, node, tuple(attributes[k] for k in ("axis", "start", "stop", "step")))
        attributes = attributes_as(_PART, node)
        as_part = None if attributes is None else tuple(attributes[k] for k in ("axis", "index", "parts"))
        if as_part is not None:
            self._like("part-like", number, node, as_part)
            self._like("part-within", number, node, as_part)
        for pattern in queried.parts:
            if as_part != tuple(pattern.attrs[k] for k in ("axis", "index", "parts")):
                whole = part_of(pattern, node)
                if whole is not None:
                    numbers = [self._words.attribute(pattern.attrs[k]) for k in ("axis", "index", "parts")]
                    self._tell("part-within", number, self.number_of(whole), *numbers)

    def _units(self, queried: _Queried, number: int, node: Value) -> None:
        """Add the facts of an axis of size 1 that a pattern may take for another one, or for the result of a split."""
        symbol = self._words.symbol(node)
        for pattern in queried.units:
            if pattern.op is node.op and pattern.attrs != node.attrs and attributes_as(pattern, node) == pattern.attrs:
                self._tell(
                    symbol.name, number, self.number_of(node.operands[0]), self._words.attribute(pattern.attrs["axes"])
                )
        if node.op is unsqueeze:
            for axis in (a for a in queried.splits if is_split(node, a)):
                self._like("split-like", number, node, (axis, node.shape[axis - 1], node.shape[axis]))

    def _like(self, name: str, number: int, node: Value, attributes: tuple[Any, ...]) -> None:
        listed = [self._words.attribute(a) for a in attributes]
        self._tell(name, number, self.number_of(node.operands[0]), *listed)

    def _constant(self, queried: _Queried, number: int, node: Value) -> None:
        scalar = leaf.scalar_of(node)
        if scalar is None:
            return
        array = node.attrs["value"].array
        for number_ in queried.numbers:
            if is_number(array, number_):
                self._tell("is-number", number, self._words.attribute(number_))
        if isinstance(scalar, complex):
            return
        plain = float(scalar) if isinstance(scalar, bool) else scalar
        self._tell("holds-number", number, WRITTEN.index("as_is"), self._words.attribute(plain))
        rounded = partial(rounded_to, array.dtype)
        for written in WRITTEN[1:]:
            inner = Hole("x", written).recover(float(scalar), rounded)
            if math.isfinite(rounded(inner)) and rounded(inner):
                self._tell("holds-number", number, WRITTEN.index(written), self._words.attribute(inner))

    def _about_words(self, program: Program, queried: _Queried) -> None:
        words = self._words
        for number, type in enumerate(words.types):
            self._tell("dtype", number, words.attribute(type.dtype))
            if type.dtype.is_inexact:
                self._tell("inexact", number)
            for axis in range(1, len(type.shape) + 1):
                self._tell("size", number, -axis, words.attribute(type.shape[-axis]))
        for constant in queried.numbers:
            if isinstance(constant, int | float) and constant:
                self._tell("inverse", words.attribute(constant), words.attribute(1.0 / constant))
        for name, rows in program.guards.rows().items():
            self.rows[name] = rows
        for number, value in enumerate(words.attributes):
            if isinstance(value, tuple):
                self._tell("length", number, len(value))  # pyright: ignore[reportUnknownArgumentType]
                for index, item in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                    self._tell("item", number, index, words.attribute(item))


class _Queried:
    """What the patterns of a program match on beyond ops and attributes."""

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
