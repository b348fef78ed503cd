"""A plan as two compiled JAX functions: the bind phase once, the run phase every time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.plan.plan import Plan
from dovetail.targets.reference.planned import PlannedGraph
from dovetail.targets.xla.package import jax, wide_types
from dovetail.targets.xla.trace import Tracer


class XlaGraph:
    """A plan and the functions that are traced from it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        graph = plan.graph
        self.parameters, self.inputs = list(graph.parameters), list(graph.inputs)
        outputs = list(graph.outputs.values())
        bound = [v for step in plan.phase("bind") for v in step.results]
        read = {v for reader in walk(outputs, until=dict.fromkeys(bound)) for v in (reader, *reader.operands)}
        self.bound = [v for v in bound if v in read]
        self.kept = [v for v in self.parameters if v in read]
        """Parameters that runs read as they are."""

        def before(parameters: list[Any]) -> tuple[list[Any], Any]:
            tracer = Tracer(graph.where)
            return tracer.values(self.bound, dict(zip(self.parameters, parameters, strict=True))), tracer.flag

        def run(known: list[Any], inputs: list[Any]) -> tuple[list[Any], Any]:
            tracer = Tracer(graph.where)
            given = dict(zip([*self.kept, *self.bound, *self.inputs], [*known, *inputs], strict=True))
            return tracer.values(outputs, given), tracer.flag

        self.before, self.traced = jax.jit(before), jax.jit(run)

    def bind(self, params: Mapping[str, Array]) -> XlaRunner:
        """Put parameters on the device, and compute what depends on them alone."""
        with wide_types():
            put = {v: jax.device_put(np.asarray(params[_name(v)])) for v in self.parameters}
            made: list[Any] = []
            if self.bound:
                made, flag = self.before(list(put.values()))
                if flag:
                    PlannedGraph(self.plan).bind(params)
        return XlaRunner(self, [*(put[v] for v in self.kept), *made], params)


class XlaRunner:
    """A compiled plan with its parameters on the device."""

    def __init__(self, graph: XlaGraph, known: list[Any], params: Mapping[str, Array]) -> None:
        self.graph = graph
        self.known = known
        self.params = params

    @cached_property
    def compiled(self) -> Any:
        """The executable of XLA."""
        with wide_types():
            shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype.numpy) for v in self.graph.inputs]
            return self.graph.traced.lower(self.known, shapes).compile()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns. Arrays of donated inputs are overwritten."""
        plan = self.graph.plan
        with wide_types():
            put = [jax.device_put(np.asarray(inputs[_name(v)], v.dtype.numpy)) for v in self.graph.inputs]
            results, flag = self.compiled(self.known, put)
        if flag:
            # The NumPy meaning says what is wrong, and where.
            PlannedGraph(plan).bind(self.params).run({name: np.array(a) for name, a in inputs.items()})
        found = {name: np.array(r) for name, r in zip(plan.graph.outputs, results, strict=True)}
        for donation in plan.donations:
            inputs[donation.input][...] = found[donation.output]
            found[donation.output] = inputs[donation.input]
        return found


def _name(value: Value) -> str:
    return str(value.attrs["name"])


__all__ = ["XlaGraph", "XlaRunner"]
