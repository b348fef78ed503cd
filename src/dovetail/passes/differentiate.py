"""A graph with a loss becomes a graph with the loss and its gradients."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from dovetail.declare.fused import FusedOp
from dovetail.derive.fuse import fuse
from dovetail.derive.unfuse import unfuse
from dovetail.errors import GradientError
from dovetail.grad.gradient import Unreached, gradients
from dovetail.grad.places import BackwardPlaces
from dovetail.ir.collector import collector_paused
from dovetail.ir.graph import Graph, walk_into
from dovetail.ir.value import Value
from dovetail.nearest import nearest

PREFIX = "d."
"""What the output of a gradient is called: this and the name of what it is the gradient by."""


def differentiate(
    graph: Graph,
    wrt: str | Sequence[str],
    *,
    loss: str,
    unreached: Unreached,
    recognise: Sequence[FusedOp[...]],
) -> Graph:
    """The graph with one more output for each parameter that `wrt` names; see `dovetail.graphs.value_and_grad`.

    Ops of `recognise` whose backward op is one kernel are looked for first. All others are spelled out, so that both
    passes share their inner values.
    """
    with collector_paused():
        name = _loss_of(graph, loss)
        chosen = _chosen(graph, [wrt] if isinstance(wrt, str) else wrt)
        spelled = _recognised(unfuse(graph, keep=_keeps_its_gradient), recognise)
        places = BackwardPlaces(spelled.origins)
        with places.recording():
            found = gradients(spelled.outputs[name], list(chosen.values()), None, unreached, places)
        outputs = dict(spelled.outputs) | {PREFIX + n: g for n, g in zip(chosen, found, strict=True)}
        if len(outputs) != len(spelled.outputs) + len(chosen):
            taken = [n for n in chosen if PREFIX + n in spelled.outputs]
            raise GradientError(f"the graph has outputs named like gradients: {', '.join(taken)}", hint="rename them")
        noted = {**spelled.origins, **places.fresh_origins()}
        origins = {v: noted[v] for v in walk_into(outputs.values()) if v in noted}
        forward = tuple(spelled.outputs)
        return replace(spelled, outputs=outputs, origins=origins, forward=forward, moved={}, reread=None)


def _keeps_its_gradient(value: Value) -> bool:
    return value.op.keeps_its_gradient


def _recognised(graph: Graph, known: Sequence[FusedOp[...]]) -> Graph:
    """The graph with the ops whose backward op is one kernel; what was recognised on the way to them is spelled out."""
    rows = [op for op in known if op.stage == "recognise" and op.keeps_its_gradient]
    found = fuse(graph, rows, always=True).graph if rows else graph
    present = {value.op for value in found.values}
    whole = [op for op in known if op.backward and not present.isdisjoint(op.parts)]
    if not whole:
        return found
    wanted = {*whole, *(part for op in whole for part in op.parts)}.difference(rows)
    found = fuse(found, [op for op in known if op in wanted], always=True).graph
    return unfuse(found, keep=_keeps_its_gradient)


def _loss_of(graph: Graph, loss: str) -> str:
    name = loss or (next(iter(graph.outputs)) if len(graph.outputs) == 1 else "loss")
    if name not in graph.outputs:
        raise GradientError(
            f"there is no output {name!r} to differentiate", hint=f"pass loss=… of {', '.join(graph.outputs)}"
        )
    return name


def _chosen(graph: Graph, patterns: Iterable[str]) -> dict[str, Value]:
    """What the patterns name, less what those after a ! name, in the order of the graph."""
    parameters = {str(v.attrs["name"]): v for v in graph.signature}
    inputs = {str(v.attrs["name"]): v for v in graph.inputs}
    found: dict[str, Value] = {}
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        fitting = _fitting(parameters, bare, () if bare != pattern else graph.frozen) or _fitting(inputs, bare)
        if not fitting:
            frozen = {name: why for name, why in graph.frozen.items() if fnmatchcase(name, bare)}
            close = nearest(bare, [*parameters, *inputs])
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join([*parameters, *inputs])}"
            what = f"no parameter and no input fits {bare!r}"
            if frozen:
                what += f" but {', '.join(f'{name} ({why})' for name, why in frozen.items())}"
                hint = "what the model does not train is trained where its whole name is written"
            raise GradientError(what, hint=hint)
        if bare == pattern:
            found.update(fitting)
        else:
            found = {name: value for name, value in found.items() if name not in fitting}
    return {name: value for name, value in {**parameters, **inputs}.items() if name in found}


def _fitting(named: Mapping[str, Value], pattern: str, frozen: Container[str] = ()) -> dict[str, Value]:
    """What one pattern names: integers, and what the model does not train, by its whole name alone."""
    if pattern in named:
        return {pattern: named[pattern]}
    return {n: v for n, v in named.items() if fnmatchcase(n, pattern) and v.dtype.is_float and n not in frozen}


__all__ = ["PREFIX", "differentiate"]
