"""What becomes of the sums of a convolution, the same in every engine.

Register tiles, or the function that transposes their sums, add bias and residual. Steps that read nothing else, an
activation or those of a region, are vector code: in register tiles if they are few, in transposes, or in a pass over a
finished row in L1. All others are a function of finished rows in the loop language, as after a GEMM: an engine stores
its results in rows of its workspace, as it finishes them anyhow, and calls the function on these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias, TypeVar

from dovetail.codegen.llvm.arguments import Arguments
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, TRUE, Int, Mask, Ptr, Vec
from dovetail.codegen.llvm.kernel import SCRATCH, WORDS
from dovetail.codegen.llvm.maths import vectors as maths
from dovetail.codegen.llvm.once import HEAD
from dovetail.codegen.llvm.vector import FloatOrder, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_, f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.row_steps import RowForm, row_steps, steps_above
from dovetail.kernels.loops.body import Body, reads
from dovetail.kernels.problems.convolution import AXES, Convolution
from dovetail.kernels.problems.epilogue import ROWS, Epilogue, Operand, RowSteps, Steps, bound_of
from dovetail.kernels.spec import SharedFunction
from dovetail.library.activation import activation
from dovetail.targets.cpu.row_epilogue import WORDS_REGION, RowWriter, more, row_epilogue, words_of

Lanes: TypeAlias = Vec | Mask
_Rule: TypeAlias = Callable[[VectorBuilder, Sequence[Lanes]], Lanes]
MOST_STEPS = 12
"""Steps that are vector code: a transpose applies them to as many vectors as there are lanes."""


def activate(t: VectorBuilder, steps: Steps, x: Vec) -> Vec:
    """The steps on a vector; NaN stays."""
    values: list[Lanes] = [x]
    for op, operands in steps:
        bound = bound_of(op, operands)
        if bound is not None:
            values.append(_clamped(t, op, _vec(values[int(operands[0])]), bound))
        else:
            values.append(RULES[op](t, [values[v] if isinstance(v, int) else t.constant(v) for v in operands]))
    return _vec(values[-1])


def _clamped(t: VectorBuilder, op: str, x: Vec, bound: float) -> Vec:
    """A comparison, which NaN passes; of two zeros the bound is taken from below."""
    far = t.fcmp("ogt" if op == "minimum" else "ole", x, t.constant(bound))
    return t.select(far, t.constant(bound), x)


def vector_steps(body: Body, anchor: Value) -> Steps | None:
    """The steps of a body as vector code; None where something else is read, or is no vector code."""
    if reads(body) or len(body.results) != 1 or body.results[0].dtype is not f32:
        return None
    numbers: dict[Value, Operand] = {anchor: 0}
    steps: list[tuple[str, tuple[Operand, ...]]] = []
    for value in body.order:
        literals = {v: leaf.scalar_of(v) for v in value.operands if v.dtype is f32}
        numbers |= {v: x for v, x in literals.items() if isinstance(x, float)}
        dtype = bool_ if value.op.name in _TESTS else f32
        if value.op.name not in RULES or value.shape != anchor.shape or value.dtype is not dtype:
            return None
        if not all(v in numbers for v in value.operands):
            return None
        steps.append((value.op.name, tuple([numbers[v] for v in value.operands])))
        numbers[value] = len(steps)
    return tuple(steps) if len(steps) <= MOST_STEPS else None


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
        operands = ", ".join(f"{t.vec} {_vec(x)}" for x in xs)
        return Vec(t.let(f"call {t.vec} @{full}({operands})"))

    return rule


RULES: Mapping[str, _Rule] = {
    "add": _contracted("fadd"),
    "sub": _contracted("fsub"),
    "mul": _contracted("fmul"),
    "neg": lambda t, xs: Vec(t.let(f"fneg {t.vec} {_vec(xs[0])}")),
    "abs": _called("fabs"),
    "relu": lambda t, xs: _clamped(t, "relu", _vec(xs[0]), 0.0),
    # NaN stays, and 0.0 is larger than -0.0.
    "maximum": _called("maximum"),
    "minimum": _called("minimum"),
    "floor": _called("floor"),
    "ceil": _called("ceil"),
    "trunc": _called("trunc"),
    "round": _called("roundeven"),
    "where": lambda t, xs: t.select(_mask(xs[0]), _vec(xs[1]), _vec(xs[2])),
    "sigmoid": lambda t, xs: maths.sigmoid(t, _vec(xs[0])),
    "tanh": lambda t, xs: maths.tanh(t, _vec(xs[0])),
    "erf": lambda t, xs: maths.erf(t, _vec(xs[0])),
    "is_nan": lambda t, xs: t.fcmp("uno", _vec(xs[0]), _vec(xs[0])),
    "equal": _tested("oeq"),
    "not_equal": _tested("une"),
    "less": _tested("olt"),
    "less_equal": _tested("ole"),
    "greater": _tested("ogt"),
    "greater_equal": _tested("oge"),
}
"""What each primitive of f32 is on vectors: the same arithmetic as that of a region of its own."""
_TESTS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "is_nan"})


def finish_signature(epilogue: Epilogue) -> Signature:
    """`kernel.finish(y, count)`, or `kernel.finish(y, r, step, count)` with a residual."""
    residual = (Parameter("ptr", "r", "noalias readonly"), Parameter("i64", "step")) if epilogue.residual else ()
    return Signature("kernel.finish", (Parameter("ptr", "y", "noalias"), *residual, Parameter("i64", "count")))


def finish_row(device: CpuDevice, epilogue: Epilogue) -> Function:
    """Apply the steps to a row of results where it is, after a row of the residual was added if there is one.

    Elements of the residual are `step` bytes apart.
    """
    t = VectorBuilder(device)
    y, count, steps, residual = Ptr("%y"), I64("%count"), epilogue.steps, epilogue.residual
    r, step = Ptr("%r"), I64("%step")
    full = t.sdiv(count, t.lanes)
    dense = t.icmp("eq", step, 4) if residual else TRUE
    if residual:
        full = t.select_int(dense, full, 0)
    with t.loop(0, full) as i:
        by = t.mul(i, t.bytes)
        here = t.ptr_add(y, by)
        x = t.load(here)
        t.store(activate(t, steps, t.fadd(x, t.load(t.ptr_add(r, by))) if residual else x), here)
    with t.loop(full, t.ceil_div(count, t.lanes)) as i:
        first = t.mul(i, t.lanes)
        some, here = t.lanes_within(first, count), t.ptr_add(y, t.mul(first, 4))
        x = t.load_masked(some, here)
        if not residual:
            t.store_masked(some, activate(t, steps, x), here)
        else:
            there = t.ptr_add(r, t.mul(first, step))
            with t.when(dense):
                t.store_masked(some, activate(t, steps, t.fadd(x, t.load_masked(some, there))), here)
            with t.unless(dense):
                residuals = t.gather(some, there, step, t.constant(0.0))
                t.store_masked(some, activate(t, steps, t.fadd(x, residuals)), here)
    return t.function(finish_signature(epilogue))


A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class WithEpilogue:
    """A convolution with the code of its epilogue, and the functions that its kernels call."""

    convolution: Convolution
    shared: tuple[SharedFunction, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """The steps on the sums of a convolution: vector code, then loops over finished rows."""

    steps: Steps = ()
    rows: RowSteps | None = None


def steps_of(conv: Convolution, of: StepProblem[object], form: RowForm) -> Applied | Refused:
    """All steps as vector code, or else the activation alone."""
    if conv.results_of_sums == (conv.sums,):
        return Applied()
    above = steps_above(of, conv.sums, conv.results_of_sums)
    whole = None if isinstance(above, Refused) else vector_steps(above, conv.sums)
    if whole is not None:
        return Applied(whole)
    if conv.act == "none":
        steps: Steps = ()
    else:
        activated = steps_above(of, conv.sums, (activation(conv.act, conv.sums),))
        assert not isinstance(activated, Refused), "activations are compiled"
        steps = vector_steps(activated, conv.sums) or ()
    rows = row_steps(of, conv.call, steps_above(of, conv.call, conv.results), AXES, form)
    return rows if isinstance(rows, Refused) else Applied(steps, rows)


def with_epilogue(conv: Convolution, of: StepProblem[CpuDevice]) -> WithEpilogue | Refused:
    """The convolution of a step with the code of its steps."""
    # The rows of a depthwise kernel are long, and LLVM unrolls its loop as it likes.
    lanes = 0 if conv.w.shape[1] == 1 and int(conv.attrs["groups"]) > 1 else of.device.lanes
    applied = steps_of(conv, of, RowForm("channel", lanes))
    if isinstance(applied, Refused):
        return applied
    epilogue = Epilogue(applied.steps, conv.b is not None, conv.residual is not None)
    if applied.rows is None:
        return WithEpilogue(replace(conv, epilogue=epilogue))
    rows, function = row_epilogue(applied.rows)
    return WithEpilogue(replace(conv, epilogue=replace(epilogue, rows=rows), row_steps=applied.rows), (function,))


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
