"""A compiled torch module: it is called with tensors as the module is, and returns what the module returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dovetail.errors import BindError
from dovetail.frontends.torch.load import Imported, import_module
from dovetail.frontends.torch.reading.structure import Structure, as_module
from dovetail.frontends.torch.reading.tensors import array_of, maker, tensor_of
from dovetail.ir.dtype import of_numpy
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.plan.plan import Plan
from dovetail.runtime.program import Program
from dovetail.targets.runtime.weights import Weights

if TYPE_CHECKING:
    from dovetail.report.report import Report


class ModuleProgram:
    """Runs the program of a torch module on tensors. Weights are shared with the module, not copied.

    Kernels may hold weights in a layout of their own: call `refresh` after the weights were changed.
    """

    def __init__(self, program: Program, imported: Imported) -> None:
        self.program = program
        self._imported = imported
        outputs = {name: value.dtype for name, value in imported.graph.outputs.items()}
        self._structure = Structure(imported.program, imported.lowered, imported.exported, outputs, imported.forward)
        self._state = {w.leaf: w.state for w in self._structure.written if w.state is not None}
        self._held = {leaf: array_of(tensor) for leaf, tensor in self._state.items()}
        self._inputs = frozenset(v.attrs["name"] for v in imported.graph.inputs)
        tensors = [a for a in self._structure.arguments if a.is_tensor]
        self._quick = (
            self._structure.is_flat
            and not self._structure.keywords
            and len(tensors) == len(self._structure.arguments) == len(self._inputs)
            and not self._structure.written
        )
        self._names = tuple(a.name for a in tensors)
        results = self._structure.results
        single = results[0] if self._structure.single and results[0].name else None
        self._make = None if single is None or single.dtype is None else maker(single.dtype)
        """What makes the one tensor that the module returns; None where it returns something else."""
        self._output = "" if single is None else single.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for these arguments."""
        if self._quick and not kwargs and len(args) == len(self._names):
            try:
                arrays = {name: tensor.numpy() for name, tensor in zip(self._names, args, strict=False)}
            except (AttributeError, RuntimeError, TypeError):
                return self._call(args, kwargs)  # a tensor that needs a gradient, a type that NumPy lacks, no tensor
            found = self.program.run(arrays)
            return self._returned(found) if self._make is None else self._make(found[self._output])
        return self._call(args, kwargs)

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        structure = self._structure
        leaves = self._leaves(args, kwargs)
        arrays: dict[str, Array] = dict(self._held)
        given: dict[str, Any] = dict(self._state)
        for argument, leaf in zip(structure.arguments, leaves, strict=True):
            if not argument.is_tensor:
                structure.check_value(argument, leaf)
            elif argument.name in self._inputs:
                arrays[argument.name] = structure.array(argument, leaf)
                given[argument.name] = leaf
        found = self.program.run(arrays)
        for written in structure.written:
            self._write_back(given[written.leaf], arrays[written.leaf], found[written.output])
        return self._returned(found)

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        structure = self._structure
        if structure.is_flat and len(args) == structure.positional and set(kwargs) == set(structure.keywords):
            return [*args, *(kwargs[name] for name in structure.keywords)]
        return structure.flatten(args, kwargs)

    def _write_back(self, tensor: Any, array: Array, new: Array) -> None:
        """The new content of a tensor, where the run did not write it into the tensor's own memory."""
        shared = array.ctypes.data == tensor.data_ptr()
        if new is not array or not shared:
            dtype = of_numpy(new.dtype)
            assert dtype is not None, "programs return arrays of our types"
            tensor.detach().copy_(tensor_of(new, dtype).reshape(tensor.shape))

    def _returned(self, found: Mapping[str, Array]) -> Any:
        leaves: list[Any] = []
        for result in self._structure.results:
            if not result.name:
                leaves.append(result.value)
            elif result.dtype is None:
                leaves.append(int(found[result.name]))
            else:
                leaves.append(tensor_of(found[result.name], result.dtype))
        if self._structure.single:
            return leaves[0]
        return self._structure.unflatten(leaves)

    def refresh(self) -> ModuleProgram:
        """Read the weights of the module again, after they were changed; gives itself."""
        lowered = self._imported.lowered
        held = {**lowered.state_dict, **lowered.constants}
        wanted = {one.target: held[one.target] for one in self._imported.exported.leaves if one.kind == "param"}
        declared = {v.attrs["name"] for v in self.program.graph.signature}
        self.program.bind(Weights({n: array_of(t) for n, t in wanted.items() if n in declared}))
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
    def plan(self) -> Plan:
        return self.program.plan

    def __deepcopy__(self, memo: Any) -> Any:
        raise BindError("a compiled module cannot be copied", hint="compile the module again")

    def __reduce__(self) -> Any:
        raise BindError("a compiled module cannot be saved", hint="save the module that it was compiled from")

    def __repr__(self) -> str:
        return f"<compiled module {self.program.graph.name}: {len(self.program.plan.steps)} steps>"


__all__ = ["ModuleProgram", "import_module"]
