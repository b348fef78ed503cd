"""Map: elementwise steps over a shape. Operands are read in place, whatever their strides; views are free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dovetail import ops
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.body import Body, is_number, not_compiled, number, reads
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    add,
    collapsed,
    in_block,
    in_memory_order,
    indices,
    mul,
    sizes_in,
    stretched,
)
from dovetail.kernels.loops.policy import TilePolicy
from dovetail.kernels.loops.tiling import Flat, Turn, in_turn, vector_width
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.ops.primitive import Primitive
from dovetail.ops.region import region
from dovetail.plan.plan import Step


def offer_map(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of an elementwise primitive, region or fused op."""
    return map_refusal(of) or Offer(lambda: _job(of.step, of.locations, of.body))


def moving_body(of: StepProblem[object], moves: Callable[[Value], bool], takes: str) -> Body | Refused:
    """The body of a step whose elements move between elementwise steps, by steps that `moves` admits."""
    op = of.value.op
    if not (isinstance(op, FusedOp) or op is region):
        return Refused("op_has_a_body", op.name)
    if map_refusal(of) is None:
        return Refused("elements_move", "elementwise steps alone")
    body = of.body
    odd = not_compiled(body, lambda v: moves(v) or v.op in (ops.iota, ops.extent))
    if odd is not None:
        return Refused("steps_are_compiled", odd, takes)
    if any(r in body.views or r.op is leaf.CONST for r in body.results):
        return Refused("results_are_computed", "a view of an operand, or a constant")
    return body


def map_refusal(of: StepProblem[object]) -> Refused | None:
    """Why a step is no map; None where it is one."""
    op = of.value.op
    if not (op is region or isinstance(op, FusedOp) or (isinstance(op, Primitive) and op.elementwise)):
        return Refused("op_is_elementwise", op.name)
    body = of.body
    odd = not_compiled(body)
    if odd is not None:
        return Refused("steps_are_compiled_and_elementwise", odd)
    if any(r not in body.order for r in body.results):
        return Refused("results_are_computed", "a view of an operand")
    if any(r.shape != body.results[0].shape for r in body.results):
        return Refused("results_have_one_shape", ", ".join(str(r.type) for r in body.results))
    return None


def elementwise(results: Sequence[Value], leaves: Mapping[Value, Expr]) -> list[Expr]:
    """Elementwise steps as expressions over their leaves; what they share is one expression."""
    exprs: dict[Value, Expr] = dict(leaves)
    for value in walk(results, until=leaves):
        if is_number(value):
            exprs[value] = number(value)
        elif value not in exprs:
            exprs[value] = Call(value.op.name, tuple(exprs[v] for v in value.operands), value.dtype)
    return [exprs[r] for r in results]


def _job(step: Step, locations: TensorLocations, body: Body) -> Job:
    """The loops over the result's shape. Axes that are dense in every tensor become one."""
    leaves = {v: body.views[v] for v in reads(body)}
    whole = body.results[0].shape
    spread = [stretched(at.strides, v.shape, whole) for v, at in leaves.items()]
    every = [*(locations(v).strides for v in step.results), *spread]
    shape, strides = collapsed(*in_memory_order(whole, every))
    operands = list(dict.fromkeys(body.arguments[at.root] for at in leaves.values()))
    taken = {one: f"y{i}" for i, one in enumerate(step.overs) if one is not None}
    shared = {v: taken[locations(v).root] for v in operands if locations(v).root in taken}
    names = {v: f"x{i}" for i, v in enumerate(v for v in operands if v not in shared)}
    bindings = {name: v for v, name in names.items()} | {f"y{i}": v for i, v in enumerate(step.results)}
    names |= shared
    targets = [Tensor(f"y{i}", v.dtype, s) for i, (v, s) in enumerate(zip(step.results, strides, strict=False))]
    tensors = {
        v: Tensor(names[body.arguments[at.root]], v.dtype, s, at.offset)
        for (v, at), s in zip(leaves.items(), strides[len(targets) :], strict=True)
    }
    if locations.target.tiles.is_shared:
        width = vector_width(
            shape, [*targets, *tensors.values()], locations.alignment(bindings), locations.target.tiles
        )
        boxes = Flat(shape, width, locations.target.tiles.threads)
        loads: dict[Value, Expr] = {v: Load(t, boxes.at) for v, t in tensors.items()}
        stores = _stores(targets, boxes.at, elementwise(body.results, loads), bool(shared))
        statements, tiles, work = in_turn([Turn(boxes, stores, boxes.work)])
    else:
        tiling = locations.target.tiles
        statements, tiles, work = _tiled(shape, body.results, tensors, targets, tiling, in_place=bool(shared))
    written = tuple(t.pointer for t in targets)
    kernel = Kernel("map", tuple(bindings), written, "tile", statements, sizes=sizes_in(statements))
    return Job(kernel, bindings, Tiles(tiles, work))


def _stores(
    targets: Sequence[Tensor], at: tuple[Expr, ...], elements: Sequence[Expr], in_place: bool
) -> tuple[Statement, ...]:
    """The results of one element. In place all are computed before one is written over what others read."""
    if len(elements) == 1 or not in_place:
        return tuple([Store(t, at, e) for t, e in zip(targets, elements, strict=True)])
    kept = [Set(f"e{i}", e) for i, e in enumerate(elements)]
    stores = [Store(t, at, Name(f"e{i}", e.dtype)) for i, (t, e) in enumerate(zip(targets, elements, strict=True))]
    return (*kept, *stores)


def _tiled(
    shape: tuple[Size, ...],
    results: Sequence[Value],
    tensors: Mapping[Value, Tensor],
    targets: Sequence[Tensor],
    tiles: TilePolicy,
    *,
    in_place: bool,
) -> tuple[tuple[Statement, ...], Size, Size]:
    """The body of a tile, how many there are, and how many elements each has."""
    inner, outer = (shape[-1], shape[:-1]) if shape else (1, ())
    chunk = tiles.map_elements
    chunks = (inner + (chunk - 1)) // chunk
    tile = Name("tile")
    if chunks == 1:
        rows, start, count = indices(outer, tile), Extent(0), Extent(inner)
    else:
        row = Call("div", (tile, Extent(chunks)), i64)
        piece = Call("rem", (tile, Extent(chunks)), i64) if outer else tile
        rows, start = indices(outer, row), mul(piece, Extent(chunk))
        count = in_block(chunk, inner, Name("start"))
    at = (*[Name(f"r{i}") for i in range(len(rows))], add(Name("start"), Name("i")))
    at = at[len(at) - len(shape) :]
    loads: dict[Value, Expr] = {v: Load(t, at) for v, t in tensors.items()}
    stores = _stores(targets, at, elementwise(results, loads), in_place)
    head = [*(Set(f"r{i}", r) for i, r in enumerate(rows)), Set("start", start)]
    work = min(chunk, inner) if isinstance(inner, int) else chunk
    return (*head, Loop("i", count, stores)), product(outer) * chunks, work
