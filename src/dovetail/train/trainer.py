"""`dovetail.train.Trainer`: a compiled step, the arrays that it updates, checkpoints, and a loop over batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import BindError, OptionError
from dovetail.grad.gradient import Unreached
from dovetail.ir import leaf
from dovetail.ir.dtype import bf16, f16
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.models.weights import random_weights
from dovetail.renamed import old_options
from dovetail.runtime.compile import compile
from dovetail.runtime.in_memory import is_torch
from dovetail.runtime.options import TargetOptions
from dovetail.runtime.program import Program
from dovetail.runtime.request import check_options
from dovetail.targets import target_named
from dovetail.targets.runtime.arrays.page_advice import trim
from dovetail.train.batches import micro_batches
from dovetail.train.checkpoint import read_arrays, write_arrays
from dovetail.train.culprit import not_finite
from dovetail.train.losses import LOSSES, Loss, target_type
from dovetail.train.model import batch_of, model_of, optimizer_of
from dovetail.train.modes import KEY, evaluation_form, step_key
from dovetail.train.optimizers import Optimizer
from dovetail.train.scaling import LossScale
from dovetail.train.schedules import Schedule, constant
from dovetail.train.state import State, ran
from dovetail.train.step import NORM, RATE, SCALE, Group, StepOptions, step_graph, weights_as_inputs

LOSS, LABELS = "loss", "labels"
_COUNTS, _SCALES = "train.step", "train.scale"
"""Names in a checkpoint: steps, updates, steps since the last one that was left out, seed; and the loss scale."""
Precision = Literal["bf16", "f16"]
MOST_NAMES = 12
"""Names of parameters in a line of a summary."""
Batch: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""Arrays or tensors by name, or in the order of the inputs."""
_PRECISIONS = {"bf16": bf16, "f16": f16}


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of one step."""

    step: int
    """Counted from 1."""
    loss: float
    norm: float
    """Of all gradients, before they are clipped."""
    rate: float
    skipped: bool = False
    """Whether gradients of a scaled loss were not finite, so that the step changed no weight."""


class Trainer:
    """Trains the parameters of a graph, of a file with one, or of a torch module.

    A module is exported for a call with `args` and `kwargs`; `dynamic` is that of `compile`. Its buffers, and
    parameters without `requires_grad`, stay as they are unless `wrt` names them; `summary` tells what is trained.
    `loss` is a name of `LOSSES`, one of them with options (`functools.partial(cross_entropy, smoothing=0.1)`), or a
    function of the graph's first output and of an input `labels` of its type; a graph with an output `loss` needs none.
    Batch norms move their stored statistics by `batch_norm_momentum` a step. `options` are those of `compile`.
    Weights come from `params` or from the graph, or are drawn from `seed`. Two trainers that are given the same batches
    have the same weights to the last bit, also if one was saved and loaded in between.
    """

    @old_options(momentum="batch_norm_momentum")
    def __init__(
        self,
        graph: Any,
        loss: str | Loss | None = None,
        optimizer: Optimizer | str | None = None,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        dynamic: Any = None,
        wrt: str | Sequence[str] = "*",
        params: Mapping[str, Array] | None = None,
        schedule: Schedule = constant,
        groups: Sequence[Group] = (),
        clip_norm: float | None = None,
        clip_value: float | None = None,
        accumulate: int = 1,
        precision: Precision | None = None,
        batch_norm_momentum: float = 0.1,
        seed: int = 0,
        writes: bool = True,
        unreached: Unreached = "error",
        **options: Unpack[TargetOptions],
    ) -> None:
        check_options(Trainer.__init__, options)
        chosen = optimizer_of(optimizer)
        model = model_of(graph, args, kwargs, dynamic)
        self._module = graph if is_torch(graph) and not hasattr(graph, "graph_signature") else None
        if precision is not None and precision not in _PRECISIONS:
            raise OptionError(f"a precision of {precision!r}", hint=f"there are {', '.join(_PRECISIONS)}")
        self.graph = with_loss(model, loss)
        self.loss_name = "" if loss is None else _name(loss)
        self.accumulate = accumulate
        self.optimizer: Optimizer = chosen
        self.schedule, self.steps, self.seed = schedule, 0, seed
        self.writes = writes
        """Whether this process writes checkpoints; of several that train together one does."""
        self._updates: int = 0
        self.scale: LossScale | None = LossScale() if precision == "f16" else None
        step_options = StepOptions(
            groups,
            clip_norm,
            clip_value,
            accumulate,
            None if precision is None else _PRECISIONS[precision],
            scaled=self.scale is not None,
            batch_norm_momentum=batch_norm_momentum,
            unreached=unreached,
            # On a mesh the gradient of a table is summed over devices, which takes the table.
            by_rows=target_named(options.get("target", "cpu")).name == "cpu",
        )
        step_graph_ = step_graph(self.graph, self.optimizer, wrt=wrt, loss=LOSS, options=step_options)
        self.weights, self.statistics = step_graph_.weights, step_graph_.statistics
        initial = _arrays(self.graph, params or {}, seed)
        arrays = {name: np.array(initial[name], order="C") for name in (*step_graph_.weights, *step_graph_.statistics)}
        for name, type in step_graph_.state.items():
            arrays[name] = np.zeros([int(str(size)) for size in type.shape], type.dtype.numpy)
        sums = {n: np.zeros_like(arrays[w]) for n, w in zip(step_graph_.sums, step_graph_.weights, strict=False)}
        frozen = {n: a for n, a in initial.items() if n not in arrays}
        self.program = compile(step_graph_.graph, params=frozen if step_graph_.summing is None else {}, **options)
        self._summing = None if step_graph_.summing is None else compile(step_graph_.summing, params=frozen, **options)
        programs = [self.program, *([] if self._summing is None else [self._summing])]
        self._state, self._sums = State(arrays, programs), State(sums, programs)
        self._joint = step_graph_.joint
        self._reads = tuple(str(v.attrs["name"]) for v in self.graph.inputs)
        """What a batch has."""
        self._keyed = any(v.attrs["name"] == KEY for v in step_graph_.joint.inputs)
        self._options, self._frozen = options, frozen
        self._evaluated: Program | None = None
        self._has_run = False
        names = [RATE, *([] if self.scale is None else [SCALE]), *(f"train.{n}" for n in self.optimizer.numbers(1))]
        self._scalars: dict[str, Array] = {name: np.zeros((), np.float32) for name in names}
        """The numbers of a step, in the same arrays each time: an array that moves is compared with all weights."""

    @property
    def params(self) -> dict[str, Array]:
        """The weights as they are now, in arrays of the caller's own, and the frozen ones."""
        now = self._state.host((*self.weights, *self.statistics))
        return self._frozen | {name: array.copy() for name, array in now.items()}

    @property
    def summary(self) -> str:
        """Which parameters are trained, which are left as they are and why, and which batch norms move."""
        trained = sum(array.size for name, array in self._state.like.items() if name in self.weights)
        every = len(self.weights) + len(self._frozen) + len(self.statistics)
        lines = [f"trains {len(self.weights)} of {every} parameters, {trained:,} numbers: {_some(self.weights)}"]
        if self.statistics:
            lines.append(f"batch norms move {_some(self.statistics)}")
        if self._frozen:
            why = self.graph.frozen
            left = [f"{name} ({why[name]})" if name in why else name for name in self._frozen]
            lines.append(f"leaves as they are {_some(left)}")
        return "\n".join(lines)

    def update_module(self, module: Any = None) -> None:
        """Copy the weights as they are now into a torch module: the one that was given to train, or another."""
        into = self._module if module is None else module
        if into is None:
            raise OptionError("no torch module to update", hint="pass the module whose weights these are")
        from dovetail.frontends.torch.reading.tensors import write_tensors  # torch is there, where its module is

        write_tensors(into, self.params)

    def step(self, batch: Batch) -> Metrics:
        """Take one step: update weights and state.

        A batch is a dict of arrays or tensors, or a list of them in the order of the graph's inputs, labels last.
        Where the loss or a gradient is not finite, all arrays stay as they are. With a scaled loss, the step is left
        out and the scale halved; otherwise a `GradientError` names the first value that is not finite.
        """
        batch = batch_of(batch, self._reads, self._state.arrays)
        number = self.steps + 1
        rate = self.optimizer.lr * self.schedule(number)
        numbers = {f"train.{n}": x for n, x in self.optimizer.numbers(self._updates + 1).items()} | {RATE: rate}
        if self.scale is not None:
            numbers[SCALE] = self.scale.now
        for name, x in numbers.items():
            self._scalars[name][()] = x
        loss, norm, last = self._run(batch, self._scalars, number)
        if not self._has_run:
            # Compiling freed tens of megabytes, which malloc would keep for as long as there are steps.
            trim()
            self._has_run = True
        fine = bool(np.isfinite(norm) and np.isfinite(loss))
        if self.scale is not None:
            self.scale = self.scale.after(fine)
        elif not fine:
            raise not_finite(self._joint, {**last, **self._state.host()}, self._frozen, number, loss, norm)
        self.steps = number
        self._updates += fine
        return Metrics(number, loss, norm, rate, skipped=not fine)

    def _run(
        self, batch: Mapping[str, Array], scalars: Mapping[str, Array], number: int
    ) -> tuple[float, float, dict[str, Array]]:
        """Run the step: its loss, the norm of its gradients, and what its last micro-batch was fed."""
        arrays, losses = self._state.arrays, list[float]()
        if self._summing is None:
            fed = {**batch, **scalars, **self._key(number, 0)}
            loss, norm = ran(self.program, {**fed, **arrays}, (LOSS, NORM), self._state)
            return loss, norm, fed
        self._sums.clear()
        fed = dict[str, Array]()
        state = self._state.only((*self.weights, *self.statistics))
        scale = {SCALE: scalars[SCALE]} if SCALE in scalars else {}
        for part, rows in enumerate(micro_batches(batch, self.accumulate)):
            fed = {**rows, **scale, **self._key(number, part)}
            losses += ran(self._summing, {**fed, **state, **self._sums.arrays}, (LOSS,), self._state)
            if not np.isfinite(losses[-1]):
                return losses[-1], float("nan"), fed
        own = {n: a for n, a in arrays.items() if n not in self.statistics}
        (norm,) = ran(self.program, {**own, **self._sums.arrays, **scalars}, (NORM,), self._state)
        return float(np.mean(losses)), norm, fed

    def _key(self, number: int, part: int) -> dict[str, Array]:
        return {KEY: step_key(self.seed, number, part)} if self._keyed else {}

    @old_options(told="callback")
    def fit(
        self,
        batches: Iterable[Batch],
        *,
        steps: int | None = None,
        callback: Callable[[Metrics], object] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 1000,
    ) -> list[Metrics]:
        """Steps over batches, until they end or `steps` are done; a checkpoint after `every` steps and the last.

        `callback` is called with the metrics of each step.
        """
        if every < 1:
            raise OptionError(f"a checkpoint after every {every} steps", hint="pass at least 1")
        metrics: list[Metrics] = []
        for batch in batches:
            if steps is not None and len(metrics) >= steps:
                break
            metrics.append(self.step(batch))
            if callback is not None:
                callback(metrics[-1])
            if checkpoint is not None and len(metrics) % every == 0:
                self.save(checkpoint)
        if checkpoint is not None and metrics and len(metrics) % every:
            self.save(checkpoint)
        return metrics

    def evaluate(self, batch: Batch) -> dict[str, Array]:
        """Return the outputs of the graph, its loss among them, with the weights as they are; update nothing.

        Dropout leaves nothing out, and batch norms use their stored statistics.
        """
        if self._evaluated is None:
            graph = weights_as_inputs(evaluation_form(self.graph), (*self.weights, *self.statistics))
            self._evaluated = compile(graph, params=self._frozen, **self._options)
        return self._evaluated.run(
            {**batch_of(batch, self._reads, self._state.arrays), **self._state.only((*self.weights, *self.statistics))}
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: weights, state, the number of steps and the seed, in one safetensors file.

        It is the same on every mesh. Processes that train together all save, and one of them writes.
        """
        arrays = self._state.host()
        if self.writes:
            write_arrays(path, arrays | self._counters())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint, as the run that wrote it would have."""
        stored = read_arrays(path, self._state.like | self._counters())
        self._state.write({name: stored[name] for name in self._state.like})
        counts: list[int] = stored[_COUNTS].tolist()
        self.steps, self._updates, fine, self.seed = counts
        if self.scale is not None:
            self.scale = LossScale(float(stored[_SCALES][0]), fine)

    def _counters(self) -> dict[str, Array]:
        scale = self.scale or LossScale()
        counts = np.array([self.steps, self._updates, scale.fine, self.seed], np.int64)
        return {_COUNTS: counts} | ({} if self.scale is None else {_SCALES: np.array([scale.now], np.float64)})


def _some(names: Sequence[str]) -> str:
    """Names for a line."""
    rest = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def with_loss(graph: Graph, loss: str | Loss | None) -> Graph:
    """Return the graph with an output `loss`."""
    if loss is None:
        if LOSS not in graph.outputs:
            raise OptionError(f"{graph.name} has no output {LOSS!r}", hint=f"pass loss=… of {', '.join(LOSSES)}")
        return graph
    if LOSS in graph.outputs:
        raise OptionError(f"{graph.name} has an output {LOSS!r} already", hint="leave loss= out, or rename the output")
    if isinstance(loss, str) and loss not in LOSSES:
        raise OptionError(f"there is no loss {loss!r}", hint=f"the losses are {', '.join(LOSSES)}")
    output = next(iter(graph.outputs.values()))
    labels = leaf.input(LABELS, target_type(_name(loss), output.tensor))
    value = LOSSES[loss](output, labels) if isinstance(loss, str) else loss(output, labels)
    return replace(graph, inputs=(*graph.inputs, labels), outputs={**graph.outputs, LOSS: value}, reread=None)


def _name(loss: str | Loss) -> str:
    """Return the name of a loss, also of one whose options are bound by `functools.partial`."""
    plain = loss.func if isinstance(loss, partial) else loss
    return loss if isinstance(loss, str) else next((n for n, known in LOSSES.items() if known is plain), "")


def _arrays(graph: Graph, params: Mapping[str, Array], seed: int) -> dict[str, Array]:
    known = {**graph.params, **params}
    strange = [n for n in params if n not in {str(v.attrs["name"]) for v in graph.signature}]
    if strange:
        raise BindError(f"there is no parameter {', '.join(strange)}", hint="pass arrays for parameters of the graph")
    missing = [v for v in graph.signature if v.attrs["name"] not in known]
    known = (random_weights(graph, seed) if missing else {}) | known
    return {str(v.attrs["name"]): known[str(v.attrs["name"])] for v in graph.signature}


__all__ = ["LOSS", "Metrics", "Trainer", "with_loss"]
