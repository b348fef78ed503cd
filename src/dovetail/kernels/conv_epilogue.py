"""What becomes of the sums of a convolution, as LLVM's text: bias, residual add and activation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail.ir.dtype import f32
from dovetail.kernels import llvm_scalar as scalar
from dovetail.kernels.conv_block import BlockText, Written
from dovetail.library.activation import Activation

AT_ONCE: tuple[Activation, ...] = ("none", "relu", "sigmoid", "silu")
"""Activations that are written with vectors."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Whether there is a bias, whether a tensor is added then, and the activation at the end."""

    act: Activation = "none"
    bias: bool = False
    residual: bool = False

    @property
    def pointers(self) -> tuple[str, ...]:
        """What a kernel points to."""
        return ("x", "w", *(["b"] if self.bias else []), *(["r"] if self.residual else []), "y")

    def sizes(self, residual: tuple[str, ...]) -> tuple[str, ...]:
        """What a kernel is told of the residual, if there is one."""
        return residual if self.residual else ()

    @property
    def before_residual(self) -> Epilogue:
        """What is done before the residual is added: all of it where there is none."""
        return replace(self, act="none", residual=False) if self.residual else self

    @property
    def marks(self) -> str:
        """What a register tile does itself, as a part of its name."""
        marks = (("bias", self.bias), ("residual", self.residual), ("relu", self.act == "relu"))
        return "".join(f".{mark}" for mark, holds in marks if holds)


def activated(t: BlockText, act: Activation, x: str) -> str:
    """An activation that needs no function, on a vector; the others are done where results lie."""
    # Not greater, so that NaN stays.
    return t.select(t.compare("olt", x, t.number(0.0)), t.number(0.0), x) if act == "relu" else x


def activated_wholly(t: BlockText, act: Activation, x: str) -> str:
    """An activation of `AT_ONCE`, on a vector."""
    return _sigmoid(t, act, x) if act in ("sigmoid", "silu") else activated(t, act, x)


def finish_text(lanes: int, epilogue: Epilogue) -> Written:
    """Activate a row of results where it lies, with a row of the residual if there is one."""
    t = BlockText(lanes)
    if epilogue.residual:
        _add_row(t, epilogue.act)
    elif epilogue.act in ("sigmoid", "silu"):
        _activate_row(t, epilogue.act)
    if epilogue.act not in AT_ONCE:
        with t.loop("0", "%count") as i:
            place = t.let(f"getelementptr inbounds float, ptr %y, i64 {i}")
            x = t.let(f"load float, ptr {place}, align 4")
            t(f"store float {_function(t, epilogue.act, x)}, ptr {place}, align 4")
    given = "ptr noalias %y, ptr noalias readonly %r, i64 %step" if epilogue.residual else "ptr noalias %y"
    return t.function(f"internal void @kernel.finish({given}, i64 %count) noinline nounwind"), tuple(t.used)


def _activate_row(t: BlockText, act: Activation) -> None:
    whole = t.quotient("%count", t.lanes)
    with t.loop("0", whole) as i:
        place = t.at("%y", t.times(i, 4 * t.lanes))
        t.store(activated_wholly(t, act, t.load(place)), place)
    with t.loop(whole, t.rounded_up("%count", t.lanes)) as i:
        first = t.times(i, t.lanes)
        place, some = t.at("%y", t.times(first, 4)), t.lanes_within(first, "%count")
        t.store_where(some, activated_wholly(t, act, t.load_where(some, place)), place)


def _add_row(t: BlockText, act: Activation) -> None:
    """The same with a residual whose elements lie `step` bytes apart."""
    dense = t.let("icmp eq i64 %step, 4")
    whole = t.chosen(dense, t.quotient("%count", t.lanes), 0)
    with t.loop("0", whole) as i:
        by = t.times(i, 4 * t.lanes)
        place = t.at("%y", by)
        t.store(activated_wholly(t, act, t.add(t.load(place), t.load(t.at("%r", by)))), place)
    with t.loop(whole, t.rounded_up("%count", t.lanes)) as i:
        first = t.times(i, t.lanes)
        some = t.lanes_within(first, "%count")
        place, beside = t.at("%y", t.times(first, 4)), t.at("%r", t.times(first, "%step"))
        x = t.load_where(some, place)
        with t.when(dense):
            t.store_where(some, activated_wholly(t, act, t.add(x, t.load_where(some, beside))), place)
        with t.otherwise(dense):
            found = t.gather_where(some, beside, "%step", t.number(0.0))
            t.store_where(some, activated_wholly(t, act, t.add(x, found)), place)


def _sigmoid(t: BlockText, act: Activation, x: str) -> str:
    """A vector's sigmoid, or x times it. What is no normal number is 0: a sum of such takes a hundred times as long."""
    falling = t.exp_of_negative(t.let(f"fneg {t.kind} {t.intrinsic('fabs', x)}"))
    one = t.number(1.0)
    share = t.div(t.select(t.compare("olt", x, t.number(0.0)), falling, one), t.add(falling, one))
    return share if act == "sigmoid" else t.mul(x, share)


def _function(t: BlockText, act: Activation, x: str) -> str:
    def apply(op: str, *operands: str) -> str:
        return scalar.apply(t, op, list(operands), [f32] * len(operands), f32, "contract")

    def number(value: float) -> str:
        return scalar.literal(value, f32)

    match act:
        case "none" | "relu" | "sigmoid" | "silu":
            return x
        case "tanh":
            return apply("tanh", x)
        case "gelu":
            inner = apply("erf", apply("mul", x, number(0.5**0.5)))
        case "gelu_tanh":
            cube = apply("mul", apply("mul", x, x), x)
            bent = apply("add", x, apply("mul", number(0.044715), cube))
            inner = apply("tanh", apply("mul", number(0.7978845608028654), bent))
    half = apply("mul", number(0.5), x)
    return apply("mul", half, apply("add", number(1.0), inner))
