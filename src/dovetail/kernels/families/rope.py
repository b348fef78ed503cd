"""Rope: pairs of features rotated by the angle of their position, in one pass over rows that stay where they are."""

from __future__ import annotations

from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, bf16, f16, f32, f64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Statement,
    Store,
    Tensor,
    add,
    indices,
    mul,
    sizes_in,
    stretched,
)
from dovetail.kernels.spec import Job, TensorLocations, Tiles


def offer_rope(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a rope or a partial one."""
    value = of.value
    assert isinstance(value.op, FusedOp), "the table lists its ops"
    call = value.op.arguments(value.operands, value.attrs)
    operands: dict[str, Value] = {name: call[name] for name in ("x", "cos", "sin")}
    rotated: Size = call.get("rotated") or value.shape[-1]
    if not isinstance(rotated, int) or rotated % 2 or value.rank <= 1:
        return Refused("rotated_features_are_even", str(rotated), "an even number")
    if of.step.over is not None:
        return Refused("result_has_its_own_memory", "the memory of an operand")
    if any(v.dtype is not value.dtype for v in operands.values()):
        return Refused("operands_share_a_dtype", ", ".join(v.dtype.name for v in operands.values()), value.dtype.name)
    if value.dtype not in (f16, bf16, f32, f64):
        return Refused("dtype_is_a_float", value.dtype.name, "f16, bf16, f32 or f64")
    return Offer(lambda: _job(value, of.locations, operands, rotated, call["form"]))


def _job(value: Value, locations: TensorLocations, operands: dict[str, Value], rotated: int, form: str) -> Job:
    width = value.shape[-1]
    tensors = {"y": Tensor("y", value.dtype, locations(value).strides)}
    for name, v in operands.items():
        tensors[name] = Tensor(name, v.dtype, stretched(locations(v).strides, v.shape, value.shape))
    lead = indices(value.shape[:-2], Name("tile"))
    body: list[Statement] = [_turned(tensors, lead, rotated, form, value.dtype)]
    if rotated != width:
        c = add(Extent(rotated), Name("c"))
        same = Store(tensors["y"], (*lead, Name("row"), c), Load(tensors["x"], (*lead, Name("row"), c)))
        body.append(Loop("c", Extent(width - rotated), (same,)))
    rows = (Loop("row", Extent(value.shape[-2]), tuple(body)),)
    kernel = Kernel("rope", ("x", "cos", "sin", "y"), ("y",), "tile", rows, sizes=sizes_in(rows))
    return Job(kernel, {**operands, "y": value}, Tiles(product(value.shape[:-2]), value.shape[-2] * width))


def _turned(tensors: dict[str, Tensor], lead: tuple[Expr, ...], rotated: int, form: str, dtype: DType) -> Loop:
    """x * cos + (-b, a) * sin for every pair (a, b)."""
    if form == "half":
        first: Expr = Name("i")
        second: Expr = add(Name("i"), Extent(rotated // 2))
    else:
        first = mul(Name("i"), Extent(2))
        second = add(first, Extent(1))

    def at(name: str, c: Expr) -> Expr:
        return Load(tensors[name], (*lead, Name("row"), c))

    def turned(c: Expr, other: Expr) -> Store:
        kept, moved = (Call("mul", xs, dtype) for xs in ((at("x", c), at("cos", c)), (other, at("sin", c))))
        return Store(tensors["y"], (*lead, Name("row"), c), Call("add", (kept, moved), dtype))

    pair = turned(first, Call("neg", (at("x", second),), dtype)), turned(second, at("x", first))
    return Loop("i", Extent(rotated // 2), pair)


__all__ = ["offer_rope"]
