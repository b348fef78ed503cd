"""One call of an operator as a rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Protocol

from dovetail import ops
from dovetail.frontends.shared import site
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.torch.exported import Body, Call, Real, Unknown
from dovetail.frontends.torch.importing.promotion import common_dtype
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import DType, f32, f64
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops import build


class Surroundings(site.Surroundings, Protocol):
    """What a call can ask of the import that it is part of."""

    def reads(self, call: Call, index: int) -> bool:
        """Whether anything reads a result of a call that has several."""
        ...


class Nested:
    """A sub-graph as a rule sees it: a function of values and numbers."""

    def __init__(self, body: Body, run: Callable[[Body, Sequence[Any], bool], tuple[Any, ...]]) -> None:
        self.body = body
        self._run = run

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        """Its results for these arguments."""
        return self._run(self.body, given, False)

    def of_each(self, *given: Any) -> tuple[Any, ...]:
        """Its results for each element: the sub-graph is a function of numbers, and is given tensors that broadcast."""
        return self._run(self.body, given, True)


class Node(site.Site):
    """One call: its operator, what torch says about its results, and what its rule may ask."""

    def __init__(self, call: Call, around: Surroundings) -> None:
        super().__init__(around)
        self.call = call
        self.around = around

    @property
    def op_type(self) -> str:
        return self.call.op.removeprefix("aten.")

    @property
    def where(self) -> str:
        return self.call.where

    def makes(self, index: int) -> bool:
        """Whether anything reads this result."""
        return self.around.reads(self.call, index)

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of all results."""
        found = self.call.result
        return tuple([self._tensor(r) for r in (found if isinstance(found, tuple) else (found,))])

    @property
    def type(self) -> TensorType:
        """The type of the result, or of the first of several."""
        return self.type_of(0)

    def type_of(self, index: int) -> TensorType:
        found = self.call.result
        return self._tensor(found[index] if isinstance(found, tuple) else found)

    def _tensor(self, found: Any) -> TensorType:
        if isinstance(found, TensorType):
            return found
        if isinstance(found, Unknown):
            raise self.unsupported(found.reason, hint="compute in another type")
        raise self.malformed(f"a {type(found).__name__} where a tensor is expected")

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def value(self, number: Any, dtype: DType) -> Value:
        """A number, a size or a tensor, in a dtype."""
        if isinstance(number, Value):
            return cast(number, dtype)
        if isinstance(number, Dim):
            return cast(ops.extent(size=number), dtype)
        if isinstance(number, Real):
            return cast(_real_value(number), dtype)
        if isinstance(number, float) and dtype.is_integer:
            number = int(number)
        if isinstance(number, int) and dtype.is_integer and not isinstance(number, bool):
            number = _wrapped(number, dtype)
        return leaf.scalar(bool(number) if dtype.kind == "bool" else number, dtype)

    def promoted(self, *operands: Any, floating: bool = False) -> tuple[Value, ...]:
        """Operands in the dtype that torch computes in; `floating` makes f32 of integers."""
        dtype = common_dtype(operands)
        if floating and not dtype.is_inexact:
            dtype = f32
        return tuple(self.value(o, dtype) for o in operands)


def _real_value(number: Real) -> Value:
    """A float of sizes in f64, as Python computes it."""
    if number.op == "size":
        return cast(size_value(number.arguments[0]), f64)
    if number.op == "number":
        return leaf.scalar(number.arguments[0], f64)
    given = [_real_value(one) for one in number.arguments]
    return ops.sqrt(given[0]) if number.op == "sqrt" else reduce(_REALS[number.op], given)


_REALS: dict[str, Callable[[Value, Value], Value]] = {"add": ops.add, "mul": ops.mul, "div": ops.div, "pow": ops.pow_}


def _wrapped(number: int, dtype: DType) -> int:
    """An integer as torch stores it: modulo the range of its dtype."""
    span = 1 << dtype.bits
    number %= span
    return number - span if dtype.kind == "int" and number >= span // 2 else number


def axes_of(x: Value, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    """Axes counted from the end, in order; all of them where none is named."""
    if x.rank == 0:
        return ()
    listed = (dim,) if isinstance(dim, int) else tuple(dim or ())
    return tuple(sorted({(d % x.rank) - x.rank for d in listed})) if listed else tuple(range(-x.rank, 0))


def axis_of(x: Value, dim: int) -> int:
    """One axis counted from the end."""
    return dim if dim < 0 else dim - max(x.rank, 1)


def with_axis(x: Value) -> Value:
    """x, with an axis of size 1 where it has none: torch lets axes 0 and -1 of a scalar be named."""
    return x if x.rank else build.reshape(x, (1,))


def common_shape(x: Sequence[Size], y: Sequence[Size]) -> tuple[Size, ...]:
    """The shape that two shapes broadcast to."""
    rank = max(len(x), len(y))
    a, b = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (x, y))
    return tuple([q if p == 1 else p for p, q in zip(a, b, strict=True)])


WIDE = (f32, f64)
