"""What a step computes, spelled out in primitives of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f32
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.value import Op, Value
from dovetail.ir.walk import walk
from dovetail.kernels.loops.ir import Call, Expr, Number
from dovetail.kernels.loops.policy import ScalarSupport
from dovetail.kernels.spec import TensorLocations
from dovetail.ops.primitive import Primitive
from dovetail.ops.region import region
from dovetail.plan.alias import Alias, find_aliases
from dovetail.plan.plan import Step


@dataclass(frozen=True, slots=True)
class Body:
    """Primitives from arguments to results, and the operand that each argument stands for."""

    arguments: Mapping[Value, Value]
    results: tuple[Value, ...]
    views: Mapping[Value, Alias]
    """Arguments and views of them: where their elements are, counted from the operand that the argument stands for."""
    order: tuple[Value, ...]
    """What is computed, operands first: neither arguments and views of them nor numbers."""
    scalars: ScalarSupport
    """What the target computes with."""


def body_of(value: Value, locations: TensorLocations) -> Body:
    """The body of a fused op or a region; a primitive is its own."""
    leaves = tuple(leaf.argument(i, v.tensor) for i, v in enumerate(value.operands))
    arguments = dict(zip(leaves, value.operands, strict=True))
    spelled = value.with_operands(leaves)
    while True:
        lower = rebuild_values([spelled], lambda v, operands: v.op.expansion(operands, v.attrs))[spelled]
        if lower is spelled:
            break
        spelled = lower
    spelled = rebuild_values([spelled], _multiplied)[spelled]
    results = spelled.operands if spelled.op is leaf.PACK else (spelled,)
    return _body(arguments, results, None, locations)


def body_above(
    results: tuple[Value, ...], anchor: Value, operands: Sequence[Value], locations: TensorLocations
) -> Body:
    """The steps above an anchor, which they read as it is; the anchor is in `body.order` no more.

    Arguments, by their numbers, stand for operands.
    """
    arguments = {leaf.argument(i, v.tensor): v for i, v in enumerate(operands)}
    while True:
        lower = rebuild_values(results, lambda v, operands: None if v is anchor else v.op.expansion(operands, v.attrs))
        if all(lower[r] is r for r in results):
            break
        results = tuple([lower[r] for r in results])
    changed = rebuild_values(results, lambda v, operands: None if v is anchor else _multiplied(v, operands))
    return _body(arguments, tuple([changed[r] for r in results]), anchor, locations)


def _body(
    arguments: Mapping[Value, Value], results: tuple[Value, ...], anchor: Value | None, locations: TensorLocations
) -> Body:
    known = {a: Alias(a, 0, locations(operand).strides) for a, operand in arguments.items()}
    above = () if anchor is None else (anchor,)
    everything = walk(results, until=above)
    aliases = find_aliases([v for v in everything if v not in arguments and v not in above], known)
    views = {v: at for v, at in aliases.items() if at.root in arguments}
    met = walk(results, until={*views, *above})
    order = tuple(v for v in met if v not in views and v not in above and v.op is not leaf.CONST)
    return Body(arguments, results, views, order, locations.target.scalars)


def _multiplied(value: Value, operands: tuple[Value, ...]) -> Value | None:
    """A smooth function of x / c as one of x * (1 / c), which costs a tenth and moves it by a unit in the last place.

    Elsewhere a division stays one: 49 * (1 / 49) is not 1, and someone may round it down.
    """
    if value.op not in _SMOOTH or value.dtype is not f32:
        return None
    if value.op in _BOUNDED:
        x = _by_inverse(operands[0])
        return None if x is None else _BOUNDED[value.op](x)
    if operands[0].op is ops.neg and operands[0].operands[0].op is ops.mul:
        # exp(-(x / c)²), the slope of erf(x / c).
        first, second = operands[0].operands[0].operands
        x = _by_inverse(first) if first is second else None
        return None if x is None else ops.exp(ops.neg(ops.mul(x, x)))
    return None


def _by_inverse(value: Value) -> Value | None:
    """x * (1 / c) of an x / c, where c has an inverse."""
    if value.op is not ops.div:
        return None
    x, divisor = value.operands
    number = leaf.scalar_of(divisor)
    factor = Number(number, f32).reciprocal if isinstance(number, float) else None
    return None if factor is None else ops.mul(x, leaf.scalar(factor, f32))


_BOUNDED: Mapping[Op, Primitive] = {op: op for op in (ops.erf, ops.tanh, ops.sigmoid)}
_SMOOTH = frozenset({*_BOUNDED, ops.exp})


def overwritten_operands(step: Step, locations: TensorLocations) -> list[Value]:
    """The operands that the result is written over: one memory, which needs one name, so that nothing overlaps."""
    return [] if step.over is None else [v for v in step.operands if locations(v).root is step.over]


def pointers_of(
    step: Step, locations: TensorLocations, operands: Iterable[Value]
) -> tuple[dict[Value, str], dict[str, Value]]:
    """The pointer of each operand, and the tensor of each pointer: x0, x1, … of operands, y0, y1, … of results.

    What the result is written over has the pointer of the result.
    """
    overwritten = overwritten_operands(step, locations)
    names = {v: f"x{i}" for i, v in enumerate(v for v in dict.fromkeys(operands) if v not in overwritten)}
    bindings = {name: v for v, name in names.items()} | {f"y{i}": v for i, v in enumerate(step.results)}
    return names | dict.fromkeys(overwritten, "y0"), bindings


def reads(body: Body) -> list[Value]:
    """The arguments and views that are read by what is computed, in the order in which they are met."""
    met = [v for value in (*body.order, *body.results) for v in (value, *value.operands)]
    return [v for v in dict.fromkeys(met) if v in body.views]


def is_compiled(value: Value, scalars: ScalarSupport) -> bool:
    """Whether compiled code has this elementwise step for these dtypes, constants of one element included."""
    if not (isinstance(value.op, Primitive) and value.op.elementwise) or value.op.name == "cast_f8":
        return False
    name, dtypes = value.op.name, [v.dtype for v in value.operands]
    dtype = dtypes[1] if name == "where" else dtypes[0]
    return all(map(scalars.has_dtype, (*dtypes, value.dtype))) and scalars.has(name, dtype)


def steps_without_code(value: Value, scalars: ScalarSupport) -> tuple[str, ...]:
    """Return the elementwise steps of a value that compiled code lacks, as reports name them."""
    missing: dict[str, None] = {}
    pending = [value]
    while pending:
        step = pending.pop()
        if isinstance(step.op, FusedOp):
            types = tuple([v.type for v in step.operands])
            pending += step.op.traced(types, step.attrs, step.attrs_key)[2].values
        elif step.op is region:
            pending += step.attrs["body"].values
        elif step.op.elementwise and not is_compiled(step, scalars):
            missing[f"{step.op.name} in {step.operands[-1].dtype.name}"] = None
    return tuple(sorted(missing))


def is_known(body: Body, others: Callable[[Value], bool] = lambda value: False) -> bool:
    """Whether compiled code has everything in a body: elementwise steps, and others that the caller knows."""
    return not_compiled(body, others) is None


def not_compiled(body: Body, others: Callable[[Value], bool] = lambda value: False) -> str | None:
    """The first step of a body that compiled code does not have; None where it has all."""
    for value in body.order:
        if any(v.op is leaf.CONST and not is_number(v) for v in value.operands):
            return f"{value.op.name} of an array of constants"
        if not (is_compiled(value, body.scalars) if value.op.elementwise else others(value)):
            return f"{value.op.name} of {', '.join(v.dtype.name for v in value.operands)}"
    odd = next((v for v in (*body.order, *reads(body)) if not body.scalars.has_dtype(v.dtype)), None)
    return None if odd is None else f"a tensor of {odd.dtype.name}"


def is_number(value: Value) -> bool:
    """Whether it is a constant of one element, which compiled code writes as a literal."""
    return value.op is leaf.CONST and value.tensor.count == 1


def number(value: Value) -> Number:
    """A constant of one element as a literal."""
    scalar = leaf.scalar_of(value)
    assert scalar is not None, "only constants of one element are leaves here"
    return Number(scalar, value.dtype)


def cast_to(x: Expr, dtype: DType) -> Expr:
    return x if x.dtype is dtype else Call("cast", (x,), dtype)
