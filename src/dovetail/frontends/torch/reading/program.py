"""An ExportedProgram as plain data."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, cast

from dovetail.errors import UnsupportedError
from dovetail.frontends.torch.exported import GETITEM, Body, Call, Exported, Leaf, Output, Ref, Result, Unknown
from dovetail.frontends.torch.reading.package import dtypes, torch_module
from dovetail.frontends.torch.reading.places import describe, origins_of
from dovetail.frontends.torch.reading.sizes import Names, real_of, size_of
from dovetail.frontends.torch.reading.tensors import array_of
from dovetail.ir.dim import Dim
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType

_EFFECT = "higher_order.with_effects"
_MUTATIONS = {"BUFFER_MUTATION", "USER_INPUT_MUTATION", "PARAMETER_MUTATION"}


def read_program(program: Any, *, name: str = "module", names: Names | None = None) -> Exported:
    """The leaves, calls and outputs of a decomposed program; `names` are the user's names of symbols."""
    return Reading(program, names or {}).exported(name)


class Reading:
    """Reads the nodes of a graph of torch."""

    def __init__(self, program: Any, names: Names) -> None:
        self.program = program
        self.names = names
        self.torch = torch_module()
        self.dtypes = dtypes()
        self._arrays: dict[Any, tuple[str, Array]] = {}

    def exported(self, name: str) -> Exported:
        signature = self.program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
        mutated = {spec.target for spec in signature.output_specs if spec.kind.name in _MUTATIONS}
        nodes = list(self.program.graph.nodes)
        placeholders = [node for node in nodes if node.op == "placeholder"]
        leaves = [one for node in placeholders if (one := self._leaf(node, specs[node.name], mutated)) is not None]
        calls = [self._call(node) for node in nodes if node.op == "call_function" and not _passes_token(node)]
        by_target = {one.target or one.name: one.name for one in leaves}
        outputs = [
            Output(self._output(spec.arg), by_target[spec.target] if spec.kind.name in _MUTATIONS else "")
            for spec in signature.output_specs
            if spec.kind.name != "TOKEN"
        ]
        numbers = {call.name for call in calls if isinstance(call.result, Dim | int)}
        sizes = {
            f"output_{index}"
            for index, output in enumerate(outputs)
            if isinstance(output.value, Ref) and output.value.name in numbers
        }
        return Exported(name, tuple(leaves), tuple(calls), tuple(outputs), frozenset(sizes), self._ranges())

    def _ranges(self) -> Mapping[str, tuple[int, int | None]]:
        found: dict[str, tuple[int, int | None]] = {}
        for key, bounds in self.program.range_constraints.items():
            upper = bounds.upper
            most = int(upper) if getattr(upper, "is_Integer", False) and int(upper) < 2**62 else None
            least = int(bounds.lower) if getattr(bounds.lower, "is_Integer", False) else 0
            found[self.names.get(str(key), str(key))] = (least, most)
        return found

    def _leaf(self, node: Any, spec: Any, mutated: set[str]) -> Leaf | None:
        value = node.meta.get("val")
        if spec.kind.name == "TOKEN":
            return None
        if spec.kind.name == "USER_INPUT":
            if not isinstance(value, self.torch.Tensor):
                return None
            return Leaf(node.name, "input", self._input_type(value), node.name)
        if spec.target is None:
            return None  # a token, which orders effects
        tensor = self._held(spec.target)
        if not isinstance(tensor, self.torch.Tensor):
            return None
        type_ = self._input_type(tensor)
        if spec.target in mutated:
            return Leaf(node.name, "state", type_, spec.target)
        kind = "constant" if spec.kind.name == "CONSTANT_TENSOR" else "param"
        target, array = self._shared(tensor, spec.target)
        return Leaf(node.name, kind, type_, target, array, _frozen(spec, tensor))

    def _held(self, target: str) -> Any:
        program = self.program
        return program.state_dict[target] if target in program.state_dict else program.constants[target]

    def _shared(self, tensor: Any, target: str) -> tuple[str, Array]:
        """The array of a tensor: tied weights, one memory under two names, are one parameter."""
        key = (
            (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype) if tensor.numel() else target
        )
        return self._arrays.setdefault(key, (target, array_of(tensor)))

    def _input_type(self, tensor: Any) -> TensorType:
        found = self._type(tensor)
        if isinstance(found, Unknown):
            raise UnsupportedError(found.reason, hint="convert the model and its inputs to another type")
        return found

    def _type(self, tensor: Any) -> TensorType | Unknown:
        if tensor.layout is not self.torch.strided:
            return Unknown(f"a tensor with the layout {tensor.layout}")
        dtype = self.dtypes.get(tensor.dtype)
        if dtype is None:
            return Unknown(f"a tensor of {tensor.dtype}")
        return TensorType(dtype, tuple([size_of(s, self.names) for s in tensor.shape]))

    def _result(self, value: Any) -> Result:
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return self._type(value)
        if isinstance(value, torch.SymInt):
            return size_of(value, self.names)
        if isinstance(value, torch.SymFloat):
            return real_of(value, self.names)
        if isinstance(value, torch.SymBool):
            return Unknown(f"the number {value}, which sizes decide")
        if isinstance(value, list | tuple):
            return tuple([self._result(v) for v in cast(Iterable[Any], value)])
        return value if isinstance(value, int | float | str) or value is None else Unknown(f"a {type(value).__name__}")

    def _body(self, node: Any) -> Body:
        """The sub-graph that a node names."""
        module = node.graph.owning_module.get_submodule(node.target)
        nodes = list(module.graph.nodes)
        (output,) = [n for n in nodes if n.op == "output"]
        returned = output.args[0] if isinstance(output.args[0], list | tuple) else [output.args[0]]
        return Body(
            str(node.target),
            tuple(n.name for n in nodes if n.op == "placeholder"),
            tuple(self._call(n) for n in nodes if n.op == "call_function"),
            tuple(self._argument(item) for item in cast(Iterable[Any], returned)),
        )

    def _call(self, node: Any) -> Call:
        target = node.target
        result = self._result(node.meta.get("val"))
        if target is operator.getitem:
            arguments: tuple[Any, ...] = (self._argument(node.args[0]), node.args[1])
            return Call(node.name, GETITEM, arguments, (), {}, result, origins_of(node), describe(node))
        if str(target).startswith("aten.as_strided") and not node.args[0].meta["val"].is_contiguous():
            result = Unknown("strides through memory that has gaps or another order")
        name = str(target) if isinstance(target, self.torch._ops.OpOverload) else _plain_name(target)
        schema = getattr(target, "_schema", None)
        if schema is None:
            arguments = tuple(self._argument(a) for a in node.args)
            keywords = {k: self._argument(v) for k, v in node.kwargs.items()}
            return Call(node.name, name, arguments, (), keywords, result, origins_of(node), describe(node))
        names, arguments, keywords = self._by_schema(schema, node)
        return Call(node.name, name, arguments, names, keywords, result, origins_of(node), describe(node))

    def _by_schema(self, schema: Any, node: Any) -> tuple[tuple[str, ...], tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call in the order of the schema; those at the end that are defaults are left out."""
        positional = [a for a in schema.arguments if not a.kwarg_only]
        given: dict[str, Any] = {a.name: v for a, v in zip(positional, node.args, strict=False)}
        given |= node.kwargs
        last = 0
        values: list[Any] = []
        for index, argument in enumerate(positional):
            value = given.get(argument.name, argument.default_value)
            values.append(self._argument(value))
            if argument.name in given and (not argument.has_default_value() or value != argument.default_value):
                last = index + 1
        keywords = {
            a.name: self._argument(given[a.name])
            for a in schema.arguments
            if a.kwarg_only and a.name in given and given[a.name] != a.default_value
        }
        return tuple(a.name for a in positional), tuple(values[:last]), keywords

    def _argument(self, given: Any) -> Any:
        torch = self.torch
        if isinstance(given, torch.fx.Node):
            # Bodies of higher-order operators have no value; constants of a traced graph do.
            is_body = given.op == "get_attr" and given.meta.get("val") is None
            return self._body(given) if is_body else Ref(given.name)
        if isinstance(given, list | tuple):
            return [self._argument(item) for item in cast(Iterable[Any], given)]
        if isinstance(given, torch.SymInt):
            return size_of(given, self.names)
        if isinstance(given, torch.dtype):
            return self.dtypes.get(given) or str(given)
        if isinstance(given, torch.device | torch.layout | torch.memory_format):
            return str(given)
        return given

    def _output(self, arg: Any) -> Any:
        if hasattr(arg, "name") and arg.name and type(arg).__name__ != "ConstantArgument":
            return Ref(arg.name)
        return getattr(arg, "value", None)


def _frozen(spec: Any, tensor: Any) -> str:
    """Why the module does not train a tensor that it holds; empty for a parameter with a gradient."""
    match spec.kind.name:
        case "PARAMETER":
            return "" if tensor.requires_grad else "requires_grad is False"
        case "BUFFER":
            return "a buffer"
        case _:
            return "a constant"


def _passes_token(node: Any) -> bool:
    """Whether a call only keeps an order: a check of a matrix, which torch makes an effect, or its token."""
    if node.target is operator.getitem:
        return node.args[1] == 0 and _plain_name(node.args[0].target) == _EFFECT
    return _plain_name(node.target) == _EFFECT and str(node.args[1]) == "aten._linalg_check_errors.default"


def _plain_name(target: Any) -> str:
    name = getattr(target, "name", None)
    return f"higher_order.{name()}" if callable(name) else getattr(target, "__name__", str(target))


__all__ = ["Reading", "read_program"]
