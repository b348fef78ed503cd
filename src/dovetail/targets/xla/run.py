"""A plan as two compiled JAX functions: the bind phase once, the run phase every time."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.errors import DeviceError
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.plan.plan import Plan
from dovetail.targets.reference.planned import PlannedGraph
from dovetail.targets.xla.package import jax, wide_types
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.trace import Tracer


class XlaGraph:
    """A plan and the functions that are traced from it."""

    def __init__(self, plan: Plan, placement: Placement | None) -> None:
        self.plan = plan
        self.placement = placement
        self.mesh: Any = None if placement is None else _mesh(placement)
        graph = plan.graph
        self.parameters, self.inputs = list(graph.parameters), list(graph.inputs)
        outputs = list(graph.outputs.values())
        bound = [v for step in plan.phase("bind") for v in step.results]
        read = {v for reader in walk(outputs, until=dict.fromkeys(bound)) for v in (reader, *reader.operands)}
        self.bound = [v for v in bound if v in read]
        self.kept = [v for v in self.parameters if v in read]
        """Parameters that runs read as they are."""

        def before(parameters: list[Any]) -> tuple[list[Any], list[Any]]:
            tracer = Tracer(graph.where)
            return tracer.values(self.bound, dict(zip(self.parameters, parameters, strict=True))), tracer.raised

        def run(known: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
            tracer = Tracer(graph.where)
            given = dict(zip([*self.kept, *self.bound, *self.inputs], [*known, *inputs], strict=True))
            return tracer.values(outputs, given), tracer.raised

        self.before, self.traced = jax.jit(before), jax.jit(run)

    def sharding(self, leaf: Value) -> Any:
        """Where a parameter or an input is; None on one device."""
        if self.placement is None:
            return None
        spec = jax.sharding.PartitionSpec(*(axes or None for axes in self.placement.axes(_name(leaf))))
        return jax.sharding.NamedSharding(self.mesh, spec)

    def bind(self, params: Mapping[str, Array]) -> XlaRunner:
        """Put parameters on the device, and compute what depends on them alone."""
        with wide_types():
            put = {v: jax.device_put(np.asarray(params[_name(v)]), self.sharding(v)) for v in self.parameters}
            made: list[Any] = []
            if self.bound:
                made, flags = self.before(list(put.values()))
                if _any(flags):
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
            graph = self.graph
            shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype.numpy, sharding=graph.sharding(v)) for v in graph.inputs]
            with _told():
                return graph.traced.lower(self.known, shapes).compile()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns. Arrays of donated inputs are overwritten."""
        graph, plan = self.graph, self.graph.plan
        with wide_types():
            given = [(v, np.asarray(inputs[_name(v)], v.dtype.numpy)) for v in graph.inputs]
            compiled = self.compiled
            with _told():
                put = [jax.device_put(array, graph.sharding(v)) for v, array in given]
                results, flags = compiled(self.known, put)
                raised = _any(flags)
        if raised:
            # The NumPy meaning says what is wrong, and where.
            PlannedGraph(plan).bind(self.params).run({name: np.array(a) for name, a in inputs.items()})
        found = {name: np.array(r) for name, r in zip(plan.graph.outputs, results, strict=True)}
        for donation in plan.donations:
            inputs[donation.input][...] = found[donation.output]
            found[donation.output] = inputs[donation.input]
        return found


def _mesh(placement: Placement) -> Any:
    """The first devices that JAX finds, as a mesh."""
    found = jax.devices()
    if placement.devices > len(found):
        described = ", ".join(f"{name} {size}" for name, size in placement.mesh)
        raise DeviceError(
            f"a mesh of {placement.devices} devices ({described}), and JAX finds {len(found)} ({found[0].platform})",
            hint="make the mesh smaller; to try it on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count="
            f"{placement.devices} before JAX starts",
        )
    shape = tuple(size for _, size in placement.mesh)
    devices = np.array(found[: placement.devices]).reshape(shape)
    return jax.sharding.Mesh(devices, tuple(name for name, _ in placement.mesh))


@contextmanager
def _told() -> Generator[None]:
    """What XLA itself reports, as one error of ours: too little memory, a device that is lost."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise DeviceError(f"XLA: {first}", hint="the message is XLA's own; jax.devices() lists what it sees") from error


def _any(flags: list[Any]) -> bool:
    return any(bool(np.asarray(flag).any()) for flag in flags)


def _name(value: Value) -> str:
    return str(value.attrs["name"])


__all__ = ["XlaGraph", "XlaRunner"]
