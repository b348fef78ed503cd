"""A training step as one graph: loss, gradients, clipping, and every weight and its state written in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from dovetail import ops
from dovetail.errors import OptionError
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value
from dovetail.passes.differentiate import PREFIX
from dovetail.runtime.gradients import value_and_grad
from dovetail.train.losses import total
from dovetail.train.optimizers import Optimizer

RATE, NORM = "train.rate", "train.norm"
"""The input with the learning rate, and the output with the norm of all gradients."""
NEW = "new."
"""What the output of an array after the step is called: this and the name of the array."""
TINY = 1e-6
"""Added to a norm before it divides."""


@dataclass(frozen=True, slots=True)
class Group:
    """Weights by pattern, with a rate and a decay of their own."""

    names: str
    rate: float = 1.0
    """The share of the optimizer's rate."""
    decay: float | None = None
    """None for the optimizer's own."""


@dataclass(frozen=True, slots=True)
class StepGraph:
    """A step, the weights that it trains, and their state: array name -> weight name."""

    graph: Graph
    weights: tuple[str, ...]
    state: Mapping[str, str]


def step_graph(
    graph: Graph,
    optimizer: Optimizer,
    *,
    wrt: str | Sequence[str] = "*",
    loss: str = "",
    groups: Sequence[Group] = (),
    clip_norm: float | None = None,
    clip_value: float | None = None,
) -> StepGraph:
    """The step of a graph whose output `loss` is one number.

    The parameters that `wrt` names become inputs, which the step overwrites; all others are frozen and stay parameters.
    Of the groups that fit a weight the last one counts.
    """
    for name, most in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if most is not None and not 0 < most < float("inf"):
            raise OptionError(f"{name} of {most}", hint="pass a finite number above 0")
    both = value_and_grad(graph, wrt, loss=loss)
    names = [n.removeprefix(PREFIX) for n in both.outputs if n.startswith(PREFIX) and n not in graph.outputs]
    parameters = {str(v.attrs["name"]): v for v in both.signature}
    strange = [n for n in names if n not in parameters]
    if strange:
        raise OptionError(f"{', '.join(strange)} is an input and no parameter", hint="train parameters; leave it out")
    _check_groups(groups, names)
    joint = weights_as_inputs(both, names)
    weights = {str(v.attrs["name"]): v for v in joint.inputs if v.attrs["name"] in names}
    gradients = {n: joint.outputs[PREFIX + n] for n in names}
    norm = _norm(list(gradients.values()))
    gradients = _clipped(gradients, norm, clip_norm, clip_value)
    numbers = {n: leaf.input(f"train.{n}", f32[()]) for n in optimizer.numbers(1)}
    rate = leaf.input(RATE, f32[()])
    outputs = {n: v for n, v in joint.outputs.items() if n in graph.outputs} | {NORM: norm}
    state: dict[str, Value] = {}
    owner: dict[str, str] = {}
    for name, w in weights.items():
        own = {slot: leaf.input(f"{name}.{slot}", w.tensor) for slot in optimizer.state}
        group = next((g for g in reversed(groups) if fnmatchcase(name, g.names)), Group("*"))
        decay = optimizer.decay if group.decay is None else group.decay
        given = {**numbers, "rate": rate * group.rate, "decay": leaf.scalar(decay, f32)}
        updated = optimizer.update(w, gradients[name], own, {n: _as(v, w) for n, v in given.items()})
        outputs[NEW + name] = updated.weight
        outputs |= {f"{NEW}{name}.{slot}": v for slot, v in updated.state.items()}
        state |= {f"{name}.{slot}": v for slot, v in own.items()}
        owner |= {f"{name}.{slot}": name for slot in own}
    made = replace(joint, inputs=(*joint.inputs, *state.values(), rate, *numbers.values()), outputs=outputs)
    return StepGraph(made.donate({NEW + n: n for n in (*weights, *state)}), tuple(names), owner)


def weights_as_inputs(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph with parameters as inputs of the same names, after its own."""
    swapped = {v: leaf.input(str(v.attrs["name"]), v.tensor) for v in graph.signature if v.attrs["name"] in names}
    made = rebuild(graph, lambda value, operands: swapped.get(value))
    frozen = {n: a for n, a in graph.params.items() if n not in names}
    declared = tuple([v for v in made.signature if v.attrs["name"] not in names])
    inputs = (*made.inputs, *swapped.values())
    return replace(made, inputs=inputs, params=frozen, declared=declared, moved={}, reread=None)


def _as(number: Value, w: Value) -> Value:
    return number if number.dtype is w.dtype else ops.cast(number, dtype=w.dtype)


def _norm(gradients: Sequence[Value]) -> Value:
    """The root of the sum of all squares, in f32."""
    squares = [total(_square_sums(_as_f32(g))) for g in gradients]
    while len(squares) > 1:
        last = squares[-1:] if len(squares) % 2 else []
        squares = [x + y for x, y in zip(squares[::2], squares[1::2], strict=False)] + last
    return ops.sqrt(squares[0])


def _square_sums(g: Value) -> Value:
    """The sum of squares of each row: threads share the rows, and no square is written."""
    return ops.reduce_sum(g * g, axes=(-1,)) if g.rank > 1 else g * g


def _as_f32(x: Value) -> Value:
    return x if x.dtype is f32 else ops.cast(x, dtype=f32)


def _clipped(
    gradients: Mapping[str, Value], norm: Value, clip_norm: float | None, clip_value: float | None
) -> dict[str, Value]:
    found = dict(gradients)
    if clip_value is not None:
        for name, g in found.items():
            most = leaf.scalar(clip_value, g.dtype)
            found[name] = ops.minimum(ops.maximum(g, -most), most)
        norm = _norm(list(found.values())) if clip_norm is not None else norm
    if clip_norm is not None:
        factor = ops.minimum(leaf.scalar(1.0, f32), clip_norm / (norm + TINY))
        found = {name: g * _as(factor, g) for name, g in found.items()}
    return found


def _check_groups(groups: Sequence[Group], names: Sequence[str]) -> None:
    for group in groups:
        if not any(fnmatchcase(name, group.names) for name in names):
            raise OptionError(f"no weight fits the group {group.names!r}", hint=f"the weights are {', '.join(names)}")


__all__ = ["NEW", "NORM", "RATE", "Group", "StepGraph", "step_graph", "weights_as_inputs"]
