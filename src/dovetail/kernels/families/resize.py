"""Resizing in the loop language: each result computes which elements it reads, and their weights, by itself.

CPUs have nearest and plain linear; threads of a GPU also have cubic, antialias and every float.
"""

from __future__ import annotations

from itertools import product as every
from math import ceil, prod

from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, bool_, f32, f64, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.policy import FAMILIES
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
    """The kernel of a resize."""
    value = of.value
    if value.attrs["coordinates"] == "tf_crop_and_resize":
        return Refused("coordinates_are_compiled", "tf_crop_and_resize")
    attrs, dtype, target = value.attrs, value.dtype, of.locations.target
    if attrs["mode"] == "nearest":
        has = target.scalars.has_dtype(dtype)
        return Offer(lambda: _job(value, of.locations)) if has else Refused("dtype_is_compiled", dtype.name)
    if not target.tiles.is_shared and not (_is_plain_linear(value) and dtype is f32):
        return Refused("mode_is_compiled", f"{attrs['mode']} of {dtype.name}", "nearest, or plain linear of f32")
    taps = [_taps(value, number) for number in range(len(attrs["axes"]))]
    if not all(taps) or prod(n or 0 for n in taps) > FAMILIES.resize_taps:
        return Refused("taps_are_few", str(taps), f"at most {FAMILIES.resize_taps}, known before a run")
    return Offer(lambda: _job(value, of.locations))


def _is_plain_linear(value: Value) -> bool:
    attrs = value.attrs
    return attrs["mode"] == "linear" and not attrs["antialias"] and not attrs["exclude_outside"]


def _narrowed(value: Value, number: int) -> float | None:
    """What antialias multiplies distances by; None where a run decides it."""
    axis: int = value.attrs["axes"][number]
    length, size = value.operands[0].shape[axis], value.shape[axis]
    if not value.attrs["antialias"]:
        return 1.0
    if value.attrs["scales"] is not None:
        return min(1.0, float(value.attrs["scales"][number]))
    return min(1.0, size / length) if isinstance(size, int) and isinstance(length, int) and size else None


def _taps(value: Value, number: int) -> int | None:
    """Return how many elements along an axis a result reads; None where a run decides it."""
    narrow = _narrowed(value, number)
    return None if narrow is None else 2 * ceil((1 if value.attrs["mode"] == "linear" else 2) / narrow)


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
        # Weights and indices that depend on the row alone are computed once for the row.
        body = inside if axis == -1 or flat is not None else outside
        picks[place] = _picked(value, number, at[place], f"p{number}", body, total)
    source = Tensor("x", x.dtype, locations(x).strides)
    sum: Expr | None = None
    for pick in every(*picks):
        element: Expr = Load(source, tuple(index for index, _ in pick))
        for weight in [w for _, w in pick if w is not None]:
            # What has no weight is not counted: 0 times infinity would be NaN.
            empty = Call("equal", (weight, Number(0, total)), bool_)
            product_of = Call("mul", (cast_to(element, total), weight), total)
            element = Call("where", (empty, Number(0, total), product_of), total)
        sum = element if sum is None else Call("add", (sum, element), total)
    assert sum is not None, "an axis has at least one pick"
    store = Store(Tensor("y", value.dtype, locations(value).strides), at, cast_to(sum, value.dtype))
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
    """Return the elements along an axis that a result reads, with their weights; append what computes them."""
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
    if not _is_plain_linear(value):
        return _filtered(value, number, where, name, body, total)
    low = Call("floor", (where,), f64)
    share = Call("sub", (where, low), f64)
    body.append(Set(name, _inside(low, length)))
    body.append(Set(f"{name}n", _inside(Call("add", (low, Number(1, f64)), f64), length)))
    body.append(Set(f"{name}w", cast_to(share, total)))
    body.append(Set(f"{name}v", cast_to(Call("sub", (Number(1, f64), share), f64), total)))
    return [(Name(name), Name(f"{name}v", total)), (Name(f"{name}n"), Name(f"{name}w", total))]


def _filtered(
    value: Value, number: int, where: Expr, name: str, body: list[Statement], total: DType
) -> list[tuple[Expr, Expr | None]]:
    """The elements within reach of a filter, with weights by their distance."""
    attrs = value.attrs
    axis: int = attrs["axes"][number]
    length = value.operands[0].shape[axis]
    narrow, count = _narrowed(value, number), _taps(value, number)
    assert narrow is not None and count is not None, "the offer has checked it"
    at, low = Name(f"{name}at", f64), Name(f"{name}low", f64)
    body += [Set(at.name, where), Set(low.name, _f64("floor", at))]
    sum_: Expr = Number(0.0, f64)
    for k in range(count):
        element = _f64("add", low, Number(k + 1 - count // 2, f64))
        distance = _f64("mul", _f64("abs", _f64("sub", element, at)), Number(narrow, f64))
        weight = _weight(attrs["mode"], attrs["a"], distance)
        if attrs["exclude_outside"]:
            last = Call("cast", (Extent(length - 1),), f64)
            beyond = [Call("less", (element, Number(0.0, f64)), bool_), Call("greater", (element, last), bool_)]
            weight = Call("where", (Call("bit_or", tuple(beyond), bool_), Number(0.0, f64), weight), f64)
        body += [Set(f"{name}i{k}", _inside(element, length)), Set(f"{name}w{k}", weight)]
        sum_ = _f64("add", sum_, Name(f"{name}w{k}", f64))
    picks: list[tuple[Expr, Expr | None]] = []
    is_normal: bool = attrs["antialias"] or attrs["exclude_outside"]
    body += [Set(f"{name}sum", sum_)] if is_normal else []
    for k in range(count):
        own: Expr = Name(f"{name}w{k}", f64)
        share = _f64("div", own, Name(f"{name}sum", f64)) if is_normal else own
        body.append(Set(f"{name}s{k}", cast_to(share, total)))
        picks.append((Name(f"{name}i{k}"), Name(f"{name}s{k}", total)))
    return picks


def _weight(mode: str, a: float, d: Expr) -> Expr:
    """The weight of an element at a distance: linear, or Keys' cubic convolution."""
    if mode == "linear":
        return _f64("maximum", _f64("sub", Number(1.0, f64), d), Number(0.0, f64))
    inner = _f64("sub", _f64("mul", Number(a + 2, f64), d), Number(a + 3, f64))
    near = _f64("add", _f64("mul", _f64("mul", inner, d), d), Number(1.0, f64))
    outer = _f64("sub", _f64("mul", Number(a, f64), d), Number(5 * a, f64))
    far = _f64("sub", _f64("mul", _f64("add", _f64("mul", outer, d), Number(8 * a, f64)), d), Number(4 * a, f64))
    rest = Call("where", (Call("less", (d, Number(2.0, f64)), bool_), far, Number(0.0, f64)), f64)
    return Call("where", (Call("less_equal", (d, Number(1.0, f64)), bool_), near, rest), f64)


def _f64(op: str, *operands: Expr) -> Expr:
    return Call(op, operands, f64)


def _inside(at: Expr, length: Size) -> Expr:
    """A place as an integer, clamped to the axis."""
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
    """Where along an axis of the input a place of the result is, in one precision."""

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
