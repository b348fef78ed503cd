"""Slide: pools and depthwise convolutions, in which a thread reduces the window of each of its results.

Neighbouring threads have neighbouring results in memory: pixels, or channels where those are innermost, which are then
read and written in vectors. All taps of a small window are loaded before the first is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.cost import kernel_cost
from dovetail.declare.machine import MAP, Cost
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import DType, bool_, f32, f64, i64
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.families.pool_loops import counted
from dovetail.kernels.gpu.conv.packed_filters import DepthwiseByTap
from dovetail.kernels.gpu.gemm.fragments import Coordinate, both, divided, is_multiple, less, private, unrolled
from dovetail.kernels.loops.along import Along
from dovetail.kernels.loops.body import cast_to, overwritten_operands
from dovetail.kernels.loops.folds import fold_of
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Call,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    indices,
    mul,
    sizes_in,
    stretched,
)
from dovetail.kernels.problems.contraction import epilogue_of
from dovetail.kernels.problems.windows import Windowed, find_windowed
from dovetail.kernels.spec import ALIGNMENT, Binding, Job, Packed, TensorLocations, Tiles
from dovetail.plan.alias import dense_strides

THREADS = 128
UNROLLED = 32
"""Taps up to which the code of each is written out."""
_E = Name("e")


def offer_depthwise(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of a convolution whose filters see one channel each."""
    conv = of.once(find_windowed)
    if isinstance(conv, Refused):
        return conv
    if not conv.is_depthwise:
        return Refused("filters_see_one_channel", str(conv.channels))

    def cost() -> Cost:
        return replace(kernel_cost(of.value), kind=MAP, dense=0, dtype=f32)

    return Offer(lambda: _depthwise(of, conv), cost)


def offer_pool(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of a pool."""
    x, scalars = of.value.operands[0], of.locations.target.scalars
    if not scalars.has_dtype(x.dtype):
        return Refused("dtype_is_compiled", x.dtype.name)
    if of.value.op is ops.lp_pool and of.value.attrs["p"] not in (1, 2) and not scalars.has("pow", _wide(x.dtype)):
        return Refused("powers_are_compiled", x.dtype.name)
    return Offer(lambda: _pool(of))


def _wide(dtype: DType) -> DType:
    """What sums are kept in."""
    return f64 if dtype is f64 else f32 if dtype.is_float else dtype


@dataclass(frozen=True, slots=True)
class _Slide:
    """A window over an image: which results a thread has, and which pixels it sees."""

    x: Tensor
    """Strides of images, channels and pixels."""
    shape: tuple[Size, ...]
    """Of the result."""
    axes: tuple[Along, ...]
    window: tuple[int, ...]
    by_channel: bool
    """Whether neighbours of the result are channels."""
    width: int
    """Results of a thread, which are neighbours."""
    per_channel: int = 1
    """Results for each channel of the image."""

    @staticmethod
    def of(
        x: Tensor, result: Value, locations: TensorLocations, axes: tuple[Along, ...], window: tuple[int, ...], per: int
    ) -> _Slide:
        item = x.dtype.itemsize
        by_channel = locations(result).strides[1] == result.dtype.itemsize and result.shape[1] != 1
        vector = ALIGNMENT // item
        wide = by_channel and x.strides[1] == item and per == 1 and is_multiple(result.shape[1], vector)
        return _Slide(x, result.shape, axes, window, by_channel, vector if wide else 1, per)

    @property
    def groups(self) -> Size:
        """Results in groups of neighbours."""
        return floordiv(product(self.shape), self.width) if self.width > 1 else product(self.shape)

    @property
    def image(self) -> Expr:
        return Name("image")

    @property
    def channel(self) -> Expr:
        """That of a result, and of neighbour `e` of it."""
        return Name("channel") if self.width == 1 else add(Name("channel"), _E)

    @property
    def places(self) -> tuple[Name, ...]:
        return tuple(Name(f"o{i}") for i in range(len(self.axes)))

    @property
    def at(self) -> tuple[Expr, ...]:
        """The index of a result."""
        return (self.image, self.channel, *self.places)

    def head(self) -> list[Statement]:
        """The index of a group of results."""
        first, channels, *out = self.shape
        names = ("image", *(p.name for p in self.places), "channel")
        shape: tuple[Size, ...] = (first, *out, floordiv(channels, self.width) if self.width > 1 else channels)
        if not self.by_channel:
            names, shape = ("image", "channel", *(p.name for p in self.places)), self.shape
        axes = zip(names, indices(shape, Name("own")), strict=True)
        return [Set(n, mul(i, Extent(self.width)) if n == "channel" else i) for n, i in axes]

    def seen(self, taps: Sequence[Expr]) -> tuple[Coordinate, ...]:
        """Where a tap looks."""
        along = zip(self.axes, self.places, taps, strict=True)
        return tuple(Coordinate(axis.place(out, tap), axis.size) for axis, out, tap in along)

    def pixel(self, taps: Sequence[Expr]) -> tuple[Expr, Expr]:
        """What a tap sees, read where there is an element, and whether it is that of the tap."""
        coordinates = self.seen(taps)
        channel = self.channel if self.per_channel == 1 else divided(self.channel, self.per_channel)
        value = Load(self.x, (self.image, channel, *(one.clamped for one in coordinates)))
        return value, both(*(c for one in coordinates for c in one.conditions))

    def each_tap(self, body: Callable[[tuple[Expr, ...]], Sequence[Statement]]) -> tuple[Statement, ...]:
        """A body for every tap and every neighbour."""
        taps = tuple(Name(f"k{i}") for i in range(len(self.window)))
        statements = tuple(body(taps))
        statements = statements if self.width == 1 else (unrolled("e", self.width, *statements),)
        kind = "unrolled" if prod(self.window) <= UNROLLED else "serial"
        for tap, count in reversed(list(zip(taps, self.window, strict=True))):
            statements = (Loop(tap.name, Extent(count), statements, kind=kind),)
        return statements

    def each(self, *body: Statement) -> Statement | Loop:
        """A body for every neighbour."""
        return unrolled("e", self.width, *body)

    def job(
        self, name: str, bindings: Mapping[str, Binding], written: tuple[str, ...], body: Sequence[Statement]
    ) -> Job:
        """A thread for each group of results."""
        allocations = [s for s in body if isinstance(s, Alloc)]
        rest = tuple(s for s in body if not isinstance(s, Alloc))
        tiles = floordiv(self.groups + (THREADS - 1), THREADS)
        own = Set("own", add(mul(Name("tile"), Extent(THREADS)), ThreadIndex("thread")))
        inside = When(less(Name("own"), Extent(self.groups)), (*self.head(), *rest))
        statements = (*allocations, Loop("tile", Extent(tiles), (own, inside), kind="block"))
        launch, sizes = Launch(tiles, THREADS), sizes_in(statements)
        kernel = Kernel(name, tuple(bindings), written, "tile", statements, sizes=sizes, launch=launch)
        return Job(kernel, bindings, Tiles(tiles, THREADS * self.width * prod(self.window)))


def _neighbour(slide: _Slide) -> Expr:
    return ZERO if slide.width == 1 else _E


def _pool(of: StepProblem[GpuDevice]) -> Job:
    value, locations = of.value, of.locations
    (x,), attrs, results = value.operands, value.attrs, of.step.results
    shape = results[0].shape
    axes = tuple(
        Along(x.shape[2 + i], shape[2 + i], attrs["strides"][i], attrs["dilations"][i], attrs["padding"][i])
        for i in range(len(shape) - 2)
    )
    source = Tensor("x", x.dtype, locations(x).strides)
    slide = _Slide.of(source, results[0], locations, axes, attrs["window"], 1)
    targets = [Tensor(f"y{i}", r.dtype, locations(r).strides) for i, r in enumerate(results)]
    bindings: dict[str, Binding] = {"x": x, **{f"y{i}": r for i, r in enumerate(results)}}
    written = tuple(t.pointer for t in targets)
    if value.op is ops.max_pool_indices:
        slide = replace(slide, width=1)
        return slide.job(value.op.name, bindings, written, _indexed(slide, x.dtype, targets))
    return slide.job(value.op.name, bindings, written, _folded(slide, value, axes, targets[0]))


def _folded(slide: _Slide, value: Value, axes: Sequence[Along], target: Tensor) -> list[Statement]:
    dtype, attrs = value.dtype, value.attrs
    fold = fold_of("max" if value.op is ops.max_pool else "sum", dtype)
    kept = private("kept", fold.part, 1)
    here, nothing = (_neighbour(slide),), fold.first(fold.part)

    def take(taps: tuple[Expr, ...]) -> list[Statement]:
        pixel, inside = slide.pixel(taps)
        element = cast_to(pixel, fold.part)
        if value.op is ops.lp_pool:
            element = _power(Call("abs", (element,), fold.part), attrs["p"])
        shown = Call("where", (inside, element, nothing), fold.part)
        return [Store(kept, here, fold.take(Load(kept, here), shown))]

    result: Expr = Load(kept, here)
    if value.op is ops.average_pool:
        count = cast_to(counted(value, list(axes), slide.places), fold.part)
        result = Call("div", (result, count), fold.part)
    elif value.op is ops.lp_pool:
        result = _root(result, attrs["p"])
    return [
        Alloc("kept", fold.part, slide.width, "private"),
        slide.each(Store(kept, here, nothing)),
        *slide.each_tap(take),
        slide.each(Store(target, slide.at, cast_to(result, dtype))),
    ]


def _power(x: Expr, p: float) -> Expr:
    if p == 1:
        return x
    return Call("mul", (x, x), x.dtype) if p == 2 else Call("pow", (x, Number(p, x.dtype)), x.dtype)


def _root(x: Expr, p: float) -> Expr:
    if p == 1:
        return x
    return Call("sqrt", (x,), x.dtype) if p == 2 else Call("pow", (x, Number(1 / p, x.dtype)), x.dtype)


def _indexed(slide: _Slide, dtype: DType, targets: Sequence[Tensor]) -> list[Statement]:
    """The largest element of each window, and its number in its channel: the first of equals, and NaN before all."""
    best, place = private("best", dtype, 1), private("place", i64, 1)
    here = (ZERO,)

    def take(taps: tuple[Expr, ...]) -> list[Statement]:
        pixel, inside = slide.pixel(taps)
        number: Expr = ZERO
        for axis, one in zip(slide.axes, slide.seen(taps), strict=True):
            number = add(mul(number, Extent(axis.size)), one.clamped)
        element, most, held = Name("element", dtype), Load(best, here), Load(place, here)
        better: Expr = Call("bit_or", (less(held, ZERO), Call("greater", (element, most), bool_)), bool_)
        if dtype.is_float:
            odd, even = Call("not_equal", (element, element), bool_), Call("equal", (most, most), bool_)
            better = Call("bit_or", (better, both(odd, even)), bool_)
        taken = (Store(best, here, element), Store(place, here, number))
        return [Set("element", pixel), Set("is_better", both(inside, better)), When(Name("is_better", bool_), taken)]

    low = fold_of("max", dtype).first(dtype)
    return [
        Alloc("best", dtype, 1, "private"),
        Alloc("place", i64, 1, "private"),
        Store(best, here, low),
        Store(place, here, Number(-1, i64)),
        *slide.each_tap(take),
        Store(targets[0], slide.at, Load(best, here)),
        Store(targets[1], slide.at, Load(place, here)),
    ]


def _depthwise(of: StepProblem[GpuDevice], conv: Windowed) -> Job:
    step, locations, contraction = of.step, of.locations, conv.contraction
    body, total = contraction.body, _wide(conv.value.dtype)
    operands = list(dict.fromkeys(contraction.operand(v) for v in (conv.x, conv.w, *contraction.operands)))
    overwritten = overwritten_operands(step, locations)
    names = {v: f"x{i}" for i, v in enumerate(v for v in operands if v not in overwritten)}
    bindings: dict[str, Binding] = {name: v for v, name in names.items()}
    names |= dict.fromkeys(overwritten, "y0")

    def tensor(view: Value, strides: tuple[Size, ...]) -> Tensor:
        return Tensor(names[contraction.operand(view)], view.dtype, strides, body.views[view].offset)

    x = tensor(conv.x, body.views[conv.x].strides)
    slide = _Slide.of(x, step.results[0], locations, conv.axes, conv.window, conv.filters)
    filters = contraction.operand(conv.w)
    weights = tensor(conv.w, (body.views[conv.w].strides[0], *body.views[conv.w].strides[2:]))
    if slide.width > 1 and conv.w in body.arguments and locations.is_bound(filters):
        others = (conv.x, *contraction.operands)
        if all(contraction.operand(v) is not filters for v in others):
            del bindings[names[filters]]
        bindings["w"] = Packed(filters, DepthwiseByTap().layout, DepthwiseByTap())
        *taps, channel = dense_strides(TensorType(conv.w.dtype, (*conv.window, conv.groups)))
        weights = Tensor("w", conv.w.dtype, (channel, *taps))
    bindings |= {f"y{i}": r for i, r in enumerate(step.results)}
    sums, here = private("sums", total, 1), (_neighbour(slide),)

    def take(taps: tuple[Expr, ...]) -> list[Statement]:
        pixel, inside = slide.pixel(taps)
        weight = cast_to(Load(weights, (slide.channel, *taps)), total)
        shown = Call("where", (inside, cast_to(pixel, total), Number(0, total)), total)
        return [Store(sums, here, Call("add", (Load(sums, here), Call("mul", (shown, weight), total)), total))]

    known: dict[Value, Sequence[Expr]] = {conv.value: [cast_to(Load(sums, here), conv.value.dtype)]}
    for view in contraction.operands:
        strides = stretched(body.views[view].strides, view.shape, conv.value.shape)
        known[view] = [Load(tensor(view, strides), slide.at)]
    stores = [
        Store(Tensor(f"y{i}", r.dtype, locations(r).strides), slide.at, value)
        for i, (r, value) in enumerate(zip(step.results, epilogue_of(contraction, known), strict=True))
    ]
    statements: list[Statement] = [
        Alloc("sums", total, slide.width, "private"),
        slide.each(Store(sums, here, Number(0, total))),
        *slide.each_tap(take),
        slide.each(*stores),
    ]
    return slide.job("depthwise", bindings, tuple(f"y{i}" for i in range(len(step.results))), statements)


__all__ = ["offer_depthwise", "offer_pool"]
