"""Branches and loops whose tensors have other ranks than the file declares for them.

Exporters start a carried value that the body only writes with a placeholder of rank 0, and give a flag as [] in one
branch and as [1] in the other. Runtimes do not look at ranks; the declared rank says what is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Body, Captured
from dovetail.ir import leaf
from dovetail.ir.dim import symbols
from dovetail.ir.graph import Subgraph
from dovetail.ir.value import Value
from dovetail.ops import build


def in_rank(value: Value, rank: int | None) -> Value:
    """A value in the rank that is declared for it, where only leading axes of 1 are too many or too few."""
    if rank is None or rank == value.rank:
        return value
    extra = value.shape[: max(value.rank - rank, 0)]
    shape = (*(1,) * (rank - value.rank), *value.shape[len(extra) :])
    return build.reshape(value, shape) if all(size == 1 for size in extra) else value


def in_one_rank(*branches: tuple[Body, Subgraph]) -> list[Subgraph]:
    """The branches with results of the same ranks where the file declares that, and only axes of 1 are in the way."""
    bodies, traced = zip(*branches, strict=True)
    ranks = [{v.rank for v in results} for results in zip(*(t.results for t in traced), strict=False)]
    declared = [{b.output_rank(i) for b in bodies} for i in range(len(ranks))]
    wanted = [d.pop() if len(r) > 1 and len(d) == 1 else None for r, d in zip(ranks, declared, strict=True)]
    return [replace(t, results=(*map(in_rank, t.results, wanted), *t.results[len(wanted) :])) for t in traced]


def started(body: Body, first: Sequence[Value], captured: Captured) -> tuple[Value, ...]:
    """The initial carries of a loop; a placeholder that no trip reads takes the shape that trips give it.

    `first` are the number of the trip, the condition, and the carries.
    """
    _, _, *initial = first
    doubtful = [k for k, v in enumerate(initial) if body.rank(k + 2) not in (None, v.rank)]
    if not doubtful:
        return tuple(initial)
    types = [v.tensor for v in (*first, *captured.operands)]

    def trip(*slots: Value) -> tuple[Value, ...]:
        return body(*slots[: len(first)], captured=captured.named(slots[len(first) :]))

    once = ops.subgraph(trip, types)
    read = {v.attrs["index"] for v in once.values if v.op is leaf.ARGUMENT}
    known = {name for type in types for size in type.shape for name in symbols(size)}
    for k in doubtful:
        after = once.results[k + 1]
        settled = all(symbols(size) <= known for size in after.shape)
        is_placeholder = k + 2 not in read and all(size == 1 for size in initial[k].shape)
        if is_placeholder and settled and after.rank == body.rank(k + 2) and after.dtype is initial[k].dtype:
            initial[k] = build.broadcast_to(build.reshape(initial[k], ()), after.shape)
    return tuple(initial)
