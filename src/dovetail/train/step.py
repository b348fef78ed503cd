"""A training step as graphs: loss, gradients, clipping, and every weight and its state written in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from dovetail import ops
from dovetail.errors import OptionError
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, f32
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.passes.differentiate import PREFIX
from dovetail.runtime.gradients import value_and_grad
from dovetail.train.losses import total
from dovetail.train.modes import keyed, with_batch_statistics, with_products_in
from dovetail.train.optimizers import Optimizer

RATE, SCALE, NORM = "train.rate", "train.scale", "train.norm"
"""The inputs with the learning rate and the scale of the loss, and the output with the norm of all gradients."""
NEW, SUM = "new.", "sum."
"""What the output of an array after the step is called, and what the sum of a weight's gradients."""
_SCALED = "train.scaled"
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
class Ways:
    """How gradients become a step."""

    groups: Sequence[Group] = ()
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    """Micro-batches of a step."""
    precision: DType | None = None
    """What products are computed in; None for the dtypes of the graph."""
    scaled: bool = False
    """Whether the loss is multiplied by an input before it is differentiated, and the gradients divided by it."""
    guarded: bool = True
    """Whether a step whose loss or gradients are not finite leaves all arrays as they are."""
    momentum: float = 0.1
    """How far a step moves the stored statistics of batch norms."""

    def __post_init__(self) -> None:
        for name, most in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if most is not None and not 0 < most < float("inf"):
                raise OptionError(f"{name} of {most}", hint="pass a finite number above 0")
        if self.accumulate < 1:
            raise OptionError(f"a step of {self.accumulate} micro-batches", hint="pass at least 1")
        if not 0 <= self.momentum <= 1:
            raise OptionError(f"a momentum of statistics of {self.momentum}", hint="pass a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class StepGraph:
    """A step: one graph, or one for each micro-batch and one for the update."""

    graph: Graph
    """The whole step; the update alone where gradients are summed before."""
    summing: Graph | None
    """Adds the gradients of a micro-batch to their sums."""
    joint: Graph
    """The loss and its gradients, to look for what is not finite."""
    weights: tuple[str, ...]
    state: Mapping[str, TensorType]
    """The arrays that begin as zeros: those of the optimizer."""
    sums: Mapping[str, TensorType]
    """The sums of gradients, zeros before each step."""
    statistics: tuple[str, ...]
    """Parameters that batch norms move."""


def step_graph(
    graph: Graph, optimizer: Optimizer, *, wrt: str | Sequence[str] = "*", loss: str = "", ways: Ways | None = None
) -> StepGraph:
    """The step of a graph whose output `loss` is one number.

    The parameters that `wrt` names become inputs, which the step overwrites, and so do statistics of batch norms; all
    others are frozen and stay parameters. Of the groups that fit a weight the last one counts.
    """
    ways = ways or Ways()
    normed = with_batch_statistics(graph, ways.momentum)
    model = keyed(normed.graph)
    statistics = tuple(normed.statistics)
    outputs = {**model.outputs, **{NEW + n: v for n, v in normed.statistics.items()}}
    model = weights_as_inputs(replace(model, outputs=outputs), statistics)
    model = model if ways.precision is None else with_products_in(model, ways.precision)
    both = _differentiated(model, wrt, loss, scaled=ways.scaled)
    names = tuple(n.removeprefix(PREFIX) for n in both.outputs if n.startswith(PREFIX) and n not in graph.outputs)
    strange = [n for n in names if n not in {str(v.attrs["name"]) for v in both.signature}]
    if strange:
        raise OptionError(f"{', '.join(strange)} is an input and no parameter", hint="train parameters; leave it out")
    _check_groups(ways.groups, names)
    joint = weights_as_inputs(both, names)
    told = {n: v for n, v in joint.outputs.items() if n in graph.outputs}
    found = {n: joint.outputs[PREFIX + n] for n in names}
    weights = {str(v.attrs["name"]): v for v in joint.inputs if v.attrs["name"] in names}
    moved = {n: joint.outputs[NEW + n] for n in statistics}
    if ways.accumulate == 1:
        update = _Update(optimizer, ways, told[loss])
        made = update.graph(joint, told, weights, found, moved)
        return StepGraph(made, None, joint, names, update.state, {}, statistics)
    sums = {n: leaf.input(SUM + n, w.tensor) for n, w in weights.items()}
    added = {NEW + SUM + n: sums[n] + found[n] for n in names}
    guard = finite(told[loss]) if ways.guarded else None
    kept = _kept(moved, {str(v.attrs["name"]): v for v in joint.inputs}, guard)
    summing = replace(joint, inputs=(*joint.inputs, *sums.values()), outputs=told | added | kept)
    summing = summing.donate({NEW + n: n for n in (*(SUM + n for n in names), *statistics)})
    update = _Update(optimizer, ways, None)
    bare = Graph.of({}, name=f"{graph.name}.update", inputs=(*weights.values(), *sums.values()))
    made = update.graph(bare, {}, weights, {n: sums[n] * (1.0 / ways.accumulate) for n in names}, {})
    sum_types = {SUM + n: w.tensor for n, w in weights.items()}
    return StepGraph(made, summing, joint, names, update.state, sum_types, statistics)


def _differentiated(model: Graph, wrt: str | Sequence[str], loss: str, *, scaled: bool) -> Graph:
    if not scaled:
        return value_and_grad(model, wrt, loss=loss)
    scale = leaf.input(SCALE, f32[()])
    value = model.outputs[loss]
    product = value * _as(scale, value)
    grown = replace(model, inputs=(*model.inputs, scale), outputs={**model.outputs, _SCALED: product}, reread=None)
    return value_and_grad(grown, wrt, loss=_SCALED)


class _Update:
    """The part of a step that gradients go into."""

    def __init__(self, optimizer: Optimizer, ways: Ways, loss: Value | None) -> None:
        self.optimizer, self.ways, self.loss = optimizer, ways, loss
        self.state: dict[str, TensorType] = {}

    def graph(
        self,
        base: Graph,
        told: Mapping[str, Value],
        weights: Mapping[str, Value],
        gradients: Mapping[str, Value],
        moved: Mapping[str, Value],
    ) -> Graph:
        """The base with all arrays after the step; `moved` are those that no gradient moves."""
        ways = self.ways
        if ways.scaled:
            scale = leaf.input(SCALE, f32[()])
            gradients = {n: g / _as(scale, g) for n, g in gradients.items()}
        norm = _norm(list(gradients.values()))
        gradients = _clipped(gradients, norm, ways.clip_norm, ways.clip_value)
        rate = leaf.input(RATE, f32[()])
        numbers = {n: leaf.input(f"train.{n}", f32[()]) for n in self.optimizer.numbers(1)}
        inputs = {str(v.attrs["name"]): v for v in base.inputs}
        after: dict[str, Value] = {NEW + n: v for n, v in moved.items()}
        for name, w in weights.items():
            after |= self._moved(name, w, gradients[name], inputs, {**numbers, "rate": rate})
        guard = None
        if ways.guarded:
            guard = finite(norm) if self.loss is None else ops.bit_and(finite(norm), finite(self.loss))
        bare = {n.removeprefix(NEW): v for n, v in after.items()}
        outputs = {**told, NORM: norm, **_kept(bare, inputs, guard)}
        more = {RATE: rate, **{str(v.attrs["name"]): v for v in numbers.values()}}
        if ways.scaled:
            more |= {SCALE: leaf.input(SCALE, f32[()])}
        made = replace(base, inputs=tuple((inputs | more).values()), outputs=outputs, reread=None)
        return made.donate({n: n.removeprefix(NEW) for n in after})

    def _moved(
        self, name: str, w: Value, g: Value, inputs: dict[str, Value], numbers: Mapping[str, Value]
    ) -> dict[str, Value]:
        """A weight and its state after the step; the inputs of its state are added to `inputs`."""
        group = next((g for g in reversed(self.ways.groups) if fnmatchcase(name, g.names)), Group("*"))
        decay = self.optimizer.decay if group.decay is None else group.decay
        given = {**numbers, "rate": numbers["rate"] * group.rate, "decay": leaf.scalar(decay, f32)}
        shapes = self.optimizer.state(tuple(int(str(size)) for size in w.shape))
        own = {slot: leaf.input(f"{name}.{slot}", w.dtype[shape]) for slot, shape in shapes.items()}
        inputs |= {f"{name}.{slot}": v for slot, v in own.items()}
        self.state |= {f"{name}.{slot}": v.tensor for slot, v in own.items()}
        updated = self.optimizer.update(w, g, own, {n: _as(v, w) for n, v in given.items()})
        return {NEW + name: updated.weight} | {f"{NEW}{name}.{slot}": v for slot, v in updated.state.items()}


def _kept(moved: Mapping[str, Value], before: Mapping[str, Value], guard: Value | None) -> dict[str, Value]:
    """Arrays after the step, by the names of outputs: those of before where the guard does not hold."""
    if guard is None:
        return {NEW + n: v for n, v in moved.items()}
    return {NEW + n: ops.where(guard, v, before[n]) for n, v in moved.items()}


def finite(x: Value) -> Value:
    """Whether the one element of a value is neither NaN nor infinite, of rank 0."""
    return ops.less(ops.abs_(ops.reshape(x, ())), leaf.scalar(float("inf"), x.dtype))


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


__all__ = [
    "NEW", "NORM", "RATE", "SCALE", "SUM", "Group", "StepGraph", "Ways", "finite", "step_graph", "weights_as_inputs",
]  # fmt: skip
