"""`dovetail.train.lora`: narrow pairs of matrices next to frozen weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from dovetail import ops
from dovetail.derive.unfuse import unfuse
from dovetail.errors import OptionError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value
from dovetail.renamed import warn

DOWN, UP = ".lora_a", ".lora_b"
"""What the two matrices of a weight are called: its name and this."""


class _Pair(NamedTuple):
    """The matrices of one weight: x @ down @ up is added to x @ weight."""

    down: Value
    up: Value


def lora(
    graph: Graph, targets: str | Sequence[str], *, rank: int = 8, alpha: float | None = None, seed: int = 0
) -> Graph:
    """Add (x @ a) @ b * (alpha / rank) to each product x @ w with a matrix that `targets` names.

    `alpha` is twice the rank unless it is given. a is drawn from the seed and b is zeros, so that the graph computes
    what it did. `Trainer(…, wrt="*.lora_*")` trains the pairs alone.
    """
    if rank < 1:
        raise OptionError(f"matrices of rank {rank}", hint="pass at least 1")
    scale = (2.0 * rank if alpha is None else alpha) / rank
    chosen = _chosen(graph, [targets] if isinstance(targets, str) else targets)
    pairs: dict[Value, _Pair] = {}
    arrays: dict[str, Array] = {}
    spelled = unfuse(graph, keep=lambda value: value.op.keeps_its_gradient)

    def beside(value: Value, operands: tuple[Value, ...]) -> Value | None:
        if value.op is not ops.matmul:
            return None
        x, right = operands
        weight = right.operands[0] if _is_transpose(right) else right
        if weight not in chosen:
            return None
        down, up = pairs.get(weight) or pairs.setdefault(weight, _pair(chosen[weight], right, rank, seed, arrays))
        if down.shape[0] != right.shape[0]:
            raise OptionError(f"{chosen[weight]} is read both ways round", hint="leave it out of targets")
        return value.with_operands(operands) + ((x @ down) @ up) * scale

    adapted = rebuild(spelled, beside, into_subgraphs=False)
    left = [name for weight, name in chosen.items() if weight not in pairs]
    if left:
        raise OptionError(
            f"no product reads {', '.join(left)} on its right", hint="choose matrices that inputs are multiplied by"
        )
    return replace(adapted, params={**graph.params, **arrays}, moved={}, reread=None)


def merged(
    graph: Graph, params: Mapping[str, Array], *, rank: int | None = None, alpha: float | None = None
) -> dict[str, Array]:
    """Return the parameters without pairs: each pair of the graph that `lora` made is added to its weight.

    `rank` and `alpha` are for graphs before `lora`, and go with the next version: the graph after it has the scale.
    """
    pairs = [str(v.attrs["name"]).removesuffix(UP) for v in graph.signature if str(v.attrs["name"]).endswith(UP)]
    scales = {name: _scale(graph, name) for name in pairs}
    if rank is not None or alpha is not None:
        warn("merged(graph, params, rank=…, alpha=…)", "merged(lora(graph, …), params)")
        width = 8 if rank is None else rank
        scales |= {name.removesuffix(UP): (2.0 * width if alpha is None else alpha) / width for name in params}
    strange = [name for name in params if name.endswith(UP) and name.removesuffix(UP) not in scales]
    if strange:
        raise OptionError(
            f"{graph.name} has no pair {', '.join(strange)}, and so no scale for it",
            hint="pass the graph that lora made",
        )
    weights: dict[str, Array] = {}
    for value in graph.signature:
        name = str(value.attrs["name"])
        if name.endswith((DOWN, UP)) and name.removesuffix(DOWN).removesuffix(UP) in pairs:
            continue
        array = params[name]
        if name + DOWN in params:
            scale = scales[name]
            update = params[name + DOWN].astype(np.float64) @ params[name + UP].astype(np.float64) * scale
            whole = array.astype(np.float64) + (update if update.shape == array.shape else update.T)
            array = whole.astype(array.dtype)
        weights[name] = array
    return weights


def _scale(graph: Graph, name: str) -> float:
    """Return the number that multiplies the product of a pair in a graph; 1 where no number follows the product."""
    products = {
        v for v in graph.values if any(o.attrs.get("name") == name + UP for o in v.operands if o.op is leaf.PARAM)
    }
    for value in graph.values:
        if value.op is ops.mul and not products.isdisjoint(value.operands):
            numbers = [o for o in value.operands if o.op is leaf.CONST and o.attrs["value"].array.size == 1]
            if numbers:
                return float(numbers[0].attrs["value"].array.reshape(()))
    return 1.0


def _chosen(graph: Graph, patterns: Sequence[str]) -> dict[Value, str]:
    chosen: dict[Value, str] = {}
    for pattern in patterns:
        fitting = {v: str(v.attrs["name"]) for v in graph.signature if fnmatchcase(str(v.attrs["name"]), pattern)}
        matrices = {v: name for v, name in fitting.items() if v.rank == 2 and v.dtype.is_float}
        if not matrices:
            listed = ", ".join(str(v.attrs["name"]) for v in graph.signature if v.rank == 2)
            raise OptionError(f"no matrix fits {pattern!r}", hint=f"the matrices are {listed}")
        chosen |= matrices
    return chosen


def _is_transpose(value: Value) -> bool:
    return value.op is ops.permute and tuple(value.attrs["order"]) == (-1, -2)


def _pair(name: str, right: Value, rank: int, seed: int, arrays: dict[str, Array]) -> _Pair:
    rows, columns = (int(str(size)) for size in right.shape)
    down = leaf.param(name + DOWN, right.dtype[rows, rank])
    up = leaf.param(name + UP, right.dtype[rank, columns])
    rng = np.random.default_rng((seed, *name.encode()))
    arrays[name + DOWN] = (rng.uniform(-1, 1, (rows, rank)) * rows**-0.5).astype(right.dtype.numpy)
    arrays[name + UP] = np.zeros((rank, columns), right.dtype.numpy)
    return _Pair(down, up)


__all__ = ["DOWN", "UP", "lora", "merged"]
