"""Reduce: the index of an extreme along an axis, and running reductions. Sums and the like are rows."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.ir.dtype import bool_, i64
from dovetail.ir.value import Op, Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.folds import fold_of
from dovetail.kernels.loops.ir import ZERO, Call, Expr, Extent, Kernel, Name, Number, Statement, sizes_in
from dovetail.kernels.loops.nest import Nest, Placed
from dovetail.kernels.spec import Job, TensorLocations, Tiles

_EXTREMES: dict[Op, str] = {ops.arg_max: "max", ops.arg_min: "min"}
_RUNNING: dict[Op, str] = {ops.cum_sum: "sum", ops.cum_prod: "prod", ops.cum_max: "max", ops.cum_min: "min"}


def offer_reduce(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of arg_max, arg_min or a running reduction."""
    value = of.value
    if value.op not in _EXTREMES and value.op not in _RUNNING:
        return Refused("op_is_an_extreme_or_runs", value.op.name)
    x = value.operands[0]
    if not of.locations.target.scalars.has_dtype(x.dtype):
        return Refused("dtype_is_compiled", x.dtype.name)
    return Offer(lambda: _job(value, x, of.locations))


def _job(value: Value, x: Value, locations: TensorLocations) -> Job:
    axis = int(value.attrs["axis"]) + x.rank
    # Axes are factors here; those of size 1 are no loops.
    strides = {i: s for i, s in enumerate(locations(x).strides) if x.shape[i] != 1}
    written = {i: s for i, s in enumerate(locations(value).strides) if i in strides and value.shape[i] != 1}
    source = Placed("x", x.dtype, 0, strides)
    target = Placed("y", value.dtype, 0, written)
    rows = [i for i in strides if i != axis]
    tiles, alignment = locations.target.tiles, locations.alignment({"x": x, "y": value})
    nest = Nest(x.shape, rows, [source, target], loops={axis}, tiles=tiles, alignment=alignment)
    group = (axis,) if axis in strides else ()
    make = _extreme if value.op in _EXTREMES else _running
    body = nest.tile(make(value, nest, group, source, target))
    kernel = Kernel(value.op.name, ("x", "y"), ("y",), "tile", body, scratch=nest.scratch, sizes=sizes_in(body))
    return Job(kernel, {"x": x, "y": value}, Tiles(nest.tiles, x.shape[axis] * nest.lanes * 2))


def _extreme(value: Value, nest: Nest, group: tuple[int, ...], source: Placed, target: Placed) -> Sequence[Statement]:
    """One loop for the extreme itself, one for the first or last index where it stands: both become vectors."""
    x = nest.load(source, group)
    fold = fold_of(_EXTREMES[value.op], x.dtype)
    last: bool = value.attrs["last"]
    statements: list[Statement] = [*nest.each([nest.keep("best", fold.first(fold.total))])]
    best = nest.read("best", fold.total)
    statements += nest.over(group, [nest.keep("best", fold.take(best, x))], reassociate=True)
    # NaN is the extreme wherever there is one, and no NaN equals another.
    hit: Expr = Call("equal", (x, best), bool_)
    if x.dtype.is_float:
        hit = Call("bit_or", (hit, Call("is_nan", (x,), bool_)), bool_)
    nowhere = Number(-1 if last else 2**63 - 1, i64)
    index: Expr = Name("i0") if nest.shape(group) else ZERO
    seen = Call("where", (hit, index, nowhere), i64)
    statements += nest.each([nest.keep("at", nowhere)])
    at = nest.read("at", i64)
    take = Call("maximum" if last else "minimum", (at, seen), i64)
    statements += nest.over(group, [nest.keep("at", take)], reassociate=True)
    return [*statements, *nest.each([nest.store(target, (), at)])]


def _running(value: Value, nest: Nest, group: tuple[int, ...], source: Placed, target: Placed) -> Sequence[Statement]:
    """One element after the other; what is kept is as wide as the meaning says, and each result is rounded once."""
    fold = fold_of(_RUNNING[value.op], value.dtype)
    index: Expr | None = None
    if value.attrs["reverse"] and nest.shape(group):
        index = Call("sub", (Extent(nest.shape(group)[0] - 1), Name("i0")), i64)
    statements: list[Statement] = [*nest.each([nest.keep("total", fold.first(fold.total))])]
    total = nest.read("total", fold.total)
    take = nest.keep("total", fold.take(total, nest.load(source, group, index)))
    give = nest.store(target, group, cast_to(total, value.dtype), index)
    body = [give, take] if value.attrs["exclusive"] else [take, give]
    return [*statements, *nest.over(group, body)]
