"""Elementwise steps of a region after a convolution, as vector code that every variant applies to its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from dovetail.codegen.llvm.maths import functions as maths
from dovetail.codegen.llvm.maths.text import Lines
from dovetail.codegen.llvm.types import literal
from dovetail.ir.dtype import f32
from dovetail.kernels.problems.region_steps import Operand


class Emitter(Protocol):
    """What writes instructions on vectors."""

    @property
    def lanes(self) -> int: ...
    def let(self, instruction: str) -> str: ...
    def use(self, function: str) -> None: ...


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
    """The larger or smaller of two; NaN stays, and 0.0 is larger than -0.0."""

    def rule(t: _Lanes, xs: Sequence[str]) -> str:
        full = f"llvm.{name}.{t.suffix}"
        t.emitter.use(f"declare {t.kind} @{full}({t.kind}, {t.kind})")
        return t.let(f"call {t.kind} @{full}({t.kind} {xs[0]}, {t.kind} {xs[1]})")

    return rule


RULES: Mapping[str, _Rule] = {
    "add": _contracted("fadd"),
    "sub": _contracted("fsub"),
    "mul": _contracted("fmul"),
    "div": lambda t, xs: t.div(xs[0], xs[1]),
    "neg": lambda t, xs: t.neg(xs[0]),
    "abs": _intrinsic("fabs"),
    "relu": lambda t, xs: t.select(t.test("ole", xs[0], 0.0), 0.0, xs[0]),
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

__all__ = ["RULES", "apply_steps"]
