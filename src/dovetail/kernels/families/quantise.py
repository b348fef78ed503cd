"""Quantise: between floats and narrow integers, element by element, with steps for a tensor or along an axis."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_, f32, f64, i32, whole_range
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Call, Expr, Kernel, Load, Name, Number, Store, Tensor, collapsed, sizes_in
from dovetail.kernels.loops.tiling import cut
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.alias import dense_strides


def offer_quantise(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of quantise or dequantise."""
    dtypes = [v.dtype for v in (of.value, *of.value.operands)]
    odd = [dtype.name for dtype in dtypes if not of.locations.target.scalars.has_dtype(dtype)]
    if odd:
        return Refused("dtypes_are_compiled", odd[0])
    return Offer(lambda: _job(of.value, of.locations))


def _job(value: Value, locations: TensorLocations) -> Job:
    x, *beside = value.operands
    strides = [
        dense_strides(value.tensor),
        locations(x).strides,
        *(_spread(value, locations(v).strides) for v in beside),
    ]
    shape, (target, *sources) = collapsed(value.shape, strides)
    boxes = cut(shape, value.dtype.itemsize * 4, locations.target.tiles)
    loads: list[Expr] = [
        Load(Tensor(name, v.dtype, s), boxes.at) for name, v, s in zip("xsz", value.operands, sources, strict=True)
    ]
    element = _quantised(value, *loads) if value.op is ops.quantise else _dequantised(value, *loads)
    store = Store(Tensor("y", value.dtype, target), boxes.at, element)
    body = (*boxes.head(Name("tile")), *boxes.nest([store]))
    kernel = Kernel("quantise", ("x", "s", "z", "y"), ("y",), "tile", body, sizes=sizes_in(body))
    bindings = dict(zip("xsz", value.operands, strict=True))
    return Job(kernel, {**bindings, "y": value}, Tiles(boxes.tiles, boxes.work * 4))


def _spread(value: Value, strides: tuple[Size, ...]) -> tuple[Size, ...]:
    """The strides of a number, or of a vector along the axis, against the whole shape."""
    axis: int | None = value.attrs["axis"]
    return tuple(strides[0] if axis is not None and a - value.rank == axis else 0 for a in range(value.rank))


def _quantised(value: Value, x: Expr, scale: Expr, zero: Expr) -> Expr:
    low, high = whole_range(value.dtype)
    if value.dtype.bits <= 16 and _is_plain(value):
        steps = Call("round", (_quotient(x, scale),), f32)
        return cast_to(cast_to(_kept(Call("add", (steps, cast_to(zero, f32)), f32), low, high), i32), value.dtype)
    steps = Call("round", (Call("div", (x, scale), x.dtype),), x.dtype)
    if value.dtype.bits > 16:
        return cast_to(Call("add", (cast_to(steps, f64), cast_to(zero, f64)), f64), value.dtype)
    # Beyond this the zero point brings nothing back into range, and up to it sums are exact.
    wide = f64 if x.dtype is f64 else f32
    near = _kept(cast_to(steps, wide), -FAR, FAR)
    moved = _kept(Call("add", (near, cast_to(zero, wide)), wide), low, high)
    return cast_to(cast_to(moved, i32), value.dtype)


FAR = 1 << 17


def _is_plain(value: Value) -> bool:
    """Whether f32 is divided by one number that is known, and whose reciprocal is as exact as it is."""
    scale = leaf.scalar_of(value.operands[1])
    return value.operands[0].dtype is f32 and isinstance(scale, float) and 1e-20 < scale < 1e20


def _quotient(x: Expr, scale: Expr) -> Expr:
    """x / scale, rounded once, as far as `FAR`: a product, and what it misses the quotient by."""
    inverse = Call("div", (Number(1.0, f32), scale), f32)
    far = Call("mul", (Number(FAR, f32), scale), f32)
    x = _between(x, Call("neg", (far,), f32), far)
    near = Call("mul", (x, inverse), f32)
    missed = Call("fma", (Call("neg", (near,), f32), scale, x), f32)
    return Call("fma", (missed, inverse, near), f32)


def _kept(x: Expr, low: int, high: int) -> Expr:
    """x within bounds; NaN stays."""
    return _between(x, Number(low, x.dtype), Number(high, x.dtype))


def _between(x: Expr, low: Expr, high: Expr) -> Expr:
    for op, edge in (("less", low), ("greater", high)):
        x = Call("where", (Call(op, (x, edge), bool_), edge, x), x.dtype)
    return x


def _dequantised(value: Value, x: Expr, scale: Expr, zero: Expr) -> Expr:
    if value.dtype is f32 and scale.dtype is f32 and value.operands[0].dtype.bits <= 16:
        # So few steps are exact in f32, and the product is rounded once.
        steps = Call("sub", (cast_to(x, i32), cast_to(zero, i32)), i32)
        return Call("mul", (cast_to(steps, f32), scale), f32)
    steps = Call("sub", (cast_to(x, f64), cast_to(zero, f64)), f64)
    return cast_to(Call("mul", (steps, cast_to(scale, f64)), f64), value.dtype)
