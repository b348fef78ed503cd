"""What a small tensor holds, as far as it is known before a run: numbers, and sizes that are symbols.

Exporters compute shapes with the operators of the model. This follows such a computation through the primitives that
it was imported as, element by element, so that `Shape → Gather → Mul → Concat → Reshape` ends in sizes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np

from dovetail import ops
from dovetail.errors import DovetailError
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, divide, floordiv, largest, smallest
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType
from dovetail.ir.value import Op, Value
from dovetail.ops import build
from dovetail.ops.primitive import Primitive
from dovetail.passes.fold_limit import is_cheap_to_fold

MOST_ELEMENTS = 4096
"""Tensors that say something about shapes are small; larger ones are not followed."""

Contents: TypeAlias = Array
"""An array of objects: ints, floats and bools, or `Dim` where a size is not known yet."""


class Follower:
    """Remembers the contents of values; each value is followed once."""

    def __init__(self) -> None:
        self._known: dict[Value, Contents | None] = {}
        self._counts: dict[Size, Value] = {}

    def note_count(self, size: Size, number: Value) -> None:
        """Say which number the run computes for a new symbol."""
        self._counts[size] = number

    def count_of(self, size: Size) -> Value | None:
        """The number that the run computes for a symbol; None for other sizes."""
        return self._counts.get(size)

    def contents(self, value: Value) -> Contents | None:
        """What the value holds in every run, or None."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current in self._known:
                pending.pop()
            elif not _may_be_known(current):
                self._known[current] = None
            else:
                ahead = [v for v in current.operands if v not in self._known]
                if ahead:
                    pending += ahead
                else:
                    self._known[current] = self._follow(current)
        return self._known[value]

    def put(self, value: Value, contents: Contents | None) -> None:
        """Say what a value holds; for arguments of sub-graphs, whose values are outside."""
        self._known[value] = contents

    def _follow(self, value: Value) -> Contents | None:
        operands = [self._known[v] for v in value.operands]
        if any(o is None for o in operands):
            return None
        try:
            found = _computed(value, cast(list[Contents], operands))
        except (DovetailError, ArithmeticError, LookupError, TypeError, ValueError):
            return None  # what fails here fails again in the run, with its place
        return found if found is None or found.shape == value.shape else None


def _may_be_known(value: Value) -> bool:
    type = value.known_type
    if not isinstance(type, TensorType) or not type.is_static or cast(int, type.count) > MOST_ELEMENTS:
        return False
    return value.op is leaf.CONST or isinstance(value.op, Primitive)


def _computed(value: Value, operands: list[Contents]) -> Contents | None:
    op = value.op
    if op is leaf.CONST:
        return cast(Array, value.attrs["value"].array).astype(object)
    if op is ops.extent:
        return _one(value.attrs["size"])
    if not isinstance(op, Primitive) or any(isinstance(a, Dim) for a in value.attrs.values()):
        return None
    if not is_cheap_to_fold(value.attrs):
        return None
    if all(_is_plain(o) for o in operands):
        arrays = [o.astype(v.dtype.numpy) for o, v in zip(operands, value.operands, strict=True)]
        result = op.compute(*arrays, **value.attrs)
        return None if isinstance(result, tuple) else result.astype(value.dtype.numpy).astype(object)
    if op in _MOVES:
        return cast(Array, op.compute(*_as_indices(op, operands), **value.attrs))
    if op in _CASTS:
        return operands[0] if _keeps_sizes(value.dtype) else None
    if op in _REDUCTIONS:
        return _reduced(_REDUCTIONS[op], operands[0], value)
    by_element = _quotient(value) if op is ops.div else _BY_ELEMENT.get(op)
    if by_element is None:
        return None
    found = np.frompyfunc(by_element, len(operands), 1)(*operands)
    result = np.asarray(found, dtype=object)
    return None if any(x is None for x in result.flat) else result


def _as_indices(op: Op, operands: list[Contents]) -> list[Array]:
    """Indices are numbers to NumPy; what is moved stays as it is."""
    return [o.astype(np.int64) if i == 1 and op in _INDEXED else o for i, o in enumerate(operands)]


def _one(x: Any) -> Contents:
    found = np.empty((), dtype=object)
    found[()] = x
    return found


def _is_plain(contents: Contents) -> bool:
    return not any(isinstance(x, Dim) for x in contents.flat)


def _keeps_sizes(dtype: DType) -> bool:
    """Whether sizes survive in a type. f32 rounds those above 2**24, which no exporter means."""
    return dtype.bits >= 32 and dtype.kind in ("int", "uint", "float")


def _reduced(function: Callable[[Any, Any], Any], x: Contents, value: Value) -> Contents | None:
    axes: tuple[int, ...] = value.attrs["axes"]
    rows = np.moveaxis(x, axes, tuple(range(-len(axes), 0))).reshape(-1, int(np.prod([x.shape[a] for a in axes])))
    if rows.shape[1] == 0:
        return None
    found = np.empty(rows.shape[0], dtype=object)
    for i, row in enumerate(rows):
        total: Any = row[0]
        for item in row[1:]:
            total = function(total, item)
            if total is None:
                return None
        found[i] = total
    return found.reshape(cast(tuple[int, ...], value.shape))


def sign_of(size: Size) -> int | None:
    """1, 0 or -1 where that follows from sizes being zero or more; None where it depends."""
    if isinstance(size, int):
        return (size > 0) - (size < 0)
    constant = next((c for monomial, c in size.terms if not monomial), 0)
    others = [c for monomial, c in size.terms if monomial]
    if constant > 0 and all(c > 0 for c in others):
        return 1
    if constant < 0 and all(c < 0 for c in others):
        return -1
    return None


def _is_size(x: Any) -> bool:
    return isinstance(x, int | Dim) and not isinstance(x, bool)


def _integer(x: Any) -> Any:
    """A float that is an integer counts as one where it meets sizes."""
    return int(x) if isinstance(x, float) and x.is_integer() and abs(x) < 2**48 else x


def _sized(function: Callable[..., Any]) -> Callable[..., Any]:
    def by_element(*xs: Any) -> Any:
        integers = [_integer(x) for x in xs]
        return function(*integers) if all(_is_size(x) for x in integers) else None

    return by_element


def _divided(x: Size, y: Size) -> Size | None:
    if isinstance(x, int) and isinstance(y, int):
        return None if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    if y == 0 or not _not_negative(y):
        return None
    exact = divide(x, y)
    if exact is not None:
        return exact
    # Truncation is rounding down where nothing is negative; a division by 0 means nothing anyway.
    return floordiv(x, y) if _not_negative(x) else floordiv(largest(x, 0), y) - floordiv(largest(-x, 0), y)


def _not_negative(size: Size) -> bool:
    if isinstance(size, int):
        return size >= 0
    return all(c > 0 for _, c in size.terms)


def _remainder(x: Size, y: Size) -> Size | None:
    """With the sign of x, as truncation leaves it."""
    whole = _divided(x, y)
    return None if whole is None else x - whole * y


def _modulus(x: Size, y: Size) -> Size | None:
    """With the sign of y: the remainder, where nothing is negative."""
    if isinstance(x, int) and isinstance(y, int):
        return None if y == 0 else x % y
    return _remainder(x, y) if _not_negative(x) else None


def _quotient(value: Value) -> Callable[[Any, Any], Any]:
    """Division as a value's dtype has it: cut for whole numbers, exact or unknown for floats."""
    if value.dtype.is_integer:
        return _sized(_divided)
    return _sized(divide)


def _equal(x: Any, y: Any) -> bool | None:
    if _is_size(x) and _is_size(y):
        sign = sign_of(x - y)
        return True if x == y else None if sign is None else False
    return None if isinstance(x, Dim) or isinstance(y, Dim) else x == y


def _compared(holds: Callable[[int], bool]) -> Callable[[Size, Size], bool | None]:
    def by_element(x: Size, y: Size) -> bool | None:
        sign = 0 if x == y else sign_of(x - y)
        return None if sign is None else holds(sign)

    return _sized(by_element)


def _not(x: bool | None) -> bool | None:
    return None if x is None else not x


def _not_equal(x: Any, y: Any) -> bool | None:
    return _not(_equal(x, y))


def _where(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


_MOVES = {
    *ops.movement.FAMILY,
    ops.gather,
    ops.gather_elements,
    ops.gather_nd,
} - {ops.pad}
_INDEXED = {ops.gather, ops.gather_elements, ops.gather_nd}
_CASTS = {ops.cast, ops.floor, ops.ceil, ops.round_, ops.trunc}
_REDUCTIONS: dict[Op, Callable[[Any, Any], Any]] = {
    ops.reduce_sum: _sized(operator.add),
    ops.reduce_prod: _sized(operator.mul),
    ops.reduce_max: _sized(largest),
    ops.reduce_min: _sized(smallest),
}
_BY_ELEMENT: dict[Op, Callable[..., Any]] = {
    ops.add: _sized(operator.add),
    ops.sub: _sized(operator.sub),
    ops.mul: _sized(operator.mul),
    ops.neg: _sized(operator.neg),
    ops.maximum: _sized(largest),
    ops.minimum: _sized(smallest),
    ops.mod: _sized(_modulus),
    ops.rem: _sized(_remainder),
    ops.equal: _equal,
    ops.not_equal: _not_equal,
    ops.less: _compared(lambda s: s < 0),
    ops.less_equal: _compared(lambda s: s <= 0),
    ops.greater: _compared(lambda s: s > 0),
    ops.greater_equal: _compared(lambda s: s >= 0),
    ops.where: _where,
    ops.bit_not: _not,
}


def settled(value: Value, contents: Contents) -> Value:
    """The value spelled as what it holds: a constant, or sizes side by side."""
    if _is_plain(contents):
        return leaf.constant(contents.astype(value.dtype.numpy))
    if value.rank > 1:
        return value
    parts = [_part(x, value.dtype) for x in contents.flat]
    return build.stack(parts) if value.rank else parts[0]


def _part(x: Any, dtype: DType) -> Value:
    return ops.extent(size=x, dtype=dtype) if isinstance(x, Dim) else leaf.scalar(x, dtype)


def sizes(contents: Contents) -> tuple[Size, ...] | None:
    """The contents as sizes in the order of memory, or None where something else stands among them."""
    found = [_integer(x) for x in contents.flat]
    return tuple(found) if all(_is_size(x) for x in found) else None
