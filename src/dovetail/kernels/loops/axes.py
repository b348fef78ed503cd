"""Axes as factors: the loops that the values of a body have in common.

An axis is a product of factors, the outermost first; an axis of size 1 has none. Values that are combined element by
element share their factors, a view of a computed value only arranges them anew, and a reduction drops some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from dovetail import ops
from dovetail.ir.dim import Size
from dovetail.ir.value import Op, Value
from dovetail.kernels.loops.body import Body, is_number
from dovetail.ops.view import quotient

Factors: TypeAlias = tuple[int, ...]
"""Numbers of factors; their product is the size of an axis."""
_Axes: TypeAlias = tuple[Factors, ...]


class UnalignedAxesError(Exception):
    """Axes that do not align; another kernel family takes the body."""


class AxisFactors:
    """The factors of every value of a body."""

    def __init__(self) -> None:
        self.sizes: list[Size] = []
        self._into: dict[int, Factors] = {}
        self._of: dict[Value, _Axes] = {}

    def of(self, value: Value) -> _Axes:
        """The factors of each axis."""
        return tuple(self.resolve(axis) for axis in self._of[value])

    def flat(self, value: Value) -> Factors:
        """The factors of all axes, the first axis outermost."""
        return tuple(f for axis in self.of(value) for f in axis)

    def strides(self, value: Value, strides: Sequence[Size]) -> dict[int, Size]:
        """How far each factor steps, given how far each axis does; in the order of axes, which loops keep."""
        by_factor: dict[int, Size] = {}
        for axis, stride in zip(self.of(value), strides, strict=True):
            by_factor |= dict.fromkeys(axis, 0)
            step = stride
            for factor in reversed(axis):
                by_factor[factor] = step
                step = step * self.sizes[factor]
        return by_factor

    def fresh(self, size: Size) -> Factors:
        if size == 1:
            return ()
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    def resolve(self, factors: Factors) -> Factors:
        """Return the current factors: some were cut or united with another."""
        while any(f in self._into for f in factors):
            factors = tuple(g for f in factors for g in self._into.get(f, (f,)))
        return factors

    def put(self, value: Value, axes: _Axes) -> None:
        self._of[value] = axes

    def check(self) -> None:
        """No value may run over one factor twice: that would be its diagonal."""
        for value in self._of:
            flat = self.flat(value)
            if len(set(flat)) != len(flat):
                raise UnalignedAxesError

    def unite(self, left: Factors, right: Factors) -> None:
        """Let two axes of one size have the same factors."""
        a, b = list(self.resolve(left)), list(self.resolve(right))
        while a and b:
            x, y = a.pop(0), b.pop(0)
            if x == y:
                continue
            if self.sizes[x] == self.sizes[y]:
                if x in self._into or y in self._into:
                    raise UnalignedAxesError
                self._into[y] = (x,)
            elif (rest := quotient(self.sizes[x], self.sizes[y])) is not None:
                a.insert(0, self._cut(x, y, rest))
            elif (rest := quotient(self.sizes[y], self.sizes[x])) is not None:
                b.insert(0, self._cut(y, x, rest))
            else:
                raise UnalignedAxesError
        if a or b:
            raise UnalignedAxesError

    def split(self, factors: Factors, size: Size) -> tuple[Factors, Factors]:
        """An axis cut in two, the first of a size."""
        rest, first = list(self.resolve(factors)), list[int]()
        left = size
        while left != 1:
            if not rest:
                raise UnalignedAxesError
            factor = rest.pop(0)
            more = quotient(left, self.sizes[factor])
            if more is None:
                other = quotient(self.sizes[factor], left)
                if other is None:
                    raise UnalignedAxesError
                (outer,) = self.fresh(left)
                rest.insert(0, self._cut(factor, outer, other))
                factor, more = outer, 1
            first.append(factor)
            left = more
        return tuple(first), tuple(rest)

    def _cut(self, factor: int, outer: int, size: Size) -> int:
        """Split a factor into an outer one and a new one, and return the new one."""
        (inner,) = self.fresh(size)
        if outer == factor or factor in self._into or outer in self._into:
            raise UnalignedAxesError
        self._into[factor] = (outer, inner)
        return inner


def find_axes(body: Body, reduced: Callable[[Value], tuple[int, ...]]) -> AxisFactors | None:
    """The factors of the arguments, views and computed values; None where they do not go together.

    `reduced` gives the axes that a value sums up or the like, none where it is elementwise or a view.
    """
    axes = AxisFactors()
    try:
        _follow(axes, body, reduced)
        axes.check()
    except UnalignedAxesError:
        return None
    return axes


def _follow(axes: AxisFactors, body: Body, reduced: Callable[[Value], tuple[int, ...]]) -> None:
    for value in body.views:
        axes.put(value, tuple(axes.fresh(n) for n in value.shape))
    for value in body.order:
        gone = reduced(value)
        if not value.op.elementwise and is_number(value.operands[0]):
            raise UnalignedAxesError
        if gone:
            of = axes.of(value.operands[0])
            axes.put(value, tuple(() if i - len(of) in gone else axis for i, axis in enumerate(of)))
        elif value.op.elementwise:
            axes.put(value, _together(axes, value))
        elif value.op in _VIEWS:
            axes.put(value, _VIEWS[value.op](axes, value, axes.of(value.operands[0]), value.attrs))
        else:
            raise UnalignedAxesError


def _together(axes: AxisFactors, value: Value) -> _Axes:
    """Element by element: an axis of an operand is that of the result, or is repeated along it."""
    factors: list[Factors] = [()] * value.rank
    for operand in value.operands:
        if is_number(operand):
            continue
        for i, axis in enumerate(axes.of(operand), value.rank - operand.rank):
            if not axis:
                continue
            if factors[i]:
                axes.unite(factors[i], axis)
            else:
                factors[i] = axis
    return tuple(factors)


def _split(axes: AxisFactors, value: Value, of: _Axes, attrs: Mapping[str, Any]) -> _Axes:
    at = int(attrs["axis"]) + len(of)
    return (*of[:at], *axes.split(of[at], value.shape[at]), *of[at + 1 :])


def _merge(axes: AxisFactors, value: Value, of: _Axes, attrs: Mapping[str, Any]) -> _Axes:
    last = int(attrs["axis"]) + len(of)
    first = last - int(attrs["count"]) + 1
    return (*of[:first], tuple(f for axis in of[first : last + 1] for f in axis), *of[last + 1 :])


def _unsqueeze(axes: AxisFactors, value: Value, of: _Axes, attrs: Mapping[str, Any]) -> _Axes:
    rest = iter(of)
    return tuple([() if a - value.rank in attrs["axes"] else next(rest) for a in range(value.rank)])


def _squeeze(axes: AxisFactors, value: Value, of: _Axes, attrs: Mapping[str, Any]) -> _Axes:
    return tuple([axis for a, axis in enumerate(of) if a - len(of) not in attrs["axes"]])


def _permute(axes: AxisFactors, value: Value, of: _Axes, attrs: Mapping[str, Any]) -> _Axes:
    order: tuple[int, ...] = attrs["order"]
    return (*of[: len(of) - len(order)], *[of[a] for a in order])


def _expand(axes: AxisFactors, value: Value, of: _Axes, attrs: Mapping[str, Any]) -> _Axes:
    at = int(attrs["axis"]) + len(of)
    return (*of[:at], axes.fresh(value.shape[at]), *of[at + 1 :])


def is_view(value: Value) -> bool:
    """Whether a computed value is seen with its factors arranged anew."""
    return value.op in _VIEWS


_VIEWS: Mapping[Op, Callable[[AxisFactors, Value, _Axes, Mapping[str, Any]], _Axes]] = {
    ops.split: _split,
    ops.merge: _merge,
    ops.unsqueeze: _unsqueeze,
    ops.squeeze: _squeeze,
    ops.permute: _permute,
    ops.expand: _expand,
}
