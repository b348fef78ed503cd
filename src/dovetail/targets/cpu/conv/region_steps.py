"""Elementwise steps of a region after a convolution, as vector code that every variant applies to its results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dovetail.codegen.llvm.maths import functions as maths
from dovetail.codegen.llvm.maths.text import Lines
from dovetail.codegen.llvm.types import literal
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_, f32
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.value import Value
from dovetail.library.activation import Activation
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.ops.convolution import conv, conv_transpose
from dovetail.ops.region import anchor_of, region

Operand: TypeAlias = int | float
"""The number of an earlier step, of which 0 is what the convolution gives, or a literal as a float."""
ANCHORS = (conv, conv_bias_act, conv_transpose)
CHEAP = 2
"""Weight up to which steps are applied in registers; above it a pass over L1 costs less than the code in every tile."""


class Emitter(Protocol):
    """What writes instructions on vectors."""

    @property
    def lanes(self) -> int: ...
    def let(self, instruction: str) -> str: ...
    def use(self, function: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Steps:
    """An activation by name, then steps: each an op with its operands."""

    act: Activation
    steps: tuple[tuple[str, tuple[Operand, ...]], ...]

    def __str__(self) -> str:
        """What they are called in the name of a function: all that its text depends on."""
        return f"steps_{hashlib.blake2b(repr((self.act, self.steps)).encode(), digest_size=8).hexdigest()}"

    @property
    def is_cheap(self) -> bool:
        """Whether they are so few instructions that every register tile has them."""
        return self.act in ("none", "relu", "relu6") and sum(_WEIGHT.get(op, 1) for op, _ in self.steps) <= CHEAP


_WEIGHT: Mapping[str, int] = {"relu": 2, "where": 1, "div": 4, "sqrt": 8, "rsqrt": 12, "reciprocal": 4,
                              "exp": 20, "erf": 20, "tanh": 20, "sigmoid": 24}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """The convolution inside a region: its operands among those of the region, and the steps after it."""

    call: Value
    """The convolution as it stands in the body."""
    operands: Mapping[str, Value]
    steps: Steps


def find_convolution(value: Value) -> Found | None:
    """A region as a convolution with steps on its result alone; None for other regions."""
    if value.op is not region or len(value.attrs["body"].results) != 1:
        return None
    anchor = anchor_of(value.attrs["body"])
    if anchor is None or anchor.op not in ANCHORS:
        return None
    (result,) = value.attrs["body"].results
    if any(v.op is not leaf.ARGUMENT for v in anchor.operands):
        return None
    if anchor.op is conv_bias_act:
        call = conv_bias_act.of(anchor)
        inside: dict[str, Value | None] = {"x": call.x, "w": call.w, "b": call.b, "residual": call.residual}
        act: Activation = call.act
    else:
        inside, act = {"x": anchor.operands[0], "w": anchor.operands[1]}, "none"
    steps = steps_of(result, anchor)
    operands = {name: value.operands[int(v.attrs["index"])] for name, v in inside.items() if v is not None}
    return None if steps is None else Found(anchor, operands, Steps(act, steps))


def steps_of(result: Value, source: Value) -> tuple[tuple[str, tuple[Operand, ...]], ...] | None:
    """What is done to a tensor, element by element; None where it is not vector code, or something else is read."""
    while True:
        lower = rebuild_values([result], lambda v, given: None if v is source else v.op.expansion(given, v.attrs))
        if lower[result] is result:
            break
        result = lower[result]
    number: dict[Value, Operand] = {source: 0}
    found: list[tuple[str, tuple[Operand, ...]]] = []
    for value in _above(result, source):
        literal_of = leaf.scalar_of(value)
        if literal_of is not None and isinstance(literal_of, float) and value.dtype is f32:
            number[value] = literal_of
            continue
        if value.op.name not in RULES or value.shape != source.shape or not all(v in number for v in value.operands):
            return None
        if value.dtype not in (f32, bool_) or (value.dtype is bool_) != (value.op.name in _TRUTHS):
            return None
        found.append((value.op.name, tuple([number[v] for v in value.operands])))
        number[value] = len(found)
    return tuple(found) if result in number and isinstance(number[result], int) and result.dtype is f32 else None


def _above(result: Value, source: Value) -> list[Value]:
    """What a result needs above a source, operands first."""
    order: dict[Value, None] = {}
    stack = [result]
    while stack:
        value = stack[-1]
        pending = [v for v in value.operands if v not in order and v is not source]
        if value is source or value in order or not pending:
            stack.pop()
            if value is not source:
                order[value] = None
        else:
            stack += pending
    return list(order)


class _Lanes(Lines):
    """The instructions of scalar functions, on vectors."""

    def __init__(self, t: Emitter) -> None:
        super().__init__(f32, [], {})
        self.emitter = t
        self.kind, self.suffix = f"<{t.lanes} x float>", f"v{t.lanes}f32"
        self.whole, self.truth = f"<{t.lanes} x i32>", f"<{t.lanes} x i1>"

    def let(self, instruction: str) -> str:
        return self.emitter.let(instruction)

    def number(self, x: str | float) -> str:
        return x if isinstance(x, str) else f"splat (float {literal(x, f32)})"

    def call(self, name: str, *xs: str | float) -> str:
        self.emitter.use(f"declare {self.kind} @{name}({', '.join([self.kind] * len(xs))})")
        return self.let(f"call {self.kind} @{name}({', '.join(f'{self.kind} {self.number(x)}' for x in xs)})")

    def select(self, where: str, x: str | float, y: str | float) -> str:
        return self.let(f"select {self.truth} {where}, {self.kind} {self.number(x)}, {self.kind} {self.number(y)}")

    def integer(self, instruction: str, x: str, y: str | int) -> str:
        return super().integer(instruction, x, f"splat (i32 {y})" if isinstance(y, int) else y)


def apply_steps(t: Emitter, steps: Sequence[tuple[str, tuple[Operand, ...]]], x: str) -> str:
    """The steps on a vector, after its activation."""
    text = _Lanes(t)
    found: list[str] = [x]
    for op, operands in steps:
        found.append(RULES[op](text, [found[v] if isinstance(v, int) else text.number(v) for v in operands]))
    return found[-1]


_Rule: TypeAlias = Callable[[_Lanes, Sequence[str]], str]


def _contracted(instruction: str) -> _Rule:
    """Sums and products may become one instruction, as in the loops of a region of its own."""
    return lambda t, xs: t.let(f"{instruction} contract {t.kind} {xs[0]}, {xs[1]}")


def _tested(how: str) -> _Rule:
    return lambda t, xs: t.test(how, xs[0], xs[1])


def _intrinsic(name: str) -> _Rule:
    return lambda t, xs: t.intrinsic(name, *xs)


def _function(of: Callable[[Lines, str], str]) -> _Rule:
    return lambda t, xs: of(t, xs[0])


def _extreme(name: str) -> _Rule:
    """The larger or smaller of two; NaN stays, and of two zeros it is either."""

    def rule(t: _Lanes, xs: Sequence[str]) -> str:
        full = f"llvm.{name}.{t.suffix}"
        t.emitter.use(f"declare {t.kind} @{full}({t.kind}, {t.kind})")
        return t.let(f"call nsz {t.kind} @{full}({t.kind} {xs[0]}, {t.kind} {xs[1]})")

    return rule


_TRUTHS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "is_nan"})
RULES: Mapping[str, _Rule] = {
    "add": _contracted("fadd"),
    "sub": _contracted("fsub"),
    "mul": _contracted("fmul"),
    "div": lambda t, xs: t.div(xs[0], xs[1]),
    "neg": lambda t, xs: t.neg(xs[0]),
    "abs": _intrinsic("fabs"),
    "relu": lambda t, xs: t.select(t.test("olt", xs[0], 0.0), 0.0, xs[0]),
    "maximum": _extreme("maximum"),
    "minimum": _extreme("minimum"),
    "sqrt": _intrinsic("sqrt"),
    "rsqrt": lambda t, xs: t.div(1.0, t.sqrt(xs[0])),
    "reciprocal": lambda t, xs: t.div(1.0, xs[0]),
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "exp": _function(maths.exp),
    "erf": _function(maths.erf),
    "tanh": _function(maths.tanh),
    "sigmoid": _function(maths.sigmoid),
    "where": lambda t, xs: t.select(xs[0], xs[1], xs[2]),
    "is_nan": lambda t, xs: t.test("uno", xs[0], xs[0]),
    "equal": _tested("oeq"),
    "not_equal": _tested("une"),
    "less": _tested("olt"),
    "less_equal": _tested("ole"),
    "greater": _tested("ogt"),
    "greater_equal": _tested("oge"),
}
"""What each primitive of f32 is on vectors: the same arithmetic as that of a region of its own."""

__all__ = ["ANCHORS", "RULES", "Found", "Steps", "apply_steps", "find_convolution", "steps_of"]
