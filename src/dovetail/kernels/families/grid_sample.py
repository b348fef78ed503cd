"""Grid sampling: each pixel of a grid finds its taps once, in scratch memory; then every channel gathers by them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product as every
from typing import TypeAlias

from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, bool_, f32, f64, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.policy import FAMILIES
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
    add,
    collapsed,
    indices,
    minimum,
    mul,
    sizes_in,
)
from dovetail.kernels.loops.tiling import Flat
from dovetail.kernels.spec import Job, TensorLocations, Tiles

Tap: TypeAlias = tuple[Expr, Expr]
"""Where a tap reads, and its weight in f64."""
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


def offer_grid_sample(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a grid sample of any rank, mode and padding."""
    value = of.value
    x, grid = value.operands
    for dtype in (x.dtype, grid.dtype):
        if not of.locations.target.scalars.has_dtype(dtype):
            return Refused("dtype_is_compiled", dtype.name)
    taps = _TAPS[value.attrs["mode"]] ** (value.rank - 2)
    if taps > FAMILIES.grid_taps:
        return Refused("taps_are_few", str(taps), f"at most {FAMILIES.grid_taps}")
    make = _by_thread if of.locations.target.tiles.is_shared else _job
    return Offer(lambda: make(value, of.locations))


def _by_thread(value: Value, locations: TensorLocations) -> Job:
    """A thread finds the taps of a pixel and samples a few channels; adjacent threads have adjacent pixels."""
    x, grid = value.operands
    total = f64 if value.dtype is f64 else f32
    read, by, written = (locations(v).strides for v in (x, grid, value))
    group = FAMILIES.grid_channels
    boxes = Flat(
        (value.shape[0], (x.shape[1] + (group - 1)) // group, *value.shape[2:]), 1, locations.target.tiles.threads
    )
    image, channels, *pixel = boxes.at
    places = [
        Load(Tensor("grid", grid.dtype, by[:-1], by[-1] * (x.rank - 3 - a)), (image, *pixel)) for a in range(x.rank - 2)
    ]
    taps, before = _taps(value, places, read)
    for t, (offset, weight) in enumerate(taps):
        before += [Set(f"tap{t}", offset), Set(f"weight{t}", _cast(weight, total))]
    first = mul(channels, Extent(group))
    before += [Set("first", first)]
    count = minimum(Extent(group), Call("sub", (Extent(x.shape[1]), Name("first")), i64))
    source = Tensor("x", x.dtype, (read[0], read[1], 1))
    channel = add(Name("first"), Name("c"))
    sampled = [(Load(source, (image, channel, Name(f"tap{t}"))), Name(f"weight{t}", total)) for t in range(len(taps))]
    store = Store(
        Tensor("y", value.dtype, written), (image, channel, *pixel), _cast(_weighted(sampled, total), value.dtype)
    )
    body = (*boxes.head(Name("tile")), *boxes.nest([*before, Loop("c", count, (store,))]))
    kernel = Kernel("grid_sample", ("x", "grid", "y"), ("y",), "tile", body, sizes=sizes_in(body))
    work = boxes.work * len(taps) * (group + 4)
    return Job(kernel, {"x": x, "grid": grid, "y": value}, Tiles(boxes.tiles, work))


def _weighted(sampled: Sequence[tuple[Expr, Expr]], total: DType) -> Expr:
    """The sum of elements times their weights."""
    result: Expr | None = None
    for element, weight in sampled:
        # A tap without weight does not count: 0 times infinity would be NaN.
        empty = Call("equal", (weight, Number(0, total)), bool_)
        term = Call("where", (empty, Number(0, total), Call("mul", (_cast(element, total), weight), total)), total)
        result = term if result is None else Call("add", (result, term), total)
    assert result is not None, "a pixel has at least one tap"
    return result


def _job(value: Value, locations: TensorLocations) -> Job:
    """A tile is a chunk of pixels of one image, in all channels."""
    x, grid = value.operands
    total = f64 if value.dtype is f64 else f32
    read, by, written = (locations(v).strides for v in (x, grid, value))
    shape, (by_pixel, to_pixel) = collapsed(grid.shape[1:-1], [by[1:-1], written[2:]])
    if not shape:
        shape, by_pixel, to_pixel = (1,), (0,), (0,)
    chunk = FAMILIES.grid_pixels
    chunks = (shape[-1] + (chunk - 1)) // chunk
    *outer, piece = indices((grid.shape[0], *shape[:-1], chunks), Name("tile"))
    head = [*(Set(f"r{a}", index) for a, index in enumerate(outer)), Set("start", mul(piece, Extent(chunk)))]
    rows = tuple(Name(f"r{a}") for a in range(len(outer)))
    count = minimum(Extent(chunk), Call("sub", (Extent(shape[-1]), Name("start")), i64))
    pixel = (*rows, add(Name("start"), Name("i")))

    places = [
        Load(Tensor("grid", grid.dtype, (by[0], *by_pixel), by[-1] * (x.rank - 3 - a)), pixel)
        for a in range(x.rank - 2)
    ]
    taps, statements = _taps(value, places, read)
    offsets = [Tensor("scratch", i64, (i64.itemsize,), t * chunk * i64.itemsize) for t in range(len(taps))]
    after = len(taps) * chunk * i64.itemsize
    weights = [
        Tensor("scratch", total, (total.itemsize,), after + t * chunk * total.itemsize) for t in range(len(taps))
    ]
    for (offset, weight), to_offset, to_weight in zip(taps, offsets, weights, strict=True):
        statements.append(Store(to_offset, (Name("i"),), offset))
        statements.append(Store(to_weight, (Name("i"),), _cast(weight, total)))

    source = Tensor("x", x.dtype, (read[0], read[1], 1))
    sampled = [
        (Load(source, (rows[0], Name("c"), Load(at_offset, (Name("i"),)))), Load(at_weight, (Name("i"),)))
        for at_offset, at_weight in zip(offsets, weights, strict=True)
    ]
    result = _weighted(sampled, total)
    target = Tensor("y", value.dtype, (written[0], written[1], *to_pixel))
    at = (rows[0], Name("c"), *rows[1:], add(Name("start"), Name("i")))
    store = Store(target, at, _cast(result, value.dtype))
    body: tuple[Statement, ...] = (
        *head,
        Set("count", count),
        Loop("i", Name("count"), tuple(statements)),
        Loop("c", Extent(x.shape[1]), (Loop("i", Name("count"), (store,)),)),
    )
    scratch = after + len(taps) * chunk * total.itemsize
    kernel = Kernel("grid_sample", ("x", "grid", "y"), ("y",), "tile", body, scratch=scratch, sizes=sizes_in(body))
    tiles: Size = product((grid.shape[0], *shape[:-1], chunks)) if x.shape[1] != 0 else 0
    work = chunk * len(taps) * (x.shape[1] + 4)
    return Job(kernel, {"x": x, "grid": grid, "y": value}, Tiles(tiles, work))


def _taps(value: Value, places: list[Load], strides: tuple[Size, ...]) -> tuple[list[Tap], list[Statement]]:
    """Each tap as its offset in bytes and its weight in f64, and the statements that find both."""
    statements: list[Statement] = []
    axes: list[list[Tap]] = []
    for a, place in enumerate(places):
        axis = _Axis(value.operands[0].shape[2 + a], value.attrs["align_corners"])
        picks: list[Tap] = []
        statements.append(Set(f"at{a}", axis.place(_cast(place, f64))))
        picked = axis.picks(Name(f"at{a}", f64), value.attrs["mode"], value.attrs["padding"])
        for k, (index, weight) in enumerate(picked):
            statements.append(Set(f"o{a}_{k}", mul(index, Extent(strides[2 + a]))))
            statements.append(Set(f"w{a}_{k}", weight))
            picks.append((Name(f"o{a}_{k}"), Name(f"w{a}_{k}", f64)))
        axes.append(picks)
    taps: list[Tap] = []
    for pick in every(*axes):
        offset, weight = pick[0]
        for more, factor in pick[1:]:
            offset, weight = add(offset, more), _f64("mul", weight, factor)
        taps.append((offset, weight))
    return taps, statements


class _Axis:
    """One axis of the image: where a coordinate of the grid is on it, and which pixels serve that place."""

    def __init__(self, size: Size, align_corners: bool) -> None:
        self.last = _cast(Extent(size - 1), f64)
        self.first = Number(0.0 if align_corners else -0.5, f64)
        self.width = self.last if align_corners else _cast(Extent(size), f64)

    def place(self, coordinate: Expr) -> Expr:
        half = _f64("div", _f64("add", coordinate, Number(1, f64)), Number(2, f64))
        return _f64("add", self.first, _f64("mul", half, self.width))

    def picks(self, at: Expr, mode: str, padding: str) -> list[Tap]:
        """Index and weight of every tap, as `ops.sampling.pixels_at` has them."""
        if mode == "cubic":
            low = _f64("floor", at)
            rest = _f64("sub", at, low)
            return [
                self._pixel(self._padded(_f64("add", low, Number(k, f64)), padding), _cubic(rest, k))
                for k in (-1, 0, 1, 2)
            ]
        at = self._padded(at, padding)
        if mode == "nearest":
            return [self._pixel(_f64("round", at), Number(1, f64))]
        low = _f64("floor", at)
        rest = _f64("sub", at, low)
        shares = (_f64("sub", Number(1, f64), rest), rest)
        return [self._pixel(_f64("add", low, Number(k, f64)), share) for k, share in enumerate(shares)]

    def _padded(self, at: Expr, padding: str) -> Expr:
        if padding == "zeros":
            return at
        if padding == "reflection":
            # Every second copy of the image runs backwards. An image of width 0 has one place.
            twice = _f64("add", self.width, self.width)
            beyond = _f64("sub", at, self.first)
            copies = _f64("floor", _f64("div", beyond, twice))
            turn = _f64("sub", beyond, _f64("mul", copies, twice))
            turn = _f64("minimum", turn, _f64("sub", twice, turn))
            flat = Call("equal", (self.width, Number(0, f64)), bool_)
            turn = Call("where", (flat, Number(0, f64), turn), f64)
            at = _f64("add", self.first, turn)
        return _f64("minimum", _f64("maximum", at, Number(0, f64)), self.last)

    def _pixel(self, at: Expr, weight: Expr) -> Tap:
        """Index and weight of one tap; outside of the image it weighs nothing, and at NaN the weight is NaN."""
        above = Call("greater_equal", (at, Number(0, f64)), bool_)
        inside = Call("bit_and", (above, Call("less_equal", (at, self.last), bool_)), bool_)
        index = _cast(Call("where", (inside, at, Number(0, f64)), f64), i64)
        odd = Call("where", (Call("is_nan", (at,), bool_), Number(math.nan, f64), Number(0, f64)), f64)
        return index, Call("where", (inside, weight, odd), f64)


def _cubic(rest: Expr, k: int, a: float = -0.75) -> Expr:
    """The weight of Keys' cubic convolution for the tap `k` of a place `rest` after its pixel."""
    d = _f64("abs", _f64("sub", rest, Number(k, f64)))
    if k in (0, 1):
        slope = _f64("sub", _f64("mul", Number(a + 2, f64), d), Number(a + 3, f64))
        return _f64("add", _f64("mul", _f64("mul", slope, d), d), Number(1, f64))
    inner = _f64(
        "add", _f64("mul", _f64("sub", _f64("mul", Number(a, f64), d), Number(5 * a, f64)), d), Number(8 * a, f64)
    )
    far = _f64("sub", _f64("mul", inner, d), Number(4 * a, f64))
    return Call("where", (Call("greater_equal", (d, Number(2, f64)), bool_), Number(0, f64), far), f64)


def _f64(op: str, *operands: Expr) -> Expr:
    return Call(op, operands, f64)


def _cast(x: Expr, dtype: DType) -> Expr:
    return x if x.dtype is dtype else Call("cast", (x,), dtype)


__all__ = ["offer_grid_sample"]
