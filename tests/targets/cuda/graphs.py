"""Graphs for the CUDA kernels of maps, rows, reductions and moves, and the sizes that they run at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dovetail import Value, library, ops
from dovetail.errors import TypeRuleError
from dovetail.ir.dtype import FLOATS, DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8, u16
from dovetail.ir.leaf import constant, input
from dovetail.ir.literal import Array
from dovetail.kernels.loops.body import is_compiled
from dovetail.targets.gpu.loops import LOOPS

EPS = 1e-5
COMPUTED = (bool_, i8, i32, i64, u8, u16, f16, bf16, f32, f64)


@dataclass(frozen=True, slots=True)
class Case:
    """Outputs of a graph, and the sizes of each run; one compilation serves them all."""

    outputs: Mapping[str, Value]
    sizes: tuple[Mapping[str, int], ...] = ({},)
    scale: float = 1.0
    """Stretches the tolerance: by how many roundings a chain of narrow floats has."""
    small: bool = False
    """Whether inputs are kept near 1, so that products of many stay finite."""


def x_of(dtype: DType, *shape: int | str, name: str = "x") -> Value:
    return input(name, dtype[shape])


def _elementwise(dtype: DType) -> dict[str, Value]:
    """Every primitive that the target has for a dtype."""
    given = tuple(x_of(dtype, 37, name=n) for n in "xyz")
    asked = x_of(bool_, 37, name="asked")
    found: dict[str, Value] = {}
    for op in ops.ALL:
        if not op.elementwise or op.name in ("cast", "cast_f8", "bitcast"):
            continue
        operands = (asked, *given[1:]) if op.name == "where" else given[: op.arity]
        try:
            value = op(*operands)
        except TypeRuleError:
            continue
        if is_compiled(value, LOOPS.scalars):
            found[op.name] = value
    for other in COMPUTED:
        if other is not dtype:
            found[f"cast_{other.name}"] = ops.cast(given[0], dtype=other)
    return found


def _norms(dtype: DType, *shape: int | str) -> dict[str, Value]:
    x, y = x_of(dtype, *shape), x_of(dtype, *shape, name="y")
    gain, bias = x_of(dtype, shape[-1], name="gain"), x_of(dtype, shape[-1], name="bias")
    total, normed = (ops.add(x, y), library.layer_norm(x, gain, bias, eps=EPS))
    return {
        "softmax": library.softmax(x),
        "log_softmax": library.log_softmax(x),
        "layer_norm": normed,
        "rms_norm": library.rms_norm(y, gain, eps=EPS),
        "residual": library.layer_norm(total, gain, eps=EPS) + y,
    }


def _reductions(dtype: DType, *shape: int | str) -> dict[str, Value]:
    x = x_of(dtype, *shape)
    rank = len(shape)
    found: dict[str, Value] = {}
    every = [(-1,), (-rank,), tuple(range(-rank, 0))]
    every += [(-2,), (-2, -1), (-rank, -1)] if rank > 2 else []
    for axes in every:
        name = "_".join(str(-a) for a in axes)
        found[f"sum_{name}"] = ops.reduce_sum(x, axes=axes)
        found[f"max_{name}"] = ops.reduce_max(x, axes=axes)
        if dtype.is_float:
            found[f"mean_{name}"] = ops.reduce_mean(x, axes=axes)
    return found


def _extremes(dtype: DType, *shape: int | str) -> dict[str, Value]:
    x = x_of(dtype, *shape)
    return {
        "arg_max": ops.arg_max(x, axis=-1),
        "arg_min_last": ops.arg_min(x, axis=-1, last=True),
        "arg_max_down": ops.arg_max(x, axis=-2),
        "running": ops.cum_sum(x, axis=-1),
        "running_down": ops.cum_sum(x, axis=-2, reverse=True),
    }


def _moves(dtype: DType, *shape: int | str) -> dict[str, Value]:
    """Transposes, concatenations, padding and slices, made dense."""
    x, y = x_of(dtype, *shape), x_of(dtype, *shape, name="y")
    rank = len(shape)
    back = tuple(range(-1, -rank - 1, -1))
    number = constant(np.asarray(0).astype(dtype.numpy))
    turned = ops.permute(x, order=back)
    swapped = ops.permute(x, order=(*range(-rank, -2), -1, -2))
    return {
        "transposed": ops.merge(turned, axis=-1, count=rank) if rank > 1 else x,
        "swapped": ops.merge(swapped, axis=-1, count=2),
        "joined": ops.concat(x, y, x, axis=-1),
        "stacked": ops.concat(x, y, axis=-rank),
        "padded": ops.pad(x, number, axis=-1, before=3, after=1),
        "flipped": ops.concat(ops.flip(x, axes=(-1,)), y, axis=-2),
    }


def _chains(dtype: DType) -> dict[str, Value]:
    x, y = x_of(dtype, 5, 6, 20), x_of(dtype, 20, name="y")
    z, w = x_of(dtype, 5, 1, 20, name="z"), x_of(dtype, 1, 6, 1, name="w")
    inner = ops.slice_(x, axis=-1, start=1, stop=20, step=3)
    return {
        "broadcast": (x + y) * z - w,
        "gelu": library.gelu(x + y),
        "silu": library.silu(x * w),
        "sliced": ops.relu(inner + inner),
        "turned": ops.exp(ops.minimum(ops.permute(x, order=(-1, -3, -2)), 2.0)) + ops.permute(x, order=(-1, -3, -2)),
        "compared": ops.where(ops.greater(x, z), x, y),
    }


def _symbolic() -> dict[str, Case]:
    x, y = x_of(f32, "n"), x_of(f32, "n", name="y")
    rows = x_of(f32, "b", "n")
    gain = x_of(f32, "n", name="gain")
    odd = ({"n": 1}, {"n": 3}, {"n": 1023}, {"n": 1024}, {"n": 4097}, {"n": 0})
    grids = ({"b": 1, "n": 1}, {"b": 3, "n": 33}, {"b": 65, "n": 768}, {"b": 2, "n": 5001}, {"b": 0, "n": 7})
    return {
        "map_any": Case({"y": library.gelu(x + y)}, odd),
        "norm_any": Case({"y": library.layer_norm(rows, gain, eps=EPS), "s": library.softmax(rows)}, grids),
        "sum_any": Case({"r": ops.reduce_sum(rows, axes=(-1,)), "c": ops.reduce_sum(rows, axes=(-2,))}, grids),
        "sums_few": Case(
            {
                "all": ops.reduce_sum(rows, axes=(-2, -1)),
                "mean": ops.reduce_mean(ops.exp(rows), axes=(-2, -1)) * 2.0,
                "most": ops.reduce_max(x_of(f32, "b", 70, name="w"), axes=(-2,)),
                "down": ops.reduce_sum(x_of(f32, "b", 70, name="w"), axes=(-2,)),
            },
            (*grids[:-1], {"b": 700, "n": 3}),
        ),
        "logic_few": Case(
            {
                "any": ops.reduce_any(x_of(bool_, 5, 3001), axes=(-2, -1)),
                "all": ops.reduce_all(x_of(bool_, 5, 3001), axes=(-1,)),
                "both": ops.reduce_max(x_of(i64, 5, 3001, name="z"), axes=(-1,)),
            }
        ),
        "turn_any": Case(
            {"t": ops.merge(ops.permute(rows, order=(-1, -2)), axis=-1, count=2), "j": ops.concat(rows, rows, axis=-1)},
            grids,
        ),
        "batch_any": Case(
            {"y": library.layer_norm(x_of(f32, "b", 768), x_of(f32, 768, name="g"), eps=EPS)},
            ({"b": 1}, {"b": 513}, {"b": 0}),
        ),
    }


def cases() -> dict[str, Case]:
    """Every case by name."""
    found: dict[str, Case] = {}
    for dtype in COMPUTED:
        found[f"elementwise_{dtype.name}"] = Case(_elementwise(dtype))
    for dtype in FLOATS:
        found[f"chains_{dtype.name}"] = Case(_chains(dtype) if dtype is not f64 else _without_erf(_chains(dtype)))
    for dtype in FLOATS:
        for shape in ((7, 12), (33, 768), (5, 100)) if dtype is not f32 else ROWS:
            found[f"norms_{dtype.name}_{'x'.join(map(str, shape))}"] = Case(_norms(dtype, *shape))
    for dtype in (f32, f16, f64, i32, bool_):
        for shape in ((4, 6, 10), (3, 40, 70), (1, 1, 5)):
            name = f"reductions_{dtype.name}_{'x'.join(map(str, shape))}"
            made = _reductions(dtype, *shape) if dtype is not bool_ else _logic(*shape)
            found[name] = Case(made)
    found["reductions_long"] = Case(_reductions(f32, 3, 100_003))
    tall = ops.reduce_sum(x_of(f32, 1 << 16, 40, name="t"), axes=(-2,))
    found["reductions_few"] = Case(_reductions(f32, 2, 1 << 21) | {"tall": tall})
    found["reductions_tall"] = Case(_reductions(f32, 20_001, 35))
    for dtype in (f32, i32, bf16):
        found[f"extremes_{dtype.name}"] = Case(_extremes(dtype, 9, 70))
    for dtype in (bool_, bf16, f32, f64):
        for shape in ((5, 64, 96), (33, 70), (2, 3, 5, 7)):
            found[f"moves_{dtype.name}_{'x'.join(map(str, shape))}"] = Case(_moves(dtype, *shape))
    return found | _symbolic()


ROWS = ((7, 3), (7, 12), (33, 33), (9, 100), (6, 768), (5, 1000), (3, 1025), (4, 4096), (2, 5003), (2, 40_000))
"""Rows for one thread, for one warp, for a block, and longer than registers hold."""


def _without_erf(chains: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in chains.items() if name != "gelu"}


def _logic(*shape: int) -> dict[str, Value]:
    x = x_of(bool_, *shape)
    return {
        f"{name}_{-a}": op(x, axes=(a,))
        for name, op in (("any", ops.reduce_any), ("all", ops.reduce_all))
        for a in (-1, -2)
    }


CASES = cases()
Feeds = Callable[[Mapping[str, int]], Mapping[str, Array]]
