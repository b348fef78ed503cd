"""Arguments for declared ops, made from the line that says which shapes fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp, Variant
from dovetail.declare.signature import Parameter
from dovetail.errors import GraphError, TraceError
from dovetail.ir import leaf
from dovetail.ir.dim import Size, evaluate, symbols
from dovetail.ir.dtype import BY_NAME, DType, f16, f32, f64
from dovetail.ir.size_text import parse_size
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value

_OPERAND = re.compile(r"(\w+)(?::(\w+))?\[([^\]]*)\]")
_FITTING_NUMBER = re.compile(r"(\w+)=(\S+)")
_FLOATS = (0.5, 1e-5, 0.125, 2.0)
_WILD_FLOATS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan"), -1e9, float("-inf"))


@dataclass(frozen=True, slots=True)
class Fitting:
    """The shape of one operand as declared: `*` for any leading axes, sizes by name."""

    name: str
    dtype: DType | None
    leading: bool
    sizes: tuple[Size, ...]


def fittings(op: FusedOp[...]) -> Mapping[str, Sequence[Fitting]]:
    """Return the declared shapes by operand: "x[*, m, k] keep:bool[m, n]"; the second one of an operand is another
    choice.
    """
    fittings_ = _declared_shapes(op.shapes)
    missing = [p.name for p in op.signature.operands if p.name not in fittings_]
    if missing:
        raise TraceError(
            f"{op.name} does not say which shapes fit {', '.join(missing)}",
            hint='declare it: @fused_op(shapes="x[*, m, k] w[k, n]")',
        )
    return fittings_


@lru_cache(maxsize=256)
def _declared_shapes(line: str) -> Mapping[str, Sequence[Fitting]]:
    """Return the shapes of a line. Laws draw thousands of arguments from the same one."""
    shapes: dict[str, list[Fitting]] = {}
    for name, dtype, listed in _OPERAND.findall(line):
        dims = [d.strip() for d in listed.split(",") if d.strip()]
        leading = bool(dims) and dims[0] == "*"
        sizes = tuple(parse_size(d) for d in dims[leading:])
        shapes.setdefault(name, []).append(Fitting(name, BY_NAME[dtype] if dtype else None, leading, sizes))
    return shapes


@lru_cache(maxsize=256)
def _declared_numbers(line: str) -> Mapping[str, tuple[str, Size | None]]:
    """Return the numbers of a line: as written, and as a size where it is one."""
    return {name: (spelled, _size(spelled)) for name, spelled in _FITTING_NUMBER.findall(line)}


def _size(spelled: str) -> Size | None:
    try:
        return parse_size(spelled)
    except GraphError:
        return None


def arguments(op: FusedOp[...], variant: Variant, random: Random) -> dict[str, Any]:
    """Arguments by name for one variant, as the declaration says that they fit."""
    shapes = fittings(op)
    names = {s for listed in shapes.values() for f in listed for size in f.sizes for s in symbols(size)}
    sizes: dict[str, Size] = {name: random.choice((2, 3, 4)) for name in sorted(names)}
    left_out = _left_out(op, variant, random)
    # A number that is left out and is a size too leaves that axis alone.
    sizes.update({name: 1 for name in sizes if name in left_out})
    leading = tuple(random.choice((1, 2, 3)) for _ in range(random.choice((0, 1, 2))))
    dtype = random.choice((f32, f32, f32, f16))
    line = random.randrange(max((len(listed) for listed in shapes.values()), default=1))
    chosen: dict[str, Any] = {}
    for parameter in op.signature.parameters:
        choice = variant.choice[parameter.name]
        if parameter.kind == "operand":
            chosen[parameter.name] = None
            if choice is not None:
                # Now and then an operand stays in f32 among narrower ones, as the weights of norms do.
                shape = shapes[parameter.name][min(line, len(shapes[parameter.name]) - 1)]
                type = _type(shape, sizes, leading, random.choice((dtype, dtype, dtype, f32)))
                chosen[parameter.name] = leaf.input(parameter.name, type)
        elif parameter.name in left_out:
            chosen[parameter.name] = None
        elif isinstance(choice, leaf.Hole):
            declared = _declared(op, parameter, sizes)
            chosen[parameter.name] = _number(parameter, sizes, dtype, random) if declared is None else declared
        else:
            chosen[parameter.name] = choice
    return chosen


def strayed(op: FusedOp[...], chosen: Mapping[str, Any], random: Random, numbers: Collection[str]) -> dict[str, Any]:
    """Return these arguments with a few that stray from the declaration.

    Numbers stray only if `numbers` names them: a graph without its + 0 would say nothing about another operand.
    """
    arguments = dict(chosen)
    operands = [p.name for p in op.signature.operands if arguments[p.name] is not None]
    for name in random.sample(operands, min(random.choice((0, 1, 1, 2, 3)), len(operands))):
        arguments[name] = leaf.input(name, _strayed(arguments[name].type, random))
    for parameter in op.signature.attributes:
        number = arguments[parameter.name]
        if parameter.name in numbers and isinstance(number, int | float) and random.random() < 0.5:
            if parameter.kind == "int":
                arguments[parameter.name] = random.choice((0, 1, 2, 3, 5, 7))
            elif parameter.kind == "float":
                arguments[parameter.name] = float(f32.numpy.type(random.choice(_WILD_FLOATS)))
    return arguments


def _left_out(op: FusedOp[...], variant: Variant, random: Random) -> set[str]:
    """Return the numbers that this variant does not have, and some of those that it hands on whatever they are."""
    numbers = [p for p in op.signature.attributes if p.optional]
    return {p.name for p in numbers if variant.choice[p.name] is None or (p.handed_on and random.random() < 0.5)}


def _declared(op: FusedOp[...], parameter: Parameter, sizes: Mapping[str, Size]) -> float | None:
    """Return the number that the declaration says fits: "x[m, h*d] heads=h fill=-inf"."""
    declared = _declared_numbers(op.shapes).get(parameter.name)
    if declared is None:
        return None
    spelled, size = declared
    return evaluate(parse_size(spelled) if size is None else size, sizes) if parameter.kind == "int" else float(spelled)


def _type(fitting: Fitting, sizes: Mapping[str, Size], leading: tuple[int, ...], dtype: DType) -> TensorType:
    own = tuple(evaluate(size, sizes) for size in fitting.sizes)
    return TensorType(fitting.dtype or dtype, (*leading, *own) if fitting.leading else own)


def _number(parameter: Parameter, sizes: Mapping[str, Size], dtype: DType, random: Random) -> Any:
    if parameter.kind == "ints":
        return parameter.default
    if parameter.kind == "option":
        return random.choice(parameter.choices)
    if parameter.kind == "int":
        return sizes.get(parameter.name, random.choice((1, 2, 3)))
    # Caught numbers come out of constants of the operands' dtype, so they are numbers of that dtype to begin with.
    return float(dtype.numpy.type(random.choice(_FLOATS)))


def _strayed(type: TensorType, random: Random) -> TensorType:
    """Return the type with, now and then, another axis, another size or another dtype."""
    shape = list(type.shape)
    match random.randrange(6):
        case 0:
            shape.insert(random.randrange(len(shape) + 1), random.choice((1, 2, 3)))
        case 1 if shape:
            shape.pop(random.randrange(len(shape)))
        case 2 if shape:
            shape[random.randrange(len(shape))] = random.choice((1, 2, 3, 5))
        case 3 if type.dtype.is_float:
            return TensorType(random.choice((f16, f64)), type.shape)
        case _:
            pass
    return TensorType(type.dtype, tuple(shape))


def in_f16(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return these arguments with all floats in f16."""
    return {name: _narrowed(name, value) for name, value in chosen.items()}


def _narrowed(name: str, value: Any) -> Any:
    if isinstance(value, Value) and value.dtype.is_float:
        return leaf.input(name, TensorType(f16, value.shape))
    return float(f16.numpy.type(value)) if isinstance(value, float) else value


def inputs_of(chosen: Mapping[str, Any]) -> tuple[Value, ...]:
    return tuple(v for v in chosen.values() if isinstance(v, Value))
