"""What examples of canonical rules are, and what several are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, INTEGERS, DType, f32
from dovetail.ir.value import Value


@dataclass(frozen=True, slots=True)
class Example:
    """How a value is written before and after a rule, in each of some dtypes."""

    rule: str
    before: Callable[[Value], Value]
    after: Callable[[Value], Value]
    dtypes: Sequence[DType] = (f32,)
    shape: tuple[int, ...] = (2, 3, 4)


NUMBERS = (*INTEGERS, *FLOATS)


def const(numbers: object, like: Value) -> Value:
    return leaf.constant(np.asarray(numbers), like.dtype)


def vector(x: Value) -> Value:
    return leaf.input("v", x.dtype[4])


def matrix(x: Value) -> Value:
    return leaf.input("w", x.dtype[4, 5])
