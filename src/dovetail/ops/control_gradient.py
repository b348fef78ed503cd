"""Gradients of control flow: a branch pulls the branch that ran, a loop runs backwards over its saved carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Subgraph
from dovetail.ir.inline import inline
from dovetail.ir.origin import unrecorded
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops import adjoint
from dovetail.ops.gradient import NoRuleError, Parts, PullBody

Gradients = tuple[Value | None, ...]


def if_pull(
    pull_body: PullBody,
    operands_of_interest: Sequence[int],
    g: Gradients,
    y: Value,
    predicate: Value,
    *operands: Value,
    then: Subgraph,
    otherwise: Subgraph,
    sizes: tuple[Size, ...],
    places: tuple[int, ...],
) -> Parts:
    """Choose the same branch's pull; what a branch needs is computed again inside it."""
    if sizes:
        raise NoRuleError("the shapes of its branches differ", "bring both branches to one shape")
    known = [i for i, part in enumerate(g) if part is not None]
    inner = [i - 1 for i in operands_of_interest if i > 0]
    branches = {name: pull_body(branch, known, inner) for name, branch in (("then", then), ("otherwise", otherwise))}
    pulled = ops.if_(predicate, *operands, *(part for part in g if part is not None), **branches)
    parts = {i + 1: pulled[place] for place, i in enumerate(inner)}
    return tuple(parts.get(i) for i in range(len(operands) + 1))


def scan_pull(
    pull_body: PullBody,
    operands_of_interest: Sequence[int],
    g: Gradients,
    y: Value,
    *operands: Value,
    body: Subgraph,
    carries: int,
    scanned: int,
    length: Size | None,
    reverse: bool,
) -> Parts:
    """Scan in the other direction over the carries of every step; the body is the pull of the body."""
    first_capture = carries + scanned
    kept = Subgraph(body.arguments, (*body.results, *_arguments(body.arguments[:carries])))
    options = {"carries": carries, "scanned": scanned, "length": length, "reverse": reverse}
    again = ops.scan_(*operands, body=kept, **options)
    saved = [again[len(body.results) + i] for i in range(carries)]
    smooth = [i for i in range(carries) if operands[i].dtype.is_float]
    outputs = [i for i in range(carries, len(g)) if g[i] is not None]
    slices = [i for i in operands_of_interest if carries <= i < first_capture]
    captures = [i for i in operands_of_interest if i >= first_capture]
    pulled = pull_body(body, [*smooth, *outputs], [*smooth, *slices, *captures])
    totals = [adjoint.zeros_like(operands[i]) for i in captures]
    last = [part if (part := g[i]) is not None else adjoint.zeros_like(operands[i]) for i in smooth]
    stacked = [part for i in outputs if (part := g[i]) is not None]
    over = [*saved, *operands[carries:first_capture], *stacked]
    captured = [body.arguments[i] for i in captures]
    step = _backward_step(body, pulled, len(smooth), len(slices), captured, first_capture)
    if length is None:
        length = operands[carries].shape[0]
    results = ops.scan_(
        *last,
        *totals,
        *over,
        *operands[first_capture:],
        body=step,
        carries=len(last) + len(totals),
        scanned=len(over),
        length=length,
        reverse=not reverse,
    )
    order = [*smooth, *captures, *slices]
    parts = {operand: results[place] for place, operand in enumerate(order)}
    return tuple(parts.get(i) for i in range(len(operands)))


def _backward_step(
    body: Subgraph, pulled: Subgraph, smooth: int, slices: int, totals: Sequence[TensorType], own: int
) -> Subgraph:
    """Return one step back: gradients of carries and totals of captures come in, and go out with those of the slices.

    The first `own` arguments of the body are its carries and slices.
    """
    gradients = pulled.arguments[len(body.arguments) :]
    types = (
        *gradients[:smooth],
        *totals,
        *body.arguments[:own],
        *gradients[smooth:],
        *body.arguments[own:],
    )
    with unrecorded():
        arguments = _arguments(types)
        lost, rest = arguments[:smooth], arguments[smooth:]
        so_far, rest = rest[: len(totals)], rest[len(totals) :]
        inner, rest = rest[:own], rest[own:]
        outputs, captured = rest[: len(gradients) - smooth], rest[len(gradients) - smooth :]
        pulled_values = inline(pulled, (*inner, *captured, *lost, *outputs))
        added = [total + part for total, part in zip(so_far, pulled_values[smooth + slices :], strict=True)]
    return Subgraph(types, (*pulled_values[:smooth], *added, *pulled_values[smooth : smooth + slices]))


def while_pull(
    pull_body: PullBody,
    operands_of_interest: Sequence[int],
    g: Gradients,
    y: Value,
    *operands: Value,
    condition: Subgraph,
    body: Subgraph,
    carries: int,
    limit: Size | None,
    trips: Size | None,
    sizes: tuple[Size, ...],
    places: tuple[int, ...],
) -> Parts:
    """Pull a loop with a limit as a scan of that length whose steps do nothing once the condition fails."""
    if limit is None:
        raise NoRuleError("a loop without a limit has no gradient", "pass limit=…, the largest number of trips")
    if sizes:
        raise NoRuleError("the shapes of its carries change", "carry tensors of one shape")
    types = body.arguments
    with unrecorded():
        arguments = _arguments(types)
        (holds,) = inline(condition, arguments)
        idle = (*arguments[:carries], *(adjoint.zeros_like(v) for v in body.results[carries:]))
        chosen = ops.if_(holds, *arguments, then=body, otherwise=Subgraph(types, idle))
        step = Subgraph(types, tuple(chosen[i] for i in range(len(body.results))))
    options: dict[str, Any] = {"body": step, "carries": carries, "scanned": 0, "length": limit, "reverse": False}
    spelled = ops.scan_(*operands, **options)
    parts = list(g[:-1])
    for i in range(carries, len(parts)):
        part = parts[i]
        if part is not None and trips is not None:
            parts[i] = ops.pad(part, 0.0, axis=-part.rank, after=limit - trips)
    return scan_pull(pull_body, operands_of_interest, tuple(parts), spelled, *operands, **options)


def _arguments(types: Sequence[TensorType]) -> tuple[Value, ...]:
    return tuple([leaf.argument(i, t) for i, t in enumerate(types)])


__all__ = ["if_pull", "scan_pull", "while_pull"]
