"""Sums of products in plain loops: convolutions and matrix products whose types or axes no template takes.

Integers, f64, convolutions of f16 and over three axes. Sums are kept in memory of the worker's own, and the loop
along a row of results, which is the innermost one, becomes vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import library, ops
from dovetail.ir.dim import Size, floordiv, product, smallest
from dovetail.ir.dtype import DType, f32, f64, i64
from dovetail.ir.type import TupleType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.map import elementwise
from dovetail.kernels.families.policy import FAMILIES
from dovetail.kernels.loops.along import Along, at_least_zero, sub, within
from dovetail.kernels.loops.body import Body, cast_to, is_number, not_compiled, overwritten_operands, reads
from dovetail.kernels.loops.ir import (
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
    When,
    add,
    indices,
    minimum,
    mul,
    sizes_in,
    stretched,
)
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.ops.region import region
from dovetail.plan.plan import Step

SERVED = (ops.conv, library.conv_bias_act, ops.matmul, library.linear, library.matmul_add, region)


def offer_contraction_loops(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of one convolution or matrix product with an elementwise epilogue."""
    value = of.value
    if value.op not in SERVED or isinstance(value.type, TupleType):
        return Refused("op_is_one_contraction", value.op.name)
    body = of.body
    contractions = [v for v in body.order if v.op is ops.conv or v.op is ops.matmul]
    if len(contractions) != 1:
        return Refused("body_is_one_contraction", str(len(contractions)), "1")
    if contractions[0].shape != body.results[0].shape:
        return Refused("epilogue_keeps_the_shape", str(body.results[0].type), str(contractions[0].type))
    if any(v not in body.views and not _is_widened(v, body) for v in contractions[0].operands):
        return Refused("factors_are_operands", "a factor that is computed")
    odd = not_compiled(body, lambda v: v is contractions[0])
    if odd is not None:
        return Refused("steps_are_compiled", odd)
    loops = _Plain(of.step, of.locations, body, contractions[0])
    return Offer(loops.convolution if contractions[0].op is ops.conv else loops.matrices)


def _is_widened(factor: Value, body: Body) -> bool:
    """Whether a factor is a tensor that is cast, maybe plus or minus one number."""
    is_moved = factor.op in (ops.sub, ops.add)
    wide, *numbers = factor.operands if is_moved else (factor,)
    inner = [v.operands[0] if v.op is ops.cast and v not in body.views else v for v in numbers]
    fits = all(is_number(v) or (v in body.views and v.tensor.count == 1) for v in inner)
    return fits and wide not in body.views and wide.op is ops.cast and wide.operands[0] in body.views


class _Plain:
    """Writes the loops of one sum of products."""

    def __init__(self, step: Step, locations: TensorLocations, body: Body, contraction: Value) -> None:
        self.value = step.value
        self.locations = locations
        self.body = body
        self.contraction = contraction
        operands = list(dict.fromkeys(body.arguments[body.views[v].root] for v in reads(body)))
        self.names = {v: f"x{i}" for i, v in enumerate(operands)}
        self.names |= dict.fromkeys(overwritten_operands(step, locations), "y")
        dtype = contraction.dtype
        self.total: DType = f64 if dtype is f64 else f32 if dtype.is_float else dtype

    def tensor(self, view: Value, shape: Sequence[Size] | None = None) -> Tensor:
        """Return an operand in memory, broadcast to a shape if there is one."""
        at = self.body.views[view]
        strides = at.strides if shape is None else stretched(at.strides, view.shape, shape)
        return Tensor(self.names[self.body.arguments[at.root]], view.dtype, strides, at.offset)

    def read(self, factor: Value, at: Sequence[Expr], shape: Sequence[Size] | None = None) -> Expr:
        """Return an element of an operand in the type of the accumulators, broadcast to a shape if there is one."""
        leaves: dict[Value, Expr] = {}
        for view in (v for v in walk([factor], until=self.body.views) if v in self.body.views):
            to = shape if view is factor else shape or factor.shape
            leaves[view] = Load(self.tensor(view, to), tuple(at))
        (element,) = elementwise([factor], leaves)
        return cast_to(element, self.total)

    def written(self, sums: Tensor, place: tuple[Expr, ...], at: tuple[Expr, ...]) -> Store:
        """The result at an index, from the sum at a place of the worker's memory."""
        shape = self.value.shape
        leaves: dict[Value, Expr] = {v: Load(self.tensor(v, shape), at) for v in self.epilogue()}
        leaves[self.contraction] = cast_to(Load(sums, place), self.contraction.dtype)
        (result,) = elementwise(self.body.results, leaves)
        return Store(Tensor("y", self.value.dtype, self.locations(self.value).strides), at, result)

    def epilogue(self) -> list[Value]:
        """What the steps on the sums read in addition to them."""
        known = {self.contraction, *self.body.views}
        return [v for v in walk(self.body.results, until=known) if v in self.body.views]

    def job(self, statements: Sequence[Statement], scratch: Size, tiles: Size, work: Size) -> Job:
        bindings = {name: v for v, name in self.names.items()} | {"y": self.value}
        body = tuple(statements)
        kernel = Kernel(
            self.contraction.op.name, tuple(bindings), ("y",), "tile", body, scratch=scratch, sizes=sizes_in(body)
        )
        return Job(kernel, bindings, Tiles(tiles, work))

    def convolution(self) -> Job:
        """A tile is a row of one filter's results along the last axis."""
        x, w = self.contraction.operands
        attrs, shape = self.contraction.attrs, self.value.shape
        axes = [
            Along(x.shape[2 + i], shape[2 + i], attrs["strides"][i], attrs["dilations"][i], attrs["padding"][i])
            for i in range(len(shape) - 2)
        ]
        at = tuple(Name(f"o{i}") for i in range(len(shape) - 1))
        sums = Tensor("scratch", self.total, (self.total.itemsize,))
        i, row, channels = Name("i"), axes[-1].out, w.shape[1]
        group = Call("div", (at[1], Extent(floordiv(shape[1], attrs["groups"]))), i64)
        many = floordiv(channels, FAMILIES.loops_channels)
        statements: list[Statement] = [
            *(Set(name.name, index) for name, index in zip(at, indices(shape[:-1], Name("tile")), strict=True)),
            Set("group", mul(group, Extent(channels))),
            Loop("i", Extent(row), (Store(sums, (i,), Number(0, self.total)),)),
            Loop(
                "b",
                Extent(many),
                (
                    Set("c", mul(Name("b"), Extent(FAMILIES.loops_channels))),
                    *self._seen(axes, at, sums, FAMILIES.loops_channels),
                ),
            ),
            Loop(
                "b",
                Extent(channels - many * FAMILIES.loops_channels),
                (Set("c", add(Name("b"), Extent(many * FAMILIES.loops_channels))), *self._seen(axes, at, sums, 1)),
            ),
            Loop("i", Extent(row), (self.written(sums, (i,), (*at, i)),)),
        ]
        return self.job(statements, row * self.total.itemsize, product(shape[:-1]), row * product(w.shape[1:]))

    def _seen(self, axes: Sequence[Along], at: tuple[Name, ...], sums: Tensor, channels: int) -> tuple[Statement, ...]:
        """What the window sees of some channels from `c` on, added to the sums of a row."""
        x, w = self.contraction.operands
        taps = tuple(Name(f"k{i}") for i in range(len(axes)))
        at_pixel = tuple(Name(f"p{i}") for i in range(len(axes) - 1))
        last, j = axes[-1], Name("j")
        factors: list[Statement] = []
        total: Expr = Load(sums, (j,))
        for number in range(channels):
            channel = add(Name("c"), Extent(number))
            factors.append(Set(f"f{number}", self.read(w, (at[1], channel, *taps))))
            of = (at[0], add(Name("group"), channel), *at_pixel, last.place(j, taps[-1]))
            summand = Call("mul", (Name(f"f{number}", self.total), self.read(x, of)), self.total)
            total = Call("add", (total, summand), self.total)
        count = at_least_zero(sub(last.end(taps[-1]), Name("first")))
        along = Loop("i", count, (Set("j", add(Name("first"), Name("i"))), Store(sums, (j,), total)))
        nested: tuple[Statement, ...] = (Set("first", last.first(taps[-1])), *factors, along)
        nested = (Loop(taps[-1].name, Extent(w.shape[-1]), nested),)
        for i in reversed(range(len(at_pixel))):
            place = Set(at_pixel[i].name, axes[i].place(at[2 + i], taps[i]))
            shown = When(within(at_pixel[i], axes[i].size), nested)
            nested = (Loop(taps[i].name, Extent(w.shape[2 + i]), (place, shown)),)
        return nested

    def matrices(self) -> Job:
        """A tile is a block of rows and columns; a row of the right matrix serves all rows of the block."""
        left, right = self.contraction.operands
        shape, depth = self.value.shape, left.shape[-1]
        rows, columns = shape[-2:]
        down, across = (
            floordiv(rows + (FAMILIES.loops_rows - 1), FAMILIES.loops_rows),
            floordiv(columns + (FAMILIES.loops_columns - 1), FAMILIES.loops_columns),
        )
        batch = tuple(Name(f"b{i}") for i in range(len(shape) - 2))
        *front, block, strip = indices((*shape[:-2], down, across), Name("tile"))
        step = self.total.itemsize
        sums = Tensor("scratch", self.total, (step * FAMILIES.loops_columns, step))
        r, i, k = Name("r"), Name("i"), Name("k")
        row, column = add(Name("top"), r), add(Name("side"), i)
        a, b = (*shape[:-2], rows, depth), (*shape[:-2], depth, columns)
        summand = Call("mul", (Name("factor", self.total), self.read(right, (*batch, k, column), b)), self.total)
        more = Store(sums, (r, i), Call("add", (Load(sums, (r, i)), summand), self.total))
        each = (Set("factor", self.read(left, (*batch, row, k), a)), Loop("i", Name("width"), (more,)))
        statements: list[Statement] = [
            *(Set(name.name, index) for name, index in zip(batch, front, strict=True)),
            Set("top", mul(block, Extent(FAMILIES.loops_rows))),
            Set("side", mul(strip, Extent(FAMILIES.loops_columns))),
            Set("height", minimum(Extent(FAMILIES.loops_rows), sub(Extent(rows), Name("top")))),
            Set("width", minimum(Extent(FAMILIES.loops_columns), sub(Extent(columns), Name("side")))),
            Loop("r", Name("height"), (Loop("i", Name("width"), (Store(sums, (r, i), Number(0, self.total)),)),)),
            Loop("k", Extent(depth), (Loop("r", Name("height"), each),)),
            Loop(
                "r",
                Name("height"),
                (Loop("i", Name("width"), (self.written(sums, (r, i), (*batch, row, column)),)),),
            ),
        ]
        work = smallest(rows, FAMILIES.loops_rows) * smallest(columns, FAMILIES.loops_columns) * depth
        return self.job(
            statements, FAMILIES.loops_rows * FAMILIES.loops_columns * step, product(shape[:-2]) * down * across, work
        )


__all__ = ["offer_contraction_loops"]
