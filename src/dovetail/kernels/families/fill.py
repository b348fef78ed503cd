"""Fill: tensors computed from sizes alone, and random bits from a key and a number."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, i64, u32, u64
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    sizes_in,
)
from dovetail.kernels.loops.policy import TilePolicy
from dovetail.kernels.loops.tiling import cut
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.ops.generate import ROTATIONS, THREEFRY_PARITY
from dovetail.plan.plan import Step


def offer_fill(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a step that reads no tensor, or only a key."""
    if not of.locations.target.scalars.has_dtype(of.value.dtype):
        return Refused("dtype_is_compiled", of.value.dtype.name)
    return Offer(lambda: _job(of.step, of.locations))


def _job(step: Step, locations: TensorLocations) -> Job:
    value = step.value
    if value.op is ops.extent:
        store = Store(Tensor("y", value.dtype, ()), (), cast_to(Extent(value.attrs["size"]), value.dtype))
        return Job(
            Kernel("fill", ("y",), ("y",), "tile", (store,), sizes=sizes_in((store,))), {"y": value}, Tiles(1, 1)
        )
    if value.op is ops.iota:
        return _counted(step, value.shape[0], value.dtype, locations.target.tiles)
    return _random(step, locations)


def _counted(step: Step, size: Size, dtype: DType, tiles: TilePolicy) -> Job:
    boxes = cut((size,), dtype.itemsize, tiles)
    (index,) = boxes.at
    store = Store(Tensor("y", dtype, (dtype.itemsize,)), boxes.at, cast_to(index, dtype))
    body = (*boxes.head(Name("tile")), *boxes.nest([store]))
    kernel = Kernel("fill", ("y",), ("y",), "tile", body, sizes=sizes_in(body))
    return Job(kernel, {"y": step.value}, Tiles(boxes.tiles, boxes.work))


def _random(step: Step, locations: TensorLocations) -> Job:
    """Element i is the low bits of block i of the cipher."""
    value = step.value
    (key,) = value.operands
    boxes = cut(
        (value.tensor.count,), 64, locations.target.tiles
    )  # an element takes as long as some ten that are only moved
    (index,) = boxes.at
    keys = Tensor("key", u32, locations(key).strides)
    first, second = (Name(f"key{i}", u32) for i in (0, 1))
    third = _all("bit_xor", [first, second, Number(THREEFRY_PARITY, u32)])
    head: list[Statement] = [
        *boxes.head(Name("tile")),
        *(Set(f"key{i}", Load(keys, (Extent(i),))) for i in (0, 1)),
        Set("key2", third),
    ]
    low = cast_to(index, u32)
    high = cast_to(Call("shift_right", (index, Number(32, i64)), i64), u32)
    body = [*_threefry(low, high)]
    both = cast_to(Name("low", u32), u64)
    if value.dtype.bits > 32:
        upper = Call("shift_left", (cast_to(Name("high", u32), u64), Number(32, u64)), u64)
        both = Call("bit_or", (both, upper), u64)
    body.append(Store(Tensor("y", value.dtype, (value.dtype.itemsize,)), boxes.at, cast_to(both, value.dtype)))
    whole = (*head, *boxes.nest(body))
    kernel = Kernel("random", ("key", "y"), ("y",), "tile", whole, sizes=sizes_in(whole))
    return Job(kernel, {"key": key, "y": value}, Tiles(boxes.tiles, boxes.work * 16))


def _threefry(low: Expr, high: Expr) -> list[Statement]:
    """Both halves of the counter, as `low` and `high`, step by step as the meaning does it."""
    x, y = Name("low", u32), Name("high", u32)
    keys = [Name(f"key{i}", u32) for i in range(3)]
    statements: list[Statement] = [Set("low", _all("add", [low, keys[0]])), Set("high", _all("add", [high, keys[1]]))]
    for group in range(5):
        for turn in ROTATIONS[group % 2]:
            left = Call("shift_left", (y, Number(turn, u32)), u32)
            right = Call("shift_right", (y, Number(32 - turn, u32)), u32)
            statements.append(Set("low", _all("add", [x, y])))
            statements.append(Set("high", _all("bit_xor", [Call("bit_or", (left, right), u32), x])))
        statements.append(Set("low", _all("add", [x, keys[(group + 1) % 3]])))
        statements.append(Set("high", _all("add", [y, keys[(group + 2) % 3], Number(group + 1, u32)])))
    return statements


def _all(op: str, operands: Sequence[Expr]) -> Expr:
    joined = operands[0]
    for operand in operands[1:]:
        joined = Call(op, (joined, operand), u32)
    return joined
