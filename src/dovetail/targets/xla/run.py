"""A plan as two compiled JAX functions: the bind phase once, the run phase every time."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from dovetail.errors import BindError, DeviceError
from dovetail.ir.literal import Array
from dovetail.ir.text_print import local_names
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.plan.emitted import Emitted
from dovetail.plan.plan import Plan
from dovetail.targets.reference.planned import PlannedGraph
from dovetail.targets.runtime.arrays.device_array import DeviceArray
from dovetail.targets.runtime.building.store import CodeStore
from dovetail.targets.xla.arrays import any_set, buffer_of, device_array, fetched, on_host, put
from dovetail.targets.xla.hlo import kernels
from dovetail.targets.xla.kept import compiled_or_kept
from dovetail.targets.xla.package import jax, wide_types
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.trace import Tracer


class XlaGraph:
    """A plan and the functions that are traced from it."""

    def __init__(self, plan: Plan, placement: Placement | None, store: CodeStore | None = None) -> None:
        self.plan = plan
        if not (plan.graph.parameters or plan.graph.inputs):
            placement = None  # arguments alone say which devices take part
        self.placement = None if placement is None else placement.with_state(plan.graph)
        self.store = store
        self.mesh: Any = None if placement is None else device_mesh(placement)
        self.devices: list[Any] = jax.devices()[:1] if placement is None else list(self.mesh.devices.flat)
        graph = plan.graph
        self.outputs = list(graph.outputs.values())
        donors = set(graph.donated.values())
        self.parameters = list(graph.parameters)
        self.inputs = [v for v in graph.inputs if _name(v) not in donors]
        self.donated = [v for v in graph.inputs if _name(v) in donors]
        bound = [v for step in plan.phase("bind") for v in step.results]
        read = {v for reader in walk(self.outputs, until=dict.fromkeys(bound)) for v in (reader, *reader.operands)}
        self.bound = [v for v in bound if v in read]
        self.kept = [v for v in self.parameters if v in read]
        """Parameters that runs read as they are."""
        self.names = local_names(graph, graph.values)

        def before(parameters: list[Any]) -> tuple[list[Any], list[Any]]:
            tracer = Tracer(graph.where)
            return tracer.values(self.bound, dict(zip(self.parameters, parameters, strict=True))), tracer.raised

        def run(known: list[Any], inputs: list[Any], donated: list[Any]) -> tuple[list[Any], list[Any]]:
            tracer = Tracer(graph.where, names=self.names)
            leaves = [*self.kept, *self.bound, *self.inputs, *self.donated]
            by_leaf = dict(zip(leaves, [*known, *inputs, *donated], strict=True))
            return tracer.values(self.outputs, by_leaf), tracer.raised

        self.before = jax.jit(before)
        self.traced = jax.jit(run, donate_argnums=2, out_shardings=(self._places(), None))

    def sharding(self, leaf: Value) -> Any:
        """Where a parameter or an input is; None on one device."""
        if self.placement is None:
            return None
        spec = jax.sharding.PartitionSpec(*(axes or None for axes in self.placement.axes(_name(leaf))))
        return jax.sharding.NamedSharding(self.mesh, spec)

    def _places(self) -> list[Any] | None:
        """Where outputs are: donated ones where their inputs were, others where XLA leaves them."""
        if self.placement is None:
            return None
        graph = self.plan.graph
        inputs = {_name(v): v for v in graph.inputs}
        return [self.sharding(inputs[graph.donated[n]]) if n in graph.donated else None for n in graph.outputs]

    @cached_property
    def scopes(self) -> str:
        """A digest of the names of values, which are scopes: steps of the bind phase have some of the numbers."""
        said = "\n".join([f"{name}\t{v.op.name}" for v, name in self.names.items()])
        return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()

    def compiled(self, known: list[Any]) -> Any:
        """The executable of the run phase, from the cache where it was compiled before; `known` may be types alone."""
        with wide_types(), device_errors():
            types = [self._types(leaves) for leaves in (self.inputs, self.donated)]
            return compiled_or_kept(self.traced, (known, *types), self.devices, self.store, self.scopes)

    def emitted(self) -> list[Emitted]:
        """Return XLA's kernels of the run phase; compile it where the cache does not have it."""
        known = [*self._types(self.kept), *self._bound_types()]
        values = {name: value for value, name in self.names.items()}
        rows: list[Emitted] = []
        for kernel in kernels(self.compiled(known).as_text()):
            # Scopes are the place, the op and the name of a value.
            sources = dict.fromkeys(values[s[2]] for s in kernel.scopes if len(s) > 2 and s[2] in values)
            rows.append(Emitted(kernel.name, kernel.form, kernel.type, tuple(sources), kernel.bytes))
        return rows

    def _bound_types(self) -> list[Any]:
        """The types of what the bind phase makes; on a mesh it is compiled to learn how XLA splits them."""
        if not self.bound:
            return []
        with wide_types(), device_errors():
            parameters = self._types(self.parameters)
            types, _ = jax.eval_shape(self.before, parameters)
            if self.placement is None:
                return types
            shardings, _ = self.before.lower(parameters).compile().output_shardings
            # What depends on no parameter is on one device, and goes where it is read.
            split = [s if len(s.device_set) > 1 else None for s in shardings]
            return [jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=s) for m, s in zip(types, split, strict=True)]

    def _types(self, leaves: list[Value]) -> list[Any]:
        return [jax.ShapeDtypeStruct(v.shape, v.dtype.numpy, sharding=self.sharding(v)) for v in leaves]

    def bind(self, params: Mapping[str, Array]) -> XlaRunner:
        """Put parameters on the device, and compute what depends on them alone."""
        with wide_types(), device_errors():
            there = {v: put(np.asarray(params[_name(v)]), self.sharding(v)) for v in self.parameters}
            computed: list[Any] = []
            if self.bound:
                computed, flags = self.before(list(there.values()))
                if any_set(flags):
                    PlannedGraph(self.plan).bind(params)
        return XlaRunner(self, [*(there[v] for v in self.kept), *computed], params)


class XlaRunner:
    """A compiled plan with its parameters on the device."""

    def __init__(self, graph: XlaGraph, known: list[Any], params: Mapping[str, Array]) -> None:
        self.graph = graph
        self.known = known
        self.params = params
        first, count = graph.devices[0], len(graph.devices)
        self.device = f"xla:{first.platform}" + ("" if count == 1 else f"×{count}")

    @cached_property
    def compiled(self) -> Any:
        """The executable of XLA, from the cache where it was compiled before."""
        return self.graph.compiled(self.known)

    def to_device(self, array: Array, value: Value) -> DeviceArray:
        """A copy of an array for an input, split as it is placed."""
        with device_errors():
            return device_array(put(array, self.graph.sharding(value)), value.dtype, self.device)

    def run(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns. Arrays of donated inputs are overwritten."""
        results = self._computed(inputs)
        donors = self.graph.plan.graph.donated
        arrays: dict[str, Array] = {}
        for name, result in results.items():
            donated = inputs[donors[name]] if name in donors else None
            if isinstance(donated, DeviceArray):
                continue  # it holds the result by now
            arrays[name] = fetched(result)
            if donated is not None:
                donated[...] = arrays[name]
                arrays[name] = donated
        return arrays

    def run_on_device(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, DeviceArray]:
        """Return the outputs by name, on the devices; those of donated inputs are the arrays of these inputs."""
        values, donors = self.graph.plan.graph.outputs, self.graph.plan.graph.donated
        return {
            name: there
            if name in donors and isinstance(there := inputs[donors[name]], DeviceArray)
            else device_array(result, values[name].dtype, self.device)
            for name, result in self._computed(inputs).items()
        }

    def _computed(self, inputs: Mapping[str, Array | DeviceArray]) -> dict[str, Any]:
        """The outputs as arrays of JAX. Device arrays of donated inputs hold theirs when it returns."""
        graph = self.graph
        with wide_types():
            compiled = self.compiled
            with device_errors():
                arrays, donated = (
                    [self._there(inputs[_name(v)], v) for v in leaves] for leaves in (graph.inputs, graph.donated)
                )
                results, flags = compiled(self.known, arrays, donated)
                raised = any_set(flags)
        outputs = dict(zip(graph.plan.graph.outputs, results, strict=True))
        for output, name in graph.plan.graph.donated.items():
            array = inputs[name]
            if isinstance(array, DeviceArray):
                buffer_of(array).array = outputs[output]
        if raised:
            self._refuse(inputs)
        return outputs

    def _there(self, array: Array | DeviceArray, value: Value) -> Any:
        if isinstance(array, DeviceArray):
            return buffer_of(array).array
        return put(np.asarray(array, value.dtype.numpy), self.graph.sharding(value))

    def _refuse(self, inputs: Mapping[str, Array | DeviceArray]) -> None:
        """Raise what the NumPy meaning raises: it says what is wrong, and where."""
        PlannedGraph(self.graph.plan).bind(self.params).run(on_host(inputs))
        raise BindError(
            "a value of this run is out of range, and donated arrays on the device are overwritten",
            hint="run it with arrays of the host, which says what is wrong and where",
        )


def device_mesh(placement: Placement) -> Any:
    """The first devices that JAX finds, as a mesh."""
    present = jax.devices()
    if placement.devices > len(present):
        described = ", ".join(f"{name} {size}" for name, size in placement.mesh)
        raise DeviceError(
            f"a mesh of {placement.devices} devices ({described}), and JAX finds {len(present)} "
            f"({present[0].platform})",
            hint="make the mesh smaller; to try it on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count="
            f"{placement.devices} before JAX starts",
        )
    if jax.process_count() > 1 and placement.devices < len(present):
        raise DeviceError(
            f"a mesh of {placement.devices} devices, and {jax.process_count()} hosts have {len(present)}",
            hint="several hosts use all of their devices",
        )
    shape = tuple(size for _, size in placement.mesh)
    devices = np.array(present[: placement.devices]).reshape(shape)
    return jax.sharding.Mesh(devices, tuple(name for name, _ in placement.mesh))


@contextmanager
def device_errors() -> Generator[None]:
    """Raise what XLA reports as `DeviceError`: too little memory, a device that is lost."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise DeviceError(f"XLA: {first}", hint="the message is XLA's own; jax.devices() lists what it sees") from error


def _name(value: Value) -> str:
    return str(value.attrs["name"])


__all__ = ["XlaGraph", "XlaRunner", "device_errors", "device_mesh"]
