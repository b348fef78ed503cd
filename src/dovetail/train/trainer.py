"""`dovetail.Trainer`: a compiled step, the arrays that it updates in place, checkpoints, and a loop over batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.errors import BindError, GradientError, OptionError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.models.weights import random_weights
from dovetail.runtime.compile import compile
from dovetail.runtime.load import load
from dovetail.runtime.program import Program
from dovetail.train.checkpoint import read_arrays, write_arrays
from dovetail.train.losses import LOSSES, Loss, wanted_type
from dovetail.train.optimizers import AdamW, Optimizer
from dovetail.train.schedules import Schedule, constant
from dovetail.train.step import NORM, RATE, Group, step_graph, weights_as_inputs

LOSS, WANTED = "loss", "labels"
_STEP = "train.step"


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one step told."""

    step: int
    """Counted from 1."""
    loss: float
    norm: float
    """Of all gradients, before they are clipped."""
    rate: float


class Trainer:
    """Trains the parameters of a graph, or of an ONNX file.

    `loss` is a name of `LOSSES`, or a function of the graph's first output and of an input `labels`; a graph with an
    output `loss` needs none. Weights come from `params` or from the graph, or are drawn from `seed`. Two trainers that
    are given the same batches have the same weights to the last bit, also if one was saved and loaded in between.
    """

    def __init__(
        self,
        graph: Graph | str | os.PathLike[str],
        loss: str | Loss | None = None,
        optimizer: Optimizer | None = None,
        *,
        wrt: str | Sequence[str] = "*",
        params: Mapping[str, Array] | None = None,
        schedule: Schedule = constant,
        groups: Sequence[Group] = (),
        clip_norm: float | None = None,
        clip_value: float | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        model = graph if isinstance(graph, Graph) else load(graph)
        self.graph = _with_loss(model, loss)
        self.optimizer: Optimizer = AdamW() if optimizer is None else optimizer
        self.schedule, self.steps = schedule, 0
        made = step_graph(
            self.graph, self.optimizer, wrt=wrt, loss=LOSS, groups=groups, clip_norm=clip_norm, clip_value=clip_value
        )
        self.weights = made.weights
        given = _arrays(self.graph, params or {}, seed)
        self._arrays = {name: np.array(given[name], order="C") for name in made.weights}
        self._arrays |= {name: np.zeros_like(self._arrays[of]) for name, of in made.state.items()}
        frozen = {n: a for n, a in given.items() if n not in self._arrays}
        self.program = compile(made.graph, params=frozen, **options)
        self._options, self._frozen = options, frozen
        self._evaluated: Program | None = None

    @property
    def params(self) -> dict[str, Array]:
        """The weights as they are now, in arrays of the caller's own, and the frozen ones."""
        return self._frozen | {name: self._arrays[name].copy() for name in self.weights}

    def step(self, batch: Mapping[str, Array]) -> Metrics:
        """One step: weights and state are updated."""
        self._refuse_strange(batch)
        number = self.steps + 1
        rate = self.optimizer.rate * self.schedule(number)
        numbers = {f"train.{n}": x for n, x in self.optimizer.numbers(number).items()} | {RATE: rate}
        scalars = {n: np.asarray(x, np.float32) for n, x in numbers.items()}
        found = self.program.run({**batch, **self._arrays, **scalars})
        self.steps = number
        told = Metrics(number, float(found[LOSS]), float(found[NORM]), rate)
        if not np.isfinite(told.norm) or not np.isfinite(told.loss):
            raise GradientError(
                f"step {number} has the loss {told.loss} and gradients of norm {told.norm}",
                hint="load the last checkpoint with a lower rate or clip_norm=1.0; "
                "`dovetail verify --gradients` names the first value that is not finite",
            )
        return told

    def fit(
        self,
        batches: Iterable[Mapping[str, Array]],
        *,
        steps: int | None = None,
        told: Callable[[Metrics], object] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 1000,
    ) -> list[Metrics]:
        """Steps over batches, until they end or `steps` are done; a checkpoint after `every` steps and the last."""
        if every < 1:
            raise OptionError(f"a checkpoint after every {every} steps", hint="pass at least 1")
        found: list[Metrics] = []
        for batch in batches:
            if steps is not None and len(found) >= steps:
                break
            found.append(self.step(batch))
            if told is not None:
                told(found[-1])
            if checkpoint is not None and len(found) % every == 0:
                self.save(checkpoint)
        if checkpoint is not None and found and len(found) % every:
            self.save(checkpoint)
        return found

    def evaluate(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the graph, its loss among them, with the weights as they are; nothing is updated."""
        if self._evaluated is None:
            graph = weights_as_inputs(self.graph, self.weights)
            self._evaluated = compile(graph, params=self._frozen, **self._options)
        return self._evaluated.run({**batch, **{name: self._arrays[name] for name in self.weights}})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: weights, state and the number of steps, in one safetensors file."""
        write_arrays(path, self._arrays | {_STEP: np.array([self.steps], np.int64)})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint, as the run that wrote it would have."""
        found = read_arrays(path, self._arrays | {_STEP: np.array([0], np.int64)})
        for name, array in self._arrays.items():
            array[...] = found[name]
        self.steps = int(found[_STEP][0])

    def _refuse_strange(self, batch: Mapping[str, Array]) -> None:
        wrong = [n for n in batch if n in self._arrays or n == RATE]
        if wrong:
            raise BindError(f"{', '.join(wrong)} belongs to the trainer", hint="pass what the model reads, and labels")


def _with_loss(graph: Graph, loss: str | Loss | None) -> Graph:
    """The graph with an output `loss`."""
    if loss is None:
        if LOSS not in graph.outputs:
            raise OptionError(f"{graph.name} has no output {LOSS!r}", hint=f"pass loss=… of {', '.join(LOSSES)}")
        return graph
    if LOSS in graph.outputs:
        raise OptionError(f"{graph.name} has an output {LOSS!r} already", hint="leave loss= out, or rename the output")
    if isinstance(loss, str) and loss not in LOSSES:
        raise OptionError(f"there is no loss {loss!r}", hint=f"the losses are {', '.join(LOSSES)}")
    output = next(iter(graph.outputs.values()))
    wanted = leaf.input(WANTED, wanted_type(loss if isinstance(loss, str) else "", output.tensor))
    made = LOSSES[loss](output, wanted) if isinstance(loss, str) else loss(output, wanted)
    return replace(graph, inputs=(*graph.inputs, wanted), outputs={**graph.outputs, LOSS: made}, reread=None)


def _arrays(graph: Graph, params: Mapping[str, Array], seed: int) -> dict[str, Array]:
    known = {**graph.params, **params}
    strange = [n for n in params if n not in {str(v.attrs["name"]) for v in graph.signature}]
    if strange:
        raise BindError(f"there is no parameter {', '.join(strange)}", hint="pass arrays for parameters of the graph")
    missing = [v for v in graph.signature if v.attrs["name"] not in known]
    known = (random_weights(graph, seed) if missing else {}) | known
    return {str(v.attrs["name"]): known[str(v.attrs["name"])] for v in graph.signature}


__all__ = ["Metrics", "Trainer"]
