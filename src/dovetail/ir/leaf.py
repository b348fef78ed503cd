"""Values without operands, and the projection out of a tuple."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from typing import Literal as Literal_

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import TraceError, TypeRuleError
from dovetail.ir.dtype import NARROW, DType, holds, whole_range
from dovetail.ir.fact import Facts
from dovetail.ir.literal import Array, Literal
from dovetail.ir.type import TensorType, TupleType, Type
from dovetail.ir.value import Op, Value, make


@dataclass(frozen=True, slots=True)
class Hole:
    """A number that a pattern catches, or a root or quotient of it that a spelling writes."""

    name: str
    written: Literal_["as_is", "root", "inverse"] = "as_is"
    or_none: bool = False
    """Whether a number that is left out is caught too, as None."""

    def recover(self, written: float, rounded: Callable[[float], float]) -> float:
        """Return the number itself. Of those that are written like this, take the one with the fewest digits."""
        if self.written == "as_is":
            return written
        exact = written * written if self.written == "root" else 1.0 / written if written else math.inf
        for digits in range(1, 18):
            simple = float(f"{exact:.{digits}g}")
            for number in (simple, rounded(simple)):
                if number and rounded(number**0.5 if self.written == "root" else 1.0 / number) == written:
                    return rounded(simple)
        return exact

    def __pow__(self, exponent: float) -> Hole:
        return self._as("root", exponent == 0.5)

    def __rtruediv__(self, one: float) -> Hole:
        return self._as("inverse", one == 1)

    def _as(self, written: Literal_["root", "inverse"], known: bool) -> Hole:
        if not known or self.written != "as_is":
            raise TraceError(
                f"arithmetic on {self.name}, which a pattern catches", hint="x ** 0.5 and 1 / x can be caught"
            )
        return Hole(self.name, written)


@dataclass(frozen=True, slots=True)
class SizeOf:
    """The size of an axis of a value in a pattern, asked before shapes are known."""

    of: Value
    axis: int


@dataclass(frozen=True, slots=True)
class DTypeOf:
    """The dtype of a value in a pattern, asked before types are known."""

    of: Value


class _Leaf(Op):
    """An op of this room: its operands are counted, its attributes of fixed kinds in a fixed order."""

    arity: int | None = 0
    kinds: Mapping[str, type] = MappingProxyType({})

    def normal(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.arity is not None and len(operands) != self.arity:
            raise TypeRuleError(f"{self.name} of {len(operands)} operands", hint=f"it takes {self.arity}")
        if attrs.keys() != self.kinds.keys():
            raise TypeRuleError(
                f"{self.name} with the attributes ({', '.join(attrs)})", hint=f"it has ({', '.join(self.kinds)})"
            )
        for name, kind in self.kinds.items():
            if not isinstance(attrs[name], kind) or isinstance(attrs[name], bool):
                raise TypeRuleError(f"{self.name} with {name}={attrs[name]!r}", hint=f"it is a {kind.__name__}")
        return {name: attrs[name] for name in self.kinds}


class _Named(_Leaf):
    """A leaf whose type is one of its attributes."""

    def __init__(self, name: str, kinds: Mapping[str, type]) -> None:
        self.name = name
        self.kinds = kinds

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        return attrs["type"]


class _Const(_Leaf):
    name = "const"
    kinds = MappingProxyType({"value": Literal})

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        literal: Literal = attrs["value"]
        return TensorType(literal.dtype, literal.array.shape)


class _Unknown(Op):
    """A leaf of a pattern: it has no type, and no op above it does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        return None  # type: ignore[return-value]  # the one place where a type is unknown


class _Pack(_Leaf):
    name = "pack"
    arity = None

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        items = tuple(t for t in operands if isinstance(t, TensorType))
        if len(items) != len(operands):
            raise TypeRuleError("a tuple within a tuple", hint="pack tensors only")
        return TupleType(items)


class _Item(_Leaf):
    name = "item"
    arity = 1
    kinds = MappingProxyType({"index": int})

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        (of,) = operands
        index: int = attrs["index"]
        if not isinstance(of, TupleType):
            raise TypeRuleError(f"item {index} of {of}, which is one tensor", hint="use part or slice to take elements")
        if not 0 <= index < len(of.items):
            raise TypeRuleError(f"item {index} of {len(of.items)} results", hint="count from 0")
        return of.items[index]


INPUT = _Named("input", {"name": str, "type": TensorType})
PARAM = _Named("param", {"name": str, "type": TensorType})
ARGUMENT = _Named("argument", {"index": int, "type": TensorType})
CONST = _Const()
HOLE = _Unknown("hole")
NUMBER = _Unknown("number")
ITEM = _Item()
PACK = _Pack()

LEAVES = (INPUT, PARAM, ARGUMENT, CONST, ITEM, PACK)


def input(name: str, type: TensorType) -> Value:
    """Return a tensor that every run takes."""
    return make(INPUT, (), INPUT.normal((), {"name": name, "type": type}))


def param(name: str, type: TensorType) -> Value:
    """Return a tensor that is bound once and used by many runs."""
    return make(PARAM, (), PARAM.normal((), {"name": name, "type": type}))


def argument(index: int, type: TensorType) -> Value:
    """Return an operand of the sub-graph that it stands in."""
    return make(ARGUMENT, (), {"index": index, "type": type})


def constant(array: Array | float, dtype: DType | None = None) -> Value:
    """Return an array that is part of the graph, in this dtype."""
    try:
        literal = np.asarray(array, dtype=None if dtype is None else dtype.numpy)
    except (TypeError, ValueError, OverflowError) as error:
        expected = "an array" if dtype is None else f"an array of {dtype.name}"
        raise TypeRuleError(f"a constant that is not {expected}: {error}", hint="pass an array of one dtype") from None
    return make(CONST, (), {"value": Literal(literal)})


def scalar(number: complex | Hole, dtype: DType | None) -> Value:
    """Return a constant of rank 0. Without a dtype it is part of a pattern and stands for any."""
    if dtype is None or isinstance(number, Hole):
        return make(NUMBER, (), {"value": number})
    return make(CONST, (), {"value": _scalar_literal(repr(number), number, dtype)})


@lru_cache(maxsize=1024)
def _scalar_literal(spelled: str, number: complex, dtype: DType) -> Literal:
    """Models repeat a few numbers everywhere. `spelled` tells 0.0 from -0.0 and 1 from True."""
    return Literal(_cast(number, dtype))


def forget_scalars() -> None:
    """Drop the constants that `scalar` keeps. See `dovetail.testing.forget`."""
    _scalar_literal.cache_clear()


def _cast(number: complex, dtype: DType) -> Array:
    if number.imag != 0 and dtype.kind != "complex":
        raise TypeRuleError(f"{number} as {dtype.name}", hint="cast the tensor to c64 first")
    if dtype.is_integer:
        least, largest = whole_range(dtype)
        if not least <= number.real <= largest:
            raise TypeRuleError(f"{number} does not fit {dtype.name}", hint=f"{least} to {largest} fit")
        whole = int(number.real)
        if whole != number:
            raise TypeRuleError(f"{number} as {dtype.name}", hint="cast the tensor to a float type first")
        return np.array(whole, dtype.numpy)
    if dtype in NARROW and not holds(dtype, number.real):
        raise TypeRuleError(f"{number} does not fit {dtype.name}", hint=f"{dtype.range[0]} to {dtype.range[1]} fit")
    try:
        with np.errstate(over="ignore"):
            return np.array(number if dtype.kind == "complex" else number.real, dtype.numpy)
    except OverflowError:
        raise TypeRuleError(f"a whole number beyond {dtype.name}", hint="write it as a float: inf") from None


def hole(name: str) -> Value:
    """Return a tensor that a pattern catches."""
    return make(HOLE, (), {"name": name})


def item(of: Value, index: int) -> Value:
    """Return one result of an op that has several."""
    if of.op is PACK and 0 <= index < len(of.operands):
        return of.operands[index]
    return make(ITEM, (of,), {"index": index})


def pack(values: tuple[Value, ...]) -> Value:
    """Several tensors as the results of one value."""
    return make(PACK, values)


def scalar_of(value: Value) -> float | int | bool | complex | None:
    """Return the number that a one-element constant holds, or None."""
    if value.op is CONST:
        literal: Literal = value.attrs["value"]
        if literal.array.size == 1:
            return literal.array.item()
    return None
