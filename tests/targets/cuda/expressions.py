"""Expressions of a kernel as Python functions, which are made once for a launch.

A value is an integer of Python where all threads have the same i64, and a bool where they have the same bool: most
indices of a kernel are, and cost no call of NumPy. What depends on the thread alone is computed when its function is
made. All other values are arrays with an element for each thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_, i64
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Call, Expr, Extent, Load, Name, Number, Tensor, ThreadIndex
from tests.targets.cuda.arithmetic import BITS, COMPARISONS, INTEGERS, apply, inverted
from tests.targets.cuda.places import Affine, Known, Place, Value, affine

if TYPE_CHECKING:
    from tests.targets.cuda.threads import Threads

Function: TypeAlias = "Callable[[Threads, Array], Value]"
"""What an expression gives to the threads of a mask."""
_CLOCKS = ("clock", "clock_after")


class Expressions:
    """The functions of a launch, for blocks with a number of threads."""

    def __init__(self, block: int, lanes: int, size: Callable[[Size], int]) -> None:
        self.block, self.size = block, size
        self.every = np.ones(block, bool)
        self.every.flags.writeable = False
        threads = np.arange(block)
        self.indices = {
            "thread": affine(Known(threads), 0),
            "lane": affine(Known(threads % lanes), 0),
            "warp": affine(Known(threads // lanes), 0),
        }
        # Expressions and places are kept with their functions: an id is that of one object for as long as it exists.
        self.made: dict[int, tuple[Expr, Value | None, Function]] = {}
        self.places: dict[tuple[int, int, int], tuple[Tensor, Sequence[Expr], Place]] = {}

    def function(self, expr: Expr) -> Function:
        found = self.made.get(id(expr))
        return self._known(expr)[1] if found is None else found[2]

    def place(self, tensor: Tensor, at: Sequence[Expr], start: int) -> Place:
        """A place in a tensor; the own memory of a thread takes `start` bytes."""
        key = id(tensor), id(at), start if tensor.space == "private" else 0
        found = self.places.get(key)
        if found is None:
            terms = [(self.size(stride), *self._known(index)) for stride, index in zip(tensor.strides, at, strict=True)]
            if tensor.space == "private":
                terms.append((start, self.indices["thread"], _never))
            found = tensor, at, Place(self.size(tensor.offset), terms, self.block)
            self.places[key] = found
        return found[2]

    def filled(self, value: Value) -> Array:
        """The same for each thread."""
        if isinstance(value, np.ndarray):
            return value
        if isinstance(value, Affine):
            return value.array
        return np.full(self.block, value, bool if isinstance(value, bool) else np.int64)

    def _known(self, expr: Expr) -> tuple[Value | None, Function]:
        """What is known of an expression before a block runs, and its function."""
        found = self.made.get(id(expr))
        if found is None:
            constant, function = self._of(expr)
            found = self.made[id(expr)] = expr, constant, function if constant is None else _giving(constant)
        return found[1], found[2]

    def _of(self, expr: Expr) -> tuple[Value | None, Function]:
        match expr:
            case Number(value, dtype):
                return self._number(value.real if isinstance(value, complex) else value, dtype), _never
            case Extent(size):
                return self.size(size), _never
            case ThreadIndex("block"):
                return None, lambda threads, mask: threads.number
            case ThreadIndex(kind):
                return self.indices[kind], _never
            case Name(name):
                return None, lambda threads, mask: threads.names[name]
            case Load(tensor, at):
                return None, _remembered(lambda threads, mask: threads.load(tensor, at, mask), id(expr))
            case Call():
                return self._call(expr)

    def _number(self, value: float, dtype: DType) -> Value:
        if dtype is i64 or dtype is bool_:
            return bool(value) if dtype is bool_ else int(value)
        return np.full(self.block, value, dtype.numpy)

    def _call(self, expr: Call) -> tuple[Value | None, Function]:
        known = [self._known(x) for x in expr.operands]
        do = self._operation(expr)
        constants = [constant for constant, _ in known if constant is not None]
        if len(constants) == len(known) and expr.op not in _CLOCKS:
            return _once(do(*constants)), _never
        match known:
            case [(_, x)]:
                return None, _unary(do, x, id(expr))
            case [(_, x), (y, _)] if y is not None:
                return None, _unary(lambda value: do(value, y), x, id(expr))
            case [(_, x), (_, y)]:
                return None, _binary(do, x, y, id(expr))
            case _:
                each = [function for _, function in known]
                return None, _remembered(lambda threads, mask: do(*[x(threads, mask) for x in each]), id(expr))

    def _operation(self, expr: Call) -> Callable[..., Value]:
        """What an operation does with values, of which some may be the same for all threads."""
        op, dtype, filled = expr.op, expr.dtype, self.filled
        if op in COMPARISONS:
            return COMPARISONS[op]
        if op in INTEGERS and dtype is i64:
            return INTEGERS[op]
        if op == "bit_not" and (dtype is i64 or dtype is bool_):
            return inverted
        if op in BITS and (dtype is i64 or dtype is bool_):
            return BITS[op]

        def on_arrays(*xs: Value) -> Value:
            return apply(op, [filled(x) for x in xs], dtype)

        def cast(x: Value) -> Value:
            one = bool if dtype is bool_ else int
            return one(x) if isinstance(x, int) else on_arrays(x)

        def where(condition: Value, x: Value, y: Value) -> Value:
            return (x if condition else y) if isinstance(condition, int) else on_arrays(condition, x, y)

        if op == "cast" and (dtype is i64 or dtype is bool_):
            return cast
        if op in _CLOCKS:
            return lambda *_: np.full(self.block, time.perf_counter_ns())
        return where if op == "where" else on_arrays


def _once(value: Value) -> Value:
    """An integer, a bool or one with what is known of each thread."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.int64:
        return affine(Known(value), 0)
    if value.dtype == bool and (value == value[0]).all():
        return bool(value[0])
    return value


def _giving(constant: Value) -> Function:
    return lambda threads, mask: constant


def _never(threads: Threads, mask: Array) -> Value:
    raise AssertionError("a constant is not computed")


def _remembered(function: Function, key: int) -> Function:
    """A function that is asked once in a statement."""

    def remembered(threads: Threads, mask: Array) -> Value:
        found = threads.memo.get(key)
        if found is None:
            found = threads.memo[key] = function(threads, mask)
        return found

    return remembered


def _unary(do: Callable[[Value], Value], x: Function, key: int) -> Function:
    # As above, with a call less.
    def remembered(threads: Threads, mask: Array) -> Value:
        found = threads.memo.get(key)
        if found is None:
            found = threads.memo[key] = do(x(threads, mask))
        return found

    return remembered


def _binary(do: Callable[[Value, Value], Value], x: Function, y: Function, key: int) -> Function:
    def remembered(threads: Threads, mask: Array) -> Value:
        found = threads.memo.get(key)
        if found is None:
            found = threads.memo[key] = do(x(threads, mask), y(threads, mask))
        return found

    return remembered


__all__ = ["Expressions", "Function"]
