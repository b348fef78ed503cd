"""Resizing by nearest or linear interpolation, in the loop language: each result finds what it is made of by itself."""

from __future__ import annotations

from itertools import product as every

from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import FLOATS, DType, bool_, f32, f64, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.body import cast_to
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
    indices,
    sizes_in,
)
from dovetail.kernels.loops.tiling import Flat
from dovetail.kernels.spec import Job, TensorLocations, Tiles


def offer_resize(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a nearest or linear resize."""
    value = of.value
    if value.attrs["coordinates"] == "tf_crop_and_resize":
        return Refused("coordinates_are_compiled", "tf_crop_and_resize")
    attrs, dtype = value.attrs, value.dtype
    target = of.locations.target
    plain = not attrs["antialias"] and not attrs["exclude_outside"]
    is_linear = attrs["mode"] == "linear" and plain and dtype in (FLOATS if target.tiles.is_shared else (f32,))
    if not is_linear and (attrs["mode"] != "nearest" or not target.scalars.has_dtype(dtype)):
        floats = "floats" if target.tiles.is_shared else "f32"
        return Refused("mode_is_compiled", f"{attrs['mode']} of {dtype.name}", f"nearest, or plain linear of {floats}")
    return Offer(lambda: _job(value, of.locations))


def _job(value: Value, locations: TensorLocations) -> Job:
    x = value.operands[0]
    tiles = locations.target.tiles
    flat = Flat(value.shape, 1, tiles.threads) if tiles.is_shared else None
    at = (*indices(value.shape[:-1], Name("tile")), Name("i")) if flat is None else flat.at
    total = f64 if value.dtype is f64 else f32
    outside: list[Statement] = []
    inside: list[Statement] = []
    picks: list[list[tuple[Expr, Expr | None]]] = [[(index, None)] for index in at]
    axes: tuple[int, ...] = value.attrs["axes"]
    for number, axis in enumerate(axes):
        place = axis + value.rank
        # What depends on the row alone is found once for the row.
        body = inside if axis == -1 or flat is not None else outside
        picks[place] = _picked(value, number, at[place], f"p{number}", body, total)
    source = Tensor("x", x.dtype, locations(x).strides)
    found: Expr | None = None
    for pick in every(*picks):
        element: Expr = Load(source, tuple(index for index, _ in pick))
        for weight in [w for _, w in pick if w is not None]:
            # What has no weight is not counted: 0 times infinity would be NaN.
            empty = Call("equal", (weight, Number(0, total)), bool_)
            product_of = Call("mul", (cast_to(element, total), weight), total)
            element = Call("where", (empty, Number(0, total), product_of), total)
        found = element if found is None else Call("add", (found, element), total)
    assert found is not None, "an axis has at least one pick"
    store = Store(Tensor("y", value.dtype, locations(value).strides), at, cast_to(found, value.dtype))
    if flat is None:
        body = (*outside, Loop("i", Extent(value.shape[-1]), (*inside, store)))
        launch = Tiles(product(value.shape[:-1]), value.shape[-1] * 4)
    else:
        body = (*flat.head(Name("tile")), *flat.nest([*inside, store]))
        launch = Tiles(flat.tiles, flat.work * 4)
    kernel = Kernel("resize", ("x", "y"), ("y",), "tile", body, sizes=sizes_in(body))
    return Job(kernel, {"x": x, "y": value}, launch)


def _picked(
    value: Value, number: int, at: Expr, name: str, body: list[Statement], total: DType
) -> list[tuple[Expr, Expr | None]]:
    """Which elements along an axis a result is made of, with their weights; statements that find them go to a body."""
    attrs = value.attrs
    axis: int = attrs["axes"][number]
    length, size = value.operands[0].shape[axis], value.shape[axis]
    scale = None if attrs["scales"] is None else float(attrs["scales"][number])
    is_nearest = attrs["mode"] == "nearest"
    # Where a scale puts places between two pixels by its rounding alone, float32 decides, as it does elsewhere.
    precise = f32 if is_nearest and scale is not None else f64
    where = _Position(precise, length, size, scale).of(attrs["coordinates"], at)
    if is_nearest:
        body.append(Set(name, _inside(_rounded(attrs["rounding"], where, precise), length)))
        return [(Name(name), None)]
    low = Call("floor", (where,), f64)
    share = Call("sub", (where, low), f64)
    body.append(Set(name, _inside(low, length)))
    body.append(Set(f"{name}n", _inside(Call("add", (low, Number(1, f64)), f64), length)))
    body.append(Set(f"{name}w", cast_to(share, total)))
    body.append(Set(f"{name}v", cast_to(Call("sub", (Number(1, f64), share), f64), total)))
    return [(Name(name), Name(f"{name}v", total)), (Name(f"{name}n"), Name(f"{name}w", total))]


def _inside(at: Expr, length: Size) -> Expr:
    """The whole number nearest to a place that lies on the axis."""
    whole = Call("cast", (at,), i64)
    return Call("maximum", (Extent(0), Call("minimum", (whole, Extent(length - 1)), i64)), i64)


def _rounded(rounding: str, at: Expr, dtype: DType) -> Expr:
    half = Number(0.5, dtype)
    match rounding:
        case "round_prefer_floor":
            return Call("ceil", (Call("sub", (at, half), dtype),), dtype)
        case "round_prefer_ceil":
            return Call("floor", (Call("add", (at, half), dtype),), dtype)
        case _:
            return Call(rounding, (at,), dtype)


class _Position:
    """Where along an axis of the input a place of the result lies, in one precision."""

    def __init__(self, dtype: DType, length: Size, size: Size, scale: float | None) -> None:
        self.dtype = dtype
        self.scale = scale
        self.length, self.size = self._float(Extent(length)), self._float(Extent(size))
        self.last, self.steps = self._float(Extent(length - 1)), self._float(Extent(size - 1))
        self.is_one = Call("equal", (Extent(size), Extent(1)), bool_)

    def _float(self, whole: Expr) -> Expr:
        return Call("cast", (whole,), self.dtype)

    def _call(self, op: str, *operands: Expr) -> Expr:
        return Call(op, operands, self.dtype)

    def _number(self, value: float) -> Expr:
        return Number(value, self.dtype)

    def stretched(self, at: Expr) -> Expr:
        """A distance in the result, as one in the input."""
        if self.scale is not None:
            return self._call("div", at, self._number(self.scale))
        return self._call("div", self._call("mul", at, self.length), self.size)

    def of(self, coordinates: str, index: Expr) -> Expr:
        at, half = self._float(index), self._number(0.5)
        middle = self.stretched(self._call("add", at, half))
        match coordinates:
            case "half_pixel":
                return self._call("sub", middle, half)
            case "half_pixel_symmetric":
                ends = [self._call("div", x, self._number(2)) for x in (self.length, self.size)]
                centre = self._call("sub", ends[0], self.stretched(ends[1]))
                return self._call("sub", self._call("add", centre, middle), half)
            case "pytorch_half_pixel":
                return self._call("where", self.is_one, self._number(0), self._call("sub", middle, half))
            case "asymmetric":
                return self.stretched(at)
            case "tf_half_pixel_for_nn":
                return middle
            case _:
                spread = self._call("div", self._call("mul", at, self.last), self.steps)
                return self._call("where", self.is_one, self._number(0), spread)
