"""Map: elementwise steps over a shape. Operands are read where they lie, whatever their strides; views are free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.ir import leaf
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import i64
from dovetail.ir.graph import Subgraph
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels import llvm_scalar as scalar
from dovetail.kernels import maths
from dovetail.kernels.job import Job, Places
from dovetail.kernels.llvm import minimum
from dovetail.kernels.loops import (
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    add,
    collapsed,
    indices,
    mul,
    sizes_in,
)
from dovetail.ops.primitive import Primitive
from dovetail.ops.region import region
from dovetail.plan.alias import Alias, find_aliases
from dovetail.plan.plan import Step

CHUNK = 4096
"""Elements of a tile: a few rows of them fit the first cache, and starting a tile is nothing beside them."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that a body reads: the operand that holds it, and where in it the elements lie."""

    operand: Value
    dtype_of: Value
    offset: Size
    strides: tuple[Size, ...]


def make_map(step: Step, places: Places) -> Job | None:
    """The job of a region or of one elementwise primitive; None where something in it is not compiled."""
    value = step.value
    if value.op is region and value.attrs["lanes"] == 1:
        body: Subgraph = value.attrs["body"]
        arguments = {
            leaf.argument(i, t): v for i, (t, v) in enumerate(zip(body.arguments, value.operands, strict=True))
        }
        result = body.results[0]
    elif isinstance(value.op, Primitive) and value.op.elementwise:
        arguments, result = {v: v for v in value.operands}, value
    else:
        return None
    leaves = leaves_of(result, arguments, places)
    return None if leaves is None else _job(step, places, result, leaves)


def leaves_of(result: Value, arguments: Mapping[Value, Value], places: Places) -> dict[Value, Leaf] | None:
    """What an elementwise body reads: arguments and views of them. None where something in it is not compiled."""
    known = {a: Alias(a, 0, places(operand).strides) for a, operand in arguments.items()}
    order = walk([result], until=arguments)
    views = find_aliases([v for v in order if v not in arguments], known)
    leaves: dict[Value, Leaf] = {}
    for value in walk([result], until=views):
        if value in views:
            at = views[value]
            if at.root not in arguments or not scalar.is_compiled(value.dtype):
                return None
            leaves[value] = Leaf(arguments[at.root], value, at.offset, at.strides)
        elif value.op is leaf.CONST:
            if value.tensor.count != 1 or not scalar.is_compiled(value.dtype):
                return None
        elif not is_compiled(value):
            return None
    return leaves


def is_compiled(value: Value) -> bool:
    """Whether compiled code has this elementwise step for these dtypes."""
    if not (isinstance(value.op, Primitive) and value.op.elementwise):
        return False
    name, given = value.op.name, [v.dtype for v in value.operands]
    dtype = given[1] if name == "where" else given[0]
    if not all(map(scalar.is_compiled, (*given, value.dtype))) or not scalar.has_rule(name, dtype):
        return False
    return not (scalar.is_function(name) and dtype.is_float) or maths.has(name, dtype)


def stretched(strides: tuple[Size, ...], shape: Sequence[Size], to: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a tensor that is broadcast to a shape: 0 where it is repeated."""
    lead = (0,) * (len(to) - len(shape))
    return (*lead, *(0 if size == 1 else stride for stride, size in zip(strides, shape, strict=True)))


def elementwise(result: Value, leaves: Mapping[Value, Expr]) -> Expr:
    """A body of elementwise steps as one expression over its leaves."""
    found: dict[Value, Expr] = dict(leaves)
    for value in walk([result], until=leaves):
        if value in found:
            continue
        if value.op is leaf.CONST:
            found[value] = Number(_scalar(value), value.dtype)
        else:
            found[value] = Call(value.op.name, tuple(found[v] for v in value.operands), value.dtype)
    return found[result]


def _scalar(value: Value) -> complex:
    number = leaf.scalar_of(value)
    assert number is not None, "only constants of one element are leaves here"
    return number


def _job(step: Step, places: Places, result: Value, leaves: Mapping[Value, Leaf]) -> Job:
    """The loops over the result's shape. Axes that lie densely in every tensor are gone through as one."""
    value = step.value
    spread = [stretched(at.strides, v.shape, value.shape) for v, at in leaves.items()]
    shape, (target, *strides) = collapsed(value.shape, [places(value).strides, *spread])
    operands = list(dict.fromkeys(at.operand for at in leaves.values()))
    names = {v: f"x{i}" for i, v in enumerate(operands)}
    # What the result is written over is one memory with one name: then nothing overlaps by surprise.
    over = step.over if step.over in names else None
    if over is not None:
        names[over] = "y"
    tensors = {
        v: Tensor(names[at.operand], v.dtype, s, at.offset) for (v, at), s in zip(leaves.items(), strides, strict=True)
    }
    body, tiles, work = _tiled(shape, result, tensors, Tensor("y", value.dtype, target))
    pointers = tuple(n for v, n in names.items() if v is not over)
    kernel = Kernel("map", (*pointers, "y"), ("y",), "tile", body, sizes=sizes_in(body))
    points: dict[str, Value] = {n: v for v, n in names.items() if v is not over}
    return Job(kernel, {**points, "y": value}, tiles, work)


def _tiled(
    shape: tuple[Size, ...], result: Value, tensors: Mapping[Value, Tensor], target: Tensor
) -> tuple[tuple[Statement, ...], Size, Size]:
    """The body of a tile, how many there are, and how many elements each has."""
    inner, outer = (shape[-1], shape[:-1]) if shape else (1, ())
    chunks = (inner + (CHUNK - 1)) // CHUNK
    tile = Name("tile")
    if chunks == 1:
        rows, start, count = indices(outer, tile), Extent(0), Extent(inner)
    else:
        row = Call("div", (tile, Extent(chunks)), i64)
        piece = Call("rem", (tile, Extent(chunks)), i64) if outer else tile
        rows, start = indices(outer, row), mul(piece, Extent(CHUNK))
        count = minimum(Extent(CHUNK), Call("sub", (Extent(inner), Name("start")), i64))
    at = (*[Name(f"r{i}") for i in range(len(rows))], add(Name("start"), Name("i")))
    at = at[len(at) - len(shape) :]
    loads: dict[Value, Expr] = {v: Load(t, at) for v, t in tensors.items()}
    loop = Loop("i", count, (Store(target, at, elementwise(result, loads)),))
    head = [*(Set(f"r{i}", r) for i, r in enumerate(rows)), Set("start", start)]
    return (*head, loop), product(outer) * chunks, min(CHUNK, inner) if isinstance(inner, int) else CHUNK
