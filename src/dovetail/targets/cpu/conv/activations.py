"""Activations on vectors, and the function that finishes a row of results in L1."""

from __future__ import annotations

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec
from dovetail.codegen.llvm.maths import vectors as maths
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.problems.region_steps import Steps
from dovetail.library.activation import Activation
from dovetail.targets.cpu.conv.region_steps import apply_steps


def activate(t: VectorBuilder, act: Activation | Steps, x: Vec) -> Vec:
    """An activation of every lane, or the steps of a region; NaN stays."""
    if isinstance(act, Steps):
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


def _activate_row(t: VectorBuilder, act: Activation | Steps, y: Ptr, count: I64) -> None:
    full = t.sdiv(count, t.lanes)
    with t.loop(0, full) as i:
        here = t.ptr_add(y, t.mul(i, t.bytes))
        t.store(activate(t, act, t.load(here)), here)
    with t.loop(full, t.ceil_div(count, t.lanes)) as i:
        first = t.mul(i, t.lanes)
        here, some = t.ptr_add(y, t.mul(first, 4)), t.lanes_within(first, count)
        t.store_masked(some, activate(t, act, t.load_masked(some, here)), here)


def _add_row(t: VectorBuilder, act: Activation | Steps, y: Ptr, r: Ptr, step: I64, count: I64) -> None:
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


__all__ = ["activate", "finish_row", "finish_signature"]
