"""A compiled torch module: it is called with tensors as the module is, and returns what the module returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dovetail.errors import BindError
from dovetail.frontends.torch.load import Imported
from dovetail.frontends.torch.reading.structure import Structure, as_module
from dovetail.frontends.torch.reading.tensors import array_of, is_counted, tensor_of, torch_library
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.plan.plan import Plan
from dovetail.runtime.program import Program
from dovetail.targets.runtime.building.weights import Weights

if TYPE_CHECKING:
    from dovetail.report.report import Report

MOST_SHAPES = 256
"""Sets of shapes that a program remembers to be within the limits of its export."""


class ModuleProgram:
    """Runs the program of a torch module on tensors. Weights are shared with the module, not copied.

    Kernels may hold weights in a layout of their own: a call reads again those that torch has changed in place since.
    Call `refresh` after changes that torch does not count, as those through `weight.data`.
    """

    def __init__(self, program: Program, imported: Imported) -> None:
        self.program = program
        self._imported = imported
        interface = imported.interface
        self._structure = Structure(imported.captured.program, interface, imported.captured.forward)
        self._library = torch_library()
        states = {w.leaf: imported.held[w.target] for w in interface.written if w.target}
        self._states = tuple(states.values())
        places = {a.name: i for i, a in enumerate(interface.arguments) if a.is_tensor}
        places |= {name: len(interface.arguments) + i for i, name in enumerate(states)}
        inputs = {str(v.attrs["name"]): v for v in program.graph.inputs}
        self._order = tuple(places[name] for name in inputs)
        """For each input of the graph its place among the leaves of a call, which the states follow."""
        self._values = tuple(i for i, a in enumerate(interface.arguments) if not a.is_tensor)
        """The places of arguments that are part of the program."""
        self._types = {places[name]: v.dtype for name, v in inputs.items()}
        self._written = tuple((w.output, places[w.leaf]) for w in interface.written)
        self._tensors = tuple(i for i, a in enumerate(interface.arguments) if a.is_tensor)
        self._within: set[tuple[tuple[int, ...], ...]] = set()
        """Shapes of arguments that were checked before."""
        is_plain = self._order == tuple(range(len(interface.arguments))) and not self._values and not states
        self._positional = self._structure.positional if is_plain and self._structure.is_flat else -1
        """How many arguments a call has whose arguments are the inputs of the graph in their order; else -1."""
        first = interface.results[0] if self._structure.single else None
        self._output = first.name if first is not None and first.dtype is not None and not self._written else ""
        """The output that is the whole result; empty where the result is something else."""
        declared = {str(v.attrs["name"]) for v in program.graph.signature}
        # Blocks of quantized weights have names of their own, and are none of the module's tensors.
        is_whole = program.quantized is None
        held = [imported.held[name] for name in interface.params if name in declared or not is_whole]
        self._watched = [tensor for tensor in held if is_counted(tensor)]
        """Weights that the program may hold in a layout of its own."""
        self._seen = [t._version for t in self._watched]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments."""
        tensors: Sequence[Any]
        if [t._version for t in self._watched] != self._seen:
            self.refresh()
        if len(args) == self._positional and not kwargs:
            leaves = tensors = args
        else:
            leaves = [*self._structure.leaves(args, kwargs), *self._states]
            for index in self._values:
                self._structure.check_value(index, leaves[index])
            tensors = [leaves[i] for i in self._order]
        if self._structure.limits is not None:
            self._check_limits(leaves)
        found = self.program.launch(tensors, self._library)
        if found is None:
            found = self._run(leaves)
        if self._output:
            return found[self._output]
        for output, index in self._written:
            _write_back(leaves[index], found[output])
        return self._returned(found)

    def _check_limits(self, leaves: Sequence[Any]) -> None:
        """Raise where shapes are outside of what torch exported the program for."""
        try:
            shapes = tuple([leaves[i].shape for i in self._tensors])
        except AttributeError:
            return  # no tensor, which the run refuses
        if shapes in self._within:
            return
        assert self._structure.limits is not None
        self._structure.limits.check(shapes)
        if len(self._within) < MOST_SHAPES:
            self._within.add(shapes)

    def _run(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """A run whose tensors are checked and made dense."""
        given = len(self._structure.interface.arguments)
        arrays: dict[str, Array] = {}
        for value, index in zip(self.program.graph.inputs, self._order, strict=True):
            leaf = leaves[index]
            is_state = index >= given
            name = str(value.attrs["name"])
            arrays[name] = array_of(leaf) if is_state else self._structure.array(index, leaf, self._types[index])
            if not is_state:
                self._check_sizes(value, index, arrays[name])
        for index in self._tensors:
            if index not in self._types:
                self._structure.array(index, leaves[index], None)  # an argument that the program does not read
        found = self.program.run(arrays)
        outputs = self.program.graph.outputs
        return {name: tensor_of(array, outputs[name].dtype) for name, array in found.items()}

    def _check_sizes(self, value: Value, index: int, array: Array) -> None:
        """Refuse another size where the program was compiled for one, and say how to leave it open."""
        for axis, (size, given) in enumerate(zip(value.shape, array.shape, strict=False)):
            if isinstance(size, int) and size != given and array.ndim == value.rank:
                spelled = self._structure.spelled[index]
                name = spelled.removeprefix("argument ")
                named = f'{{"{name}": {{{axis}: "n"}}}}' if "[" not in name else "…"
                raise BindError(
                    f"{spelled} has {given} on axis {axis}, and the program was compiled for {size}",
                    hint=f"compile with dynamic={named} to leave that size open",
                )

    def _returned(self, found: Mapping[str, Any]) -> Any:
        leaves: list[Any] = []
        for result in self._structure.interface.results:
            if not result.name:
                leaves.append(result.value)
            elif result.dtype is None:
                leaves.append(int(found[result.name]))
            else:
                leaves.append(found[result.name])
        return self._structure.build(iter(leaves))

    def refresh(self) -> ModuleProgram:
        """Read the weights of the module again, after they were changed; gives itself."""
        if self.program.quantized is not None:
            raise BindError("the weights were quantized when the module was compiled", hint="compile it again")
        declared = {v.attrs["name"] for v in self.program.graph.signature}
        held = self._imported.held
        wanted = {n: array_of(held[n]) for n in self._imported.interface.params if n in declared}
        self.program.bind(Weights(wanted))
        self._seen = [t._version for t in self._watched]
        return self

    def as_module(self) -> Any:
        """This program as an nn.Module, to be put in the place of the module that it was compiled from."""
        return as_module(self, self.program.graph.name)

    @cached_property
    def report(self) -> Report:
        """What fused, what did not and why, with the lines of the module's own source."""
        return self.program.report

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def written(self) -> Graph:
        """The graph as it was read from the module, before anything was fused."""
        return self._imported.graph

    @property
    def plan(self) -> Plan:
        return self.program.plan

    def __deepcopy__(self, memo: Any) -> Any:
        raise BindError("a compiled module cannot be copied", hint="compile the module again")

    def __reduce__(self) -> Any:
        raise BindError("a compiled module cannot be saved", hint="save the module that it was compiled from")

    def __repr__(self) -> str:
        return f"<compiled module {self.program.graph.name}: {len(self.program.plan.steps)} steps>"


def _write_back(tensor: Any, new: Any) -> None:
    """The new content of a tensor, where the run did not write it into the tensor's own memory."""
    if new is not tensor and (new.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous()):
        tensor.detach().copy_(new.reshape(tensor.shape))


__all__ = ["ModuleProgram"]
