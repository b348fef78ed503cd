"""A training step as graphs: loss, gradients, clipping, and every weight and its state written in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.grad.gradient import Unreached
from dovetail.ir import leaf
from dovetail.ir.collector import collector_paused
from dovetail.ir.dtype import f32
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.type import TensorType
from dovetail.passes.differentiate import PREFIX
from dovetail.renamed import old_options
from dovetail.runtime.gradients import value_and_grad
from dovetail.train.modes import keyed, with_batch_statistics, with_products_in
from dovetail.train.optimizers import Optimizer
from dovetail.train.update import NEW, NORM, RATE, SCALE, SUM, Group, StepOptions, Update, as_dtype, finite, kept

_SCALED = "train.scaled"


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


@old_options(ways="options")
def step_graph(
    graph: Graph,
    optimizer: Optimizer,
    *,
    wrt: str | Sequence[str] = "*",
    loss: str = "",
    options: StepOptions | None = None,
) -> StepGraph:
    """Return the step of a graph whose output `loss` is one number.

    The parameters that `wrt` names become inputs, which the step overwrites, and so do statistics of batch norms; all
    others are frozen and stay parameters. Of the groups that fit a weight the last one counts.
    """
    with collector_paused():
        return _step_graph(graph, optimizer, wrt, loss, options or StepOptions())


def _step_graph(
    graph: Graph, optimizer: Optimizer, wrt: str | Sequence[str], loss: str, options: StepOptions
) -> StepGraph:
    normed = with_batch_statistics(graph, options.batch_norm_momentum)
    model = keyed(normed.graph)
    statistics = tuple(normed.statistics)
    outputs = {**model.outputs, **{NEW + n: v for n, v in normed.statistics.items()}}
    model = weights_as_inputs(replace(model, outputs=outputs), statistics)
    model = model if options.precision is None else with_products_in(model, options.precision)
    both = _differentiated(model, wrt, loss, scaled=options.scaled, unreached=options.unreached)
    names = tuple(n.removeprefix(PREFIX) for n in both.outputs if n.startswith(PREFIX) and n not in graph.outputs)
    strange = [n for n in names if n not in {str(v.attrs["name"]) for v in both.signature}]
    if strange:
        raise OptionError(f"{', '.join(strange)} is an input and no parameter", hint="train parameters; leave it out")
    _check_groups(options.groups, names)
    joint = weights_as_inputs(both, names)
    reported = {n: v for n, v in joint.outputs.items() if n in graph.outputs}
    gradients = {n: joint.outputs[PREFIX + n] for n in names}
    weights = {str(v.attrs["name"]): v for v in joint.inputs if v.attrs["name"] in names}
    moved = {n: joint.outputs[NEW + n] for n in statistics}
    if options.accumulate == 1:
        update = Update(optimizer, options, reported[loss])
        updated_graph = update.graph(joint, reported, weights, gradients, moved)
        return StepGraph(updated_graph, None, joint, names, update.state, {}, statistics)
    sums = {n: leaf.input(SUM + n, w.tensor) for n, w in weights.items()}
    added = {NEW + SUM + n: sums[n] + gradients[n] for n in names}
    guard = finite(reported[loss]) if options.guarded else None
    statistics_after = kept(moved, {str(v.attrs["name"]): v for v in joint.inputs}, guard)
    summing = replace(joint, inputs=(*joint.inputs, *sums.values()), outputs=reported | added | statistics_after)
    summing = summing.donate({NEW + n: n for n in (*(SUM + n for n in names), *statistics)})
    update = Update(optimizer, options, None)
    bare = Graph.of({}, name=f"{graph.name}.update", inputs=(*weights.values(), *sums.values()))
    updated_graph = update.graph(bare, {}, weights, sums, {})
    sum_types = {SUM + n: w.tensor for n, w in weights.items()}
    return StepGraph(updated_graph, summing, joint, names, update.state, sum_types, statistics)


def _differentiated(model: Graph, wrt: str | Sequence[str], loss: str, *, scaled: bool, unreached: Unreached) -> Graph:
    if not scaled:
        return value_and_grad(model, wrt, loss=loss, unreached=unreached)
    scale = leaf.input(SCALE, f32[()])
    value = model.outputs[loss]
    product = value * as_dtype(scale, value)
    grown = replace(model, inputs=(*model.inputs, scale), outputs={**model.outputs, _SCALED: product}, reread=None)
    return value_and_grad(grown, wrt, loss=_SCALED, unreached=unreached)


def weights_as_inputs(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with parameters as inputs of the same names, after its own."""
    if not names:
        return graph
    swapped = {v: leaf.input(str(v.attrs["name"]), v.tensor) for v in graph.signature if v.attrs["name"] in names}
    swapped_graph = rebuild(graph, lambda value, operands: swapped.get(value))
    frozen = {n: a for n, a in graph.params.items() if n not in names}
    declared = tuple([v for v in swapped_graph.signature if v.attrs["name"] not in names])
    inputs = (*swapped_graph.inputs, *swapped.values())
    return replace(swapped_graph, inputs=inputs, params=frozen, declared=declared, moved={}, reread=None)


def _check_groups(groups: Sequence[Group], names: Sequence[str]) -> None:
    for group in groups:
        if not any(fnmatchcase(name, group.names) for name in names):
            raise OptionError(f"no weight fits the group {group.names!r}", hint=f"the weights are {', '.join(names)}")


__all__ = [
    "NEW", "NORM", "RATE", "SCALE", "SUM", "Group", "StepGraph", "StepOptions", "finite", "step_graph",
    "weights_as_inputs",
]  # fmt: skip
