"""Table: casts to and from the narrow types, by a table of all that an element can be.

An f32 is looked up by its upper half, the lowest bit of which is set where the lower half is not 0: no type of 8 bits
has enough digits for the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import numpy as np

from dovetail.ir import leaf
from dovetail.ir.dtype import NARROW, DType, bf16, bool_, f32, i64, u8, u32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Call, Expr, Kernel, Load, Name, Number, Store, Tensor, collapsed, sizes_in
from dovetail.kernels.loops.tiling import cut, word
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.ops.conversion import Rounding, converted
from dovetail.plan.alias import dense_strides
from dovetail.plan.plan import Step


def offer_table(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a cast to or from a narrow type."""
    (x,) = of.value.operands
    source, target = x.dtype, of.value.dtype
    if (source not in NARROW and target not in NARROW) or "complex" in (source.kind, target.kind):
        return Refused("one_dtype_is_narrow", f"{source.name} to {target.name}", "a float of 8 bits, or 4 bits")
    is_bits = target in NARROW and target.is_integer and source.itemsize > 2
    if not is_bits and source.itemsize > 2 and source is not f32:
        return Refused("source_is_indexable", source.name, "f32, or at most 16 bits")
    return Offer(lambda: _job(of.step, x, of.locations, is_bits))


def _job(step: Step, x: Value, locations: TensorLocations, is_bits: bool) -> Job:
    value, source, target = step.value, x.dtype, step.value.dtype
    if is_bits:
        return cast_job(
            step, locations, source, lambda x: cast_to(Call("bit_and", (cast_to(x, i64), _mask(target)), i64), u8)
        )
    saturate: bool = value.attrs.get("saturate", True)
    table = _table(source, target, saturate, value.attrs.get("rounding", "up"))
    entries = Tensor("t", word(target), (target.itemsize,))
    return cast_job(
        step, locations, word(source), lambda x: Load(entries, (cast_to(_key(x, source), i64),)), {"t": table}
    )


def cast_job(
    step: Step,
    locations: TensorLocations,
    read_as: DType,
    convert: Callable[[Expr], Expr],
    tables: Mapping[str, Value] = MappingProxyType({}),
    name: str = "table",
) -> Job:
    """The kernel that stores, for each element of the operand, what `convert` makes of it."""
    value, (x,) = step.value, step.value.operands
    shape, (written, read) = collapsed(value.shape, [dense_strides(value.tensor), locations(x).strides])
    boxes = cut(shape, max(x.dtype.itemsize, value.dtype.itemsize), locations.target.tiles)
    pointer = "y" if step.over is not None and locations(x).root is step.over else "x"
    bindings: dict[str, Value] = {**({} if pointer == "y" else {"x": x}), **tables, "y": value}
    element = convert(Load(Tensor(pointer, read_as, read), boxes.at))
    store = Store(Tensor("y", element.dtype, written), boxes.at, element)
    body = (*boxes.head(Name("tile")), *boxes.nest([store]))
    kernel = Kernel(name, tuple(bindings), ("y",), "tile", body, sizes=sizes_in(body))
    return Job(kernel, bindings, Tiles(boxes.tiles, boxes.work * 2))


def _mask(dtype: DType) -> Number:
    return Number((1 << dtype.bits) - 1, i64)


def _key(bits: Expr, source: DType) -> Expr:
    """Which element of the table an element is."""
    if source is not f32:
        return bits
    rest = Call("not_equal", (Call("bit_and", (bits, Number(0xFFFF, u32)), u32), Number(0, u32)), bool_)
    return Call("bit_or", (Call("shift_right", (bits, Number(16, u32)), u32), cast_to(rest, u32)), u32)


@cache
def _table(source: DType, target: DType, saturate: bool, rounding: Rounding) -> Value:
    """What each pattern of bits becomes."""
    if source.itemsize == 1:
        patterns = np.arange(256, dtype=np.uint8)
        values = patterns != 0 if source is bool_ else patterns.view(source.numpy)
    else:
        values = np.arange(1 << 16, dtype=np.uint16).view((bf16 if source is f32 else source).numpy)
    with np.errstate(all="ignore"):
        # A key of f32 is a number of bf16; as f64 it is one that every path takes.
        wide = values.astype(np.float64) if source is f32 else values
        return leaf.constant(converted(wide, target, saturate=saturate, rounding=rounding))
