"""What becomes of the sums of a convolution, as LLVM's text: bias, residual add and activation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail.codegen.llvm.maths import lanes as maths
from dovetail.codegen.llvm.module import Written
from dovetail.library.activation import Activation
from dovetail.targets.cpu.conv.patch import BlockText
from dovetail.targets.cpu.conv.region_steps import Steps, apply_steps

IN_REGISTERS: tuple[Activation, ...] = ("none", "relu", "relu6", "hard_sigmoid", "hard_swish")
"""Activations of so few instructions that every register tile has them; the others are done where results lie."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Whether there is a bias, whether a tensor is added then, and the activation at the end."""

    act: Activation | Steps = "none"
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
        act = self.in_registers
        marks = (("bias", self.bias), ("residual", self.residual), (act, act != "none"))
        return "".join(f".{mark}" for mark, holds in marks if holds)

    @property
    def in_registers(self) -> Activation | Steps:
        """The activation, if register tiles do it themselves."""
        return "none" if self.finishes else self.act

    @property
    def finishes(self) -> bool:
        """Whether results are activated where they are stored, in a pass of its own over L1."""
        return not self.act.is_cheap if isinstance(self.act, Steps) else self.act not in IN_REGISTERS


def activated(t: BlockText, act: Activation | Steps, x: str) -> str:
    """An activation, on a vector; NaN stays."""
    if isinstance(act, Steps):
        return apply_steps(t, act.steps, activated(t, act.act, x))
    match act:
        case "none":
            return x
        case "relu":
            return t.select(t.compare("olt", x, t.number(0.0)), t.number(0.0), x)
        case "relu6":
            return t.clamp(x, 0.0, 6.0)
        case "hard_sigmoid":
            return t.clamp(t.fma(x, t.number(1 / 6), t.number(0.5)), 0.0, 1.0)
        case "hard_swish":
            return t.mul(x, activated(t, "hard_sigmoid", x))
        case "sigmoid":
            return _sigmoid(t, x)
        case "silu":
            return t.mul(x, _sigmoid(t, x))
        case "tanh":
            return maths.tanh(t, x)
        case "gelu":
            bent = maths.erf(t, t.mul(x, t.number(0.5**0.5)))
        case "gelu_tanh":
            cube = t.mul(t.mul(x, x), x)
            bent = maths.tanh(t, t.mul(t.number(0.7978845608028654), t.fma(cube, t.number(0.044715), x)))
    return t.mul(t.mul(t.number(0.5), x), t.add(t.number(1.0), bent))


def finish_text(lanes: int, epilogue: Epilogue) -> Written:
    """Activate a row of results where it lies, with a row of the residual if there is one."""
    t = BlockText(lanes)
    if epilogue.residual:
        _add_row(t, epilogue.act)
    else:
        _activate_row(t, epilogue.act)
    given = "ptr noalias %y, ptr noalias readonly %r, i64 %step" if epilogue.residual else "ptr noalias %y"
    return t.function(f"void @kernel.finish({given}, i64 %count) noinline nounwind"), tuple(t.used)


def _activate_row(t: BlockText, act: Activation | Steps) -> None:
    whole = t.quotient("%count", t.lanes)
    with t.loop("0", whole) as i:
        place = t.at("%y", t.times(i, 4 * t.lanes))
        t.store(activated(t, act, t.load(place)), place)
    with t.loop(whole, t.rounded_up("%count", t.lanes)) as i:
        first = t.times(i, t.lanes)
        place, some = t.at("%y", t.times(first, 4)), t.lanes_within(first, "%count")
        t.store_where(some, activated(t, act, t.load_where(some, place)), place)


def _add_row(t: BlockText, act: Activation | Steps) -> None:
    """The same with a residual whose elements lie `step` bytes apart."""
    dense = t.let("icmp eq i64 %step, 4")
    whole = t.chosen(dense, t.quotient("%count", t.lanes), 0)
    with t.loop("0", whole) as i:
        by = t.times(i, 4 * t.lanes)
        place = t.at("%y", by)
        t.store(activated(t, act, t.add(t.load(place), t.load(t.at("%r", by)))), place)
    with t.loop(whole, t.rounded_up("%count", t.lanes)) as i:
        first = t.times(i, t.lanes)
        some = t.lanes_within(first, "%count")
        place, beside = t.at("%y", t.times(first, 4)), t.at("%r", t.times(first, "%step"))
        x = t.load_where(some, place)
        with t.when(dense):
            t.store_where(some, activated(t, act, t.add(x, t.load_where(some, beside))), place)
        with t.otherwise(dense):
            found = t.gather_where(some, beside, "%step", t.number(0.0))
            t.store_where(some, activated(t, act, t.add(x, found)), place)


def _sigmoid(t: BlockText, x: str) -> str:
    """A vector's sigmoid. What is no normal number is 0: a sum of such takes a hundred times as long."""
    falling = t.exp_of_negative(t.let(f"fneg {t.kind} {t.intrinsic('fabs', x)}"))
    one = t.number(1.0)
    return t.div(t.select(t.compare("olt", x, t.number(0.0)), falling, one), t.add(falling, one))
