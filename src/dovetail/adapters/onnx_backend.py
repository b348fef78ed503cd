"""dovetail as a backend in the sense of ONNX: `prepare` a model, then `run` it.

Some inputs of a model decide its structure: the shape that a Reshape is given, the axes of a reduction. A graph is
compiled for the values that these have in a run, once for each set of values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from dovetail.errors import BindError, NeedsValueError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.graph import Graph, walk_into
from dovetail.ir.literal import Array
from dovetail.ops.generate import random_bits
from dovetail.runtime.compile import compile
from dovetail.runtime.program import Program
from dovetail.targets import Target
from dovetail.targets.runtime.building.lru import LRU

MOST_COMPILED = 8
"""For how many sets of values a model is kept compiled."""


class DovetailRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, model: onnx.ModelProto, target: str | Target) -> None:
        self._model = model
        self._target = target
        self._deciding: tuple[str, ...] = ()
        """Inputs whose values decide the structure, as far as they were met."""
        self._programs: LRU[Program] = LRU(MOST_COMPILED)
        initial = {t.name for t in model.graph.initializer}
        self._inputs = [i.name for i in model.graph.input if i.name not in initial]
        self._outputs = [o.name for o in model.graph.output]
        try:
            _refuse_chance(import_model(model))
        except NeedsValueError as error:
            self._deciding = error.inputs

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs in the order of the model; inputs are a list in its order, or arrays by name."""
        feeds = self._named(inputs)
        program = self._program(feeds)
        results = program.run({name: a for name, a in feeds.items() if name not in self._deciding})
        return tuple(results[name] for name in self._outputs)

    def _named(self, inputs: Any) -> dict[str, Array]:
        if isinstance(inputs, Mapping):
            return {name: _array(name, array) for name, array in cast(Mapping[str, Any], inputs).items()}
        listed = cast(Sequence[Any], inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(listed) > len(self._inputs):
            raise BindError(f"{len(listed)} inputs for a model of {len(self._inputs)}", hint=", ".join(self._inputs))
        return {name: _array(name, array) for name, array in zip(self._inputs, listed, strict=False)}

    def _program(self, feeds: Mapping[str, Array]) -> Program:
        while True:
            fixed = {name: feeds[name] for name in self._deciding if name in feeds}
            try:
                return self._programs.get(_key(fixed), lambda fixed=fixed: self._compiled(fixed))
            except NeedsValueError as error:
                if set(error.inputs) <= fixed.keys() or not set(error.inputs) <= feeds.keys():
                    raise
                self._deciding = tuple(dict.fromkeys((*self._deciding, *error.inputs)))

    def _compiled(self, fixed: Mapping[str, Array]) -> Program:
        graph = import_model(self._model, fixed=fixed)
        _refuse_chance(graph)
        return compile(graph, target=self._target)


def _refuse_chance(graph: Graph) -> None:
    """A backend is compared number by number, and ONNX lets everyone draw random numbers of his own."""
    if any(v.op is random_bits for v in walk_into(graph.outputs.values())):
        raise UnsupportedError(
            f"{graph.name} draws random numbers, and ONNX does not say which",
            hint="dovetail.compile runs it; as a backend there is nothing to compare it with",
        )


def _array(name: str, given: Any) -> Array:
    if given is None:
        raise UnsupportedError(f"the optional input {name!r} that is empty", hint="leave it out of the model")
    return np.asarray(given)


def _key(fixed: Mapping[str, Array]) -> str:
    digest = hashlib.blake2b()
    for name, array in fixed.items():
        digest.update(f"{name}|{array.dtype}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


class DovetailBackend(Backend):
    """Prepares models for dovetail's targets."""

    target: str | Target = "cpu"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> DovetailRep:
        return DovetailRep(model, cls.target)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"
