"""Cheap elementwise steps of a region after a convolution, as vector code that register tiles apply to their sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias, TypeVar

from dovetail.codegen.llvm.arguments import Arguments
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Int, Mask, Ptr, Vec
from dovetail.codegen.llvm.kernel import SCRATCH, WORDS
from dovetail.codegen.llvm.maths import vectors as maths
from dovetail.codegen.llvm.once import HEAD
from dovetail.codegen.llvm.vector import FloatOrder, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.row_steps import row_steps
from dovetail.kernels.problems.convolution import Convolution
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.problems.region_steps import AXES, EpilogueSteps, Operand
from dovetail.kernels.spec import SharedFunction
from dovetail.library.activation import Activation
from dovetail.targets.cpu.row_epilogue import WORDS_REGION, RowWriter, more, row_epilogue, words_of

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


def activate(t: VectorBuilder, act: Activation | EpilogueSteps, x: Vec) -> Vec:
    """An activation of every lane, or the steps of a region; NaN stays."""
    if isinstance(act, EpilogueSteps):
        return apply_steps(t, act.steps, activate(t, act.act, x))
    match act:
        case "none":
            return x
        case "relu":
            return t.select(t.fcmp("ole", x, t.constant(0.0)), t.constant(0.0), x)
        case "relu6":
            return t.clamp(x, 0.0, 6.0)
        case "hard_sigmoid":
            return t.clamp(t.fma(x, t.constant(1 / 6), t.constant(0.5)), 0.0, 1.0)
        case "hard_swish":
            return t.fmul(x, activate(t, "hard_sigmoid", x))
        case "sigmoid":
            return maths.sigmoid(t, x)
        case "silu":
            return t.fmul(x, maths.sigmoid(t, x))
        case "tanh":
            return maths.tanh(t, x)
        case "gelu":
            bent = maths.erf(t, t.fmul(x, t.constant(0.5**0.5)))
        case "gelu_tanh":
            cube = t.fmul(t.fmul(x, x), x)
            inner = t.fma(cube, t.constant(0.044715), x)
            bent = maths.tanh(t, t.fmul(t.constant(0.7978845608028654), inner))
    return t.fmul(t.fmul(t.constant(0.5), x), t.fadd(t.constant(1.0), bent))


def finish_signature(epilogue: Epilogue) -> Signature:
    """`kernel.finish(y, count)`, or `kernel.finish(y, r, step, count)` with a residual."""
    residual = (Parameter("ptr", "r", "noalias readonly"), Parameter("i64", "step")) if epilogue.residual else ()
    return Signature("kernel.finish", (Parameter("ptr", "y", "noalias"), *residual, Parameter("i64", "count")))


def finish_row(device: CpuDevice, epilogue: Epilogue) -> Function:
    """Activate a row of results where it is, after a row of the residual was added if there is one."""
    t = VectorBuilder(device)
    y, count = Ptr("%y"), I64("%count")
    if epilogue.residual:
        _add_row(t, epilogue.act, y, Ptr("%r"), I64("%step"), count)
    else:
        _activate_row(t, epilogue.act, y, count)
    return t.function(finish_signature(epilogue))


def _activate_row(t: VectorBuilder, act: Activation | EpilogueSteps, y: Ptr, count: I64) -> None:
    full = t.sdiv(count, t.lanes)
    with t.loop(0, full) as i:
        here = t.ptr_add(y, t.mul(i, t.bytes))
        t.store(activate(t, act, t.load(here)), here)
    with t.loop(full, t.ceil_div(count, t.lanes)) as i:
        first = t.mul(i, t.lanes)
        here, some = t.ptr_add(y, t.mul(first, 4)), t.lanes_within(first, count)
        t.store_masked(some, activate(t, act, t.load_masked(some, here)), here)


def _add_row(t: VectorBuilder, act: Activation | EpilogueSteps, y: Ptr, r: Ptr, step: I64, count: I64) -> None:
    """The same with a residual whose elements are `step` bytes apart."""
    dense = t.icmp("eq", step, 4)
    full = t.select_int(dense, t.sdiv(count, t.lanes), 0)
    with t.loop(0, full) as i:
        by = t.mul(i, t.bytes)
        here = t.ptr_add(y, by)
        t.store(activate(t, act, t.fadd(t.load(here), t.load(t.ptr_add(r, by)))), here)
    with t.loop(full, t.ceil_div(count, t.lanes)) as i:
        first = t.mul(i, t.lanes)
        some = t.lanes_within(first, count)
        here, residual = t.ptr_add(y, t.mul(first, 4)), t.ptr_add(r, t.mul(first, step))
        x = t.load_masked(some, here)
        with t.when(dense):
            t.store_masked(some, activate(t, act, t.fadd(x, t.load_masked(some, residual))), here)
        with t.unless(dense):
            found = t.gather(some, residual, step, t.constant(0.0))
            t.store_masked(some, activate(t, act, t.fadd(x, found)), here)


ROWS = "rows"
"""The part of the workspace for finished rows, in variants that have no other place for them."""

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class WithRows:
    """A convolution with the code of its steps on rows, if it has such, and the functions that its kernels call."""

    convolution: Convolution
    shared: tuple[SharedFunction, ...] = ()


def with_rows(found: Convolution, of: StepProblem[CpuDevice]) -> WithRows | Refused:
    """The convolution of a step with the code of its steps on rows."""
    if not found.has_row_steps:
        return WithRows(found)
    assert found.call is not None, "only a region has steps"
    # The rows of a depthwise kernel are long, and LLVM unrolls its loop as it likes.
    lanes = 0 if found.w.shape[1] == 1 and int(found.attrs["groups"]) > 1 else of.device.lanes
    steps = row_steps(of, found.call, AXES, "channel", lanes)
    if isinstance(steps, Refused):
        return steps
    rows, function = row_epilogue(steps)
    return WithRows(replace(found, rows=rows, row_steps=steps), (function,))


def arguments_of(kind: type[A], epilogue: Epilogue, *residual: str, without: Iterable[str] = ()) -> Arguments[A]:
    """The arguments of a variant: with or without bias, residual and its sizes, and what steps on rows need."""
    absent = epilogue.absent(*residual) | set(without)
    if epilogue.rows is None and any(f.name == ROWS for f in fields(kind)):  # pyright: ignore[reportArgumentType]
        absent |= {ROWS}
    return Arguments(kind, absent, HEAD, more(epilogue.rows))


def row_regions(epilogue: Epilogue, rows: Size | None = None) -> dict[str, Size]:
    """The parts of the workspace that steps on rows need: `rows` bytes of finished rows, in variants that ask."""
    if epilogue.rows is None:
        return {}
    words: dict[str, Size] = {WORDS_REGION: words_of(epilogue.rows)}
    return words if rows is None else words | {ROWS: rows}


def writer_of(t: VectorBuilder, arguments: Arguments[Any], epilogue: Epilogue, y: Ptr) -> RowWriter | None:
    """What calls the epilogue, after the arguments of a kernel were loaded."""
    return RowWriter.of(t, arguments, epilogue.rows, WORDS, SCRATCH, y)


@dataclass(frozen=True, slots=True)
class RowTarget:
    """Where sums are transposed to before the epilogue reads them."""

    writer: RowWriter
    rows: Ptr

    @staticmethod
    def of(writer: RowWriter | None, rows: Ptr) -> RowTarget | None:
        return None if writer is None else RowTarget(writer, rows)

    def write(self, t: VectorBuilder, pitch: Int, filters: Int, pixels: Int, at: tuple[Int, Int, Int]) -> None:
        """Apply the steps to some filters, at an image, a filter and a pixel."""
        image, channel, pixel = at
        corner = {"image": image, "channel": channel, "column": pixel}
        self.writer.write(t, self.rows, pitch, filters, pixels, corner)
