"""Outputs that differ from the suite's because the suite's own are rounded: float64 decides which are nearer.

The suite computes in the dtype of a case. Where a sum should be 0 it expects what rounding left there, and its
tolerance is 1e-7 whatever the other numbers are. Only differences of a few roundings of the largest number are looked
at: our own import says what is exact, and must not excuse itself.
"""
# pyright: basic, reportPrivateUsage=true
# The suite of ONNX has no types here.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx.backend.base import BackendRep

from dovetail.adapters.onnx_backend import DovetailBackend
from dovetail.errors import DovetailError
from dovetail.frontends.onnx import import_model
from dovetail.ir.literal import Array
from dovetail.targets.reference.interpreter import evaluate

ROUNDINGS = 8
"""Roundings of the largest number of an output by which it may differ from the suite's."""


@dataclass(slots=True)
class LastRun:
    """The model that ran last, and its inputs."""

    model: Any = None
    inputs: Sequence[Array] = ()


class _Remembering(BackendRep):
    """A prepared model that notes its runs."""

    def __init__(self, model: Any, prepared: BackendRep, last: LastRun) -> None:
        self._model, self._prepared, self._last = model, prepared, last

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        self._last.model, self._last.inputs = self._model, inputs
        return self._prepared.run(inputs, **kwargs)


def suite_of(backend: type[DovetailBackend], suite: type[Any]) -> type[Any]:
    """ONNX's suite for a backend, where outputs that are nearer to float64 than the expected ones are right."""
    last = LastRun()

    class Remembering(backend):
        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
            return _Remembering(model, super().prepare(model, device, **kwargs), last)

    class Suite(suite):
        def __init__(self, name: str) -> None:
            super().__init__(Remembering, name)

        @classmethod
        def assert_similar_outputs(cls, ref_outputs: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
            try:
                super().assert_similar_outputs(ref_outputs, outputs, *args, **kwargs)
            except AssertionError:
                if not are_nearer(outputs, ref_outputs, last):
                    raise

    return Suite


def are_nearer(outputs: Sequence[Any], expected: Sequence[Any], run: LastRun) -> bool:
    """Whether each output of a run is as near to float64 as the expected one."""
    if not all(map(_comparable, outputs, expected)):
        return False
    initial = {t.name for t in run.model.graph.initializer}
    names = [i.name for i in run.model.graph.input if i.name not in initial]
    try:
        feeds = dict(zip(names, run.inputs, strict=True))
        # Integers may decide the structure.
        fixed = {name: array for name, array in feeds.items() if array.dtype.kind in "iu"}
        graph = import_model(run.model, fixed=fixed)
        exact = evaluate(graph, {name: array for name, array in feeds.items() if name not in fixed}, lift=True)
    except (DovetailError, ValueError):
        return False
    return all(map(is_nearer, outputs, expected, exact.values()))


def is_nearer(found: Array, expected: Array, exact: Array) -> bool:
    """Whether an array differs from another one by roundings, and its largest error is at most that of the other."""
    ours, theirs = (np.abs(a.astype(np.float64) - exact) for a in (found, expected))
    apart = np.abs(found.astype(np.float64) - expected).max(initial=0.0)
    rounding = float(np.finfo(found.dtype).eps) * np.abs(expected.astype(np.float64)).max(initial=0.0)
    return bool(apart <= ROUNDINGS * rounding and ours.max(initial=0.0) <= theirs.max(initial=0.0))


def _comparable(found: Any, expected: Any) -> bool:
    described = [(a.shape, a.dtype) for a in (found, expected) if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    return len(described) == 2 and described[0] == described[1]


__all__ = ["LastRun", "are_nearer", "suite_of"]
