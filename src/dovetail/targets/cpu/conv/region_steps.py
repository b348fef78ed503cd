"""Cheap elementwise steps of a region after a convolution, as vector code that register tiles apply to their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from dovetail.codegen.llvm.handles import Mask, Vec
from dovetail.codegen.llvm.vector import FloatOrder, VectorBuilder
from dovetail.kernels.problems.region_steps import Operand

Lanes: TypeAlias = Vec | Mask
_Rule: TypeAlias = Callable[[VectorBuilder, Sequence[Lanes]], Lanes]


def apply_steps(t: VectorBuilder, steps: Sequence[tuple[str, tuple[Operand, ...]]], x: Vec) -> Vec:
    """The steps on a vector, after its activation."""
    found: list[Lanes] = [x]
    for op, operands in steps:
        found.append(RULES[op](t, [found[v] if isinstance(v, int) else t.constant(v) for v in operands]))
    return _vec(found[-1])


def _vec(x: Lanes) -> Vec:
    assert isinstance(x, Vec), "an element is a number here"
    return x


def _mask(x: Lanes) -> Mask:
    assert isinstance(x, Mask), "an element is true or false here"
    return x


def _contracted(instruction: str) -> _Rule:
    """Sums and products may become one instruction, as in the loops of a region of its own."""
    return lambda t, xs: Vec(t.let(f"{instruction} contract {t.vec} {_vec(xs[0])}, {_vec(xs[1])}"))


def _tested(how: FloatOrder) -> _Rule:
    return lambda t, xs: t.fcmp(how, _vec(xs[0]), _vec(xs[1]))


def _called(name: str) -> _Rule:
    """A function of LLVM's, of one vector or of two."""

    def rule(t: VectorBuilder, xs: Sequence[Lanes]) -> Vec:
        full = f"llvm.{name}.v{t.lanes}f32"
        t.use(f"declare {t.vec} @{full}({', '.join([t.vec] * len(xs))})")
        given = ", ".join(f"{t.vec} {_vec(x)}" for x in xs)
        return Vec(t.let(f"call {t.vec} @{full}({given})"))

    return rule


def _relu(t: VectorBuilder, xs: Sequence[Lanes]) -> Vec:
    (x,) = xs
    return t.select(t.fcmp("ole", _vec(x), t.constant(0.0)), t.constant(0.0), _vec(x))


RULES: Mapping[str, _Rule] = {
    "add": _contracted("fadd"),
    "sub": _contracted("fsub"),
    "mul": _contracted("fmul"),
    "neg": lambda t, xs: Vec(t.let(f"fneg {t.vec} {_vec(xs[0])}")),
    "abs": _called("fabs"),
    "relu": _relu,
    # NaN stays, and 0.0 is larger than -0.0.
    "maximum": _called("maximum"),
    "minimum": _called("minimum"),
    "floor": _called("floor"),
    "ceil": _called("ceil"),
    "trunc": _called("trunc"),
    "round": _called("roundeven"),
    "where": lambda t, xs: t.select(_mask(xs[0]), _vec(xs[1]), _vec(xs[2])),
    "is_nan": lambda t, xs: t.fcmp("uno", _vec(xs[0]), _vec(xs[0])),
    "equal": _tested("oeq"),
    "not_equal": _tested("une"),
    "less": _tested("olt"),
    "less_equal": _tested("ole"),
    "greater": _tested("ogt"),
    "greater_equal": _tested("oge"),
}
"""What each primitive of f32 is on vectors: the same arithmetic as that of a region of its own."""

__all__ = ["RULES", "apply_steps"]
