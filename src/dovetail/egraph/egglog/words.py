"""What a program for egglog is written in: symbols for ops, and numbers for attributes and types.

Only numbers and names that are made here reach a program, so that no name of a model can break it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from types import MappingProxyType
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.ir.spell import quote
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value, attrs_key

_PLAIN = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST = 60

TABLES = MappingProxyType(
    {
        "type-of": "Vi",
        "is-number": "Vi",
        "holds-number": "Vii",
        "swapped": "VV",
        "negated": "VV",
        "split-like": "VViii",
        "slice-like": "VViiii",
        "part-like": "VViii",
        "part-within": "VViii",
        "length": "ii",
        "item": "iii",
        "size": "iii",
        "dtype": "ii",
        "inexact": "i",
        "inverse": "ii",
        "yes": "ii",
        "no": "ii",
        "says": "iii",
    }
)
"""The tables of facts by their columns: values, and numbers that stand for attributes, types, questions."""

WRITTEN = ("as_is", "root", "inverse")
"""How a caught number can be written, in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """An op with a number of operands and attributes."""

    name: str
    arity: int
    keys: tuple[str, ...]
    commutes: bool

    def declared(self) -> list[str]:
        """Return the commands that declare it."""
        operands = [f"x{i}" for i in range(self.arity)]
        attributes = [f"a{i}" for i in range(len(self.keys))]
        names = " ".join([*operands, *attributes])
        columns = " ".join(["V"] * self.arity + ["i64"] * len(attributes))
        built = " ".join([self.name, *(f"(N {x})" for x in operands), *attributes])
        commands = [
            f"(constructor {self.name} ({columns}) V)",
            f"(relation given-{self.name} ({' '.join(['i64'] * (1 + self.arity + len(attributes)))}))",
            f"(rule ((given-{self.name} i {names})) ((union (N i) ({built}))) :ruleset given)",
        ]
        if self.commutes:
            either = f"{self.name}~"
            rest = " ".join([*attributes, "v"])
            commands += [
                f"(relation {either} ({columns} V))",
                f"(rule ((= v ({self.name} {names}))) (({either} x0 x1 {rest}) ({either} x1 x0 {rest}))"
                " :ruleset mirror)",
            ]
        return commands


class Words:
    """Numbers for everything that is met, the same for the same thing."""

    def __init__(self) -> None:
        self.attributes: list[Any] = []
        self.types: list[TensorType] = []
        self.symbols: dict[Hashable, Symbol] = {}
        self._attribute: dict[Hashable, int] = {}
        self._type: dict[TensorType, int] = {}
        self._ops: dict[str, Op] = {}
        self.nothing = self.attribute(None)

    def attribute(self, value: Any) -> int:
        """Return the number of an attribute; number its items, too."""
        key = attrs_key({"": value})
        known = self._attribute.get(key)
        if known is None:
            if isinstance(value, tuple):
                for item in cast(tuple[Any, ...], value):
                    self.attribute(item)
            known = self._attribute[key] = len(self.attributes)
            self.attributes.append(value)
        return known

    def type(self, type: TensorType) -> int:
        known = self._type.get(type)
        if known is None:
            known = self._type[type] = len(self.types)
            self.types.append(type)
        return known

    def symbol(self, value: Value) -> Symbol:
        """Return the symbol of the op of a value."""
        arity, keys = len(value.operands), tuple(sorted(value.attrs))
        key = (value.op, arity, keys)
        known = self.symbols.get(key)
        if known is None:
            commutes = value.op.commutative and arity == 2
            known = self.symbols[key] = Symbol(self._fresh(value.op, arity), arity, keys, commutes)
        return known

    def _fresh(self, op: Op, arity: int) -> str:
        name = f"{op.name if _PLAIN.fullmatch(op.name) else 'op'}-{arity}"
        taken = {symbol.name for symbol in self.symbols.values()}
        return name if name not in taken else f"{name}-{len(self.symbols)}"


def prelude() -> list[str]:
    """Return the first commands of every program: classes of values, and the tables of facts."""
    commands = [
        "(sort V)",
        "(constructor N (i64) V)",
        "(function type (V) i64 :merge old)",
        "(ruleset given)",
        "(ruleset mirror)",
        "(ruleset guards)",
    ]
    for name, columns in TABLES.items():
        if "V" not in columns:
            commands.append(f"(relation {name} ({' '.join(['i64'] * len(columns))}))")
            continue
        names = [f"c{i}" for i in range(len(columns))]
        terms = " ".join(f"(N {n})" if kind == "V" else n for n, kind in zip(names, columns, strict=True))
        if name == "type-of":
            fact = "(set (type (N c0)) c1)"
        else:
            fact = f"({name} {terms})"
            commands.append(f"(relation {name} ({' '.join('V' if kind == 'V' else 'i64' for kind in columns)}))")
        commands.append(f"(relation given-{name} ({' '.join(['i64'] * len(columns))}))")
        commands.append(f"(rule ((given-{name} {' '.join(names)})) ({fact}) :ruleset given)")
    return commands


def table(name: str) -> str:
    """Return the relation for the rows of a table of facts."""
    return f"given-{name}" if "V" in TABLES.get(name, "V") else name


def text(value: object) -> str:
    """Return anything as text for comments in a program: ASCII, short, safely quoted."""
    whole = str(value)
    short = whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]}..."
    plain = quote(short)[1:-1].encode("ascii", "backslashreplace").decode("ascii")
    return '"' + plain.replace("\\", "\\\\").replace('"', "'") + '"'


def rows_text(name: str, rows: Iterable[tuple[int, ...]]) -> list[str]:
    """Facts as commands, one a line."""
    return [f"({table(name)} {' '.join(map(str, row))})" for row in rows]
