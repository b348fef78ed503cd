"""Pools in plain loops: types and axes that the template does not take."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, f32, f64, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.along import Along, at_least_zero, within
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.folds import fold_of
from dovetail.kernels.loops.ir import (
    ONE,
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
    When,
    add,
    indices,
    minimum,
    mul,
    sizes_in,
)
from dovetail.kernels.spec import Job, TensorLocations, Tiles


def offer_pool_loops(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a pool in loops; a tile is a row of results along the last axis."""
    if not of.locations.target.scalars.has_dtype(of.value.dtype):
        return Refused("dtype_is_compiled", of.value.dtype.name)
    return Offer(lambda: _job(of.value, of.locations))


def _job(value: Value, locations: TensorLocations) -> Job:
    (x,), attrs, shape = value.operands, value.attrs, value.shape
    count = len(shape) - 2
    axes = [
        Along(x.shape[2 + i], shape[2 + i], attrs["strides"][i], attrs["dilations"][i], attrs["padding"][i])
        for i in range(count)
    ]
    fold = fold_of("max" if value.op is ops.max_pool else "sum", value.dtype)
    total: DType = fold.part
    kept = Tensor("scratch", total, (total.itemsize,))
    at = tuple(Name(f"o{i}") for i in range(count + 1))
    taps = tuple(Name(f"k{i}") for i in range(count))
    seen = tuple(Name(f"p{i}") for i in range(count - 1))
    i, j, last = Name("i"), Name("j"), axes[-1]
    element = Load(Tensor("x", x.dtype, locations(x).strides), (*at[:2], *seen, last.place(j, taps[-1])))
    along = Loop(
        "i",
        at_least_zero(Call("sub", (last.end(taps[-1]), Name("first")), i64)),
        (Set("j", add(Name("first"), i)), Store(kept, (j,), fold.take(Load(kept, (j,)), element))),
    )
    nested: tuple[Statement, ...] = (Set("first", last.first(taps[-1])), along)
    nested = (Loop(taps[-1].name, Extent(attrs["window"][-1]), nested),)
    for axis in reversed(range(count - 1)):
        place = Set(seen[axis].name, axes[axis].place(at[2 + axis], taps[axis]))
        nested = (
            Loop(
                taps[axis].name,
                Extent(attrs["window"][axis]),
                (place, When(within(seen[axis], axes[axis].size), nested)),
            ),
        )
    result: Expr = Load(kept, (i,))
    if value.op is ops.average_pool:
        count_of = cast_to(counted(value, axes, (*at[2:], i)), f64 if total is f64 else f32)
        result = Call("div", (result, count_of), total)
    body: tuple[Statement, ...] = (
        *(Set(name.name, index) for name, index in zip(at, indices(shape[:-1], Name("tile")), strict=True)),
        Loop("i", Extent(last.out), (Store(kept, (i,), fold.first(total)),)),
        *nested,
        Loop(
            "i",
            Extent(last.out),
            (Store(Tensor("y", value.dtype, locations(value).strides), (*at, i), cast_to(result, value.dtype)),),
        ),
    )
    scratch = last.out * total.itemsize
    kernel = Kernel(value.op.name, ("x", "y"), ("y",), "tile", body, scratch=scratch, sizes=sizes_in(body))
    return Job(kernel, {"x": x, "y": value}, Tiles(product(shape[:-1]), last.out * product(attrs["window"])))


def counted(value: Value, axes: list[Along], at: tuple[Expr, ...]) -> Expr:
    """How many elements of the window count at a place: those of the array, or those of its padding too."""
    attrs, count = value.attrs, ONE
    for number, (axis, out) in enumerate(zip(axes, at, strict=True)):
        around: Size = attrs["padding"][len(axes) + number] if attrs["count_padding"] else 0
        low = -axis.before if attrs["count_padding"] else 0
        base = axis.place(out, Extent(0))
        first = at_least_zero(_taps_before(Extent(low), base, axis.dilation))
        end = minimum(Extent(attrs["window"][number]), _taps_before(Extent(axis.size + around), base, axis.dilation))
        count = mul(count, at_least_zero(Call("sub", (end, first), i64)))
    return count


def _taps_before(limit: Expr, base: Expr, dilation: int) -> Expr:
    """How many taps from a base on are before a limit; where it is below 0, any number that is not above 0."""
    room = add(Call("sub", (limit, base), i64), Extent(dilation - 1))
    return room if dilation == 1 else Call("div", (room, Extent(dilation)), i64)


__all__ = ["counted", "offer_pool_loops"]
