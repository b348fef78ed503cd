"""How a program is called: the structure of its arguments and results, and which tensors each part is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dovetail.errors import BindError
from dovetail.frontends.torch.exported import Exported, Ref
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.frontends.torch.reading.tensors import array_of
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array


@dataclass(frozen=True, slots=True)
class Argument:
    """One leaf of the arguments: a tensor by the name of its input, or a value that the program was exported with."""

    name: str
    is_tensor: bool
    value: Any = None
    path: str = ""
    """As the caller writes it."""


@dataclass(frozen=True, slots=True)
class Result:
    """One leaf of the results: an output of the graph, or a value that is the same in every run."""

    name: str
    dtype: DType | None
    """None for a size, which is returned as an int."""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that the program changes: a buffer or an argument, and the output that has its new content."""

    output: str
    leaf: str
    """The input of the graph that it starts as."""
    state: Any
    """The tensor itself where it is a buffer; None where the caller passes it."""


class Structure:
    """Arguments to arrays, arrays to results."""

    def __init__(
        self, program: Any, lowered: Any, exported: Exported, outputs: Mapping[str, DType], forward: Any = None
    ) -> None:
        self._pytree = torch_module("torch.utils._pytree")
        self._in_spec = program.call_spec.in_spec
        self._out_spec = program.call_spec.out_spec
        self._signature = None if forward is None else inspect.signature(forward)
        tensors = {one.name: one for one in exported.leaves}
        self.arguments = self._arguments(lowered, tensors)
        self.results = _results(exported, outputs)
        self.written = _written(lowered, exported)
        positional, named = self._in_spec.child(0), self._in_spec.child(1)
        self.is_flat = all(s.is_leaf() for part in (positional, named) for s in part.children())
        """Whether every argument is a tensor or a value: then nothing has to be flattened."""
        self.positional = positional.num_children
        self.keywords: tuple[str, ...] = tuple(named.context or ())
        self.single = self._out_spec.is_leaf()
        """Whether the result is one leaf."""
        self.is_tuple = (
            self._out_spec.type in (tuple, list) and all(s.is_leaf() for s in self._out_spec.children())
            if not self.single
            else False
        )

    def _arguments(self, lowered: Any, tensors: Mapping[str, Any]) -> tuple[Argument, ...]:
        paths = _paths(self._pytree, self._in_spec)
        found: list[Argument] = []
        specs = [s for s in lowered.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        for spec, path in zip(specs, paths, strict=True):
            name = getattr(spec.arg, "name", "") or ""
            is_tensor = name in tensors
            found.append(Argument(name, is_tensor, None if is_tensor else getattr(spec.arg, "value", None), path))
        return tuple(found)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The leaves of a call's arguments, which must have the structure that the program was exported with."""
        leaves, spec = self._flattened(args, kwargs)
        if spec != self._in_spec and self._signature is not None:
            leaves, spec = self._flattened(*self._rebound(args, kwargs))
        if spec != self._in_spec:
            raise BindError(
                f"arguments of the structure {_spelled(spec)}",
                hint=f"the program was exported for {_spelled(self._in_spec)}",
            )
        return leaves

    def _flattened(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        ordered = {k: kwargs[k] for k in self.keywords if k in kwargs}
        return self._pytree.tree_flatten((tuple(args), {**ordered, **kwargs}))

    def _rebound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The same call, with each argument given by position or by name as in the call that was exported."""
        assert self._signature is not None
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BindError(f"the call does not fit forward: {error}", hint="call it as the module is called") from None
        names = list(self._signature.parameters)[: self.positional]
        if any(n not in bound for n in names):
            return args, kwargs
        rest = {k: v for k, v in bound.items() if k not in names}
        inner: Any = rest.pop("kwargs", {})
        return [bound[n] for n in names], {**rest, **inner}

    def check_value(self, argument: Argument, given: Any) -> None:
        """Raise where a value differs from the one that the program was exported with."""
        torch = torch_module()
        if isinstance(given, torch.Tensor):
            raise BindError(f"{argument.path} is a tensor", hint=f"the program was exported with {argument.value!r}")
        if given != argument.value:
            raise BindError(
                f"{argument.path} is {given!r}",
                hint=f"the program was exported with {argument.value!r}: compile the module again for another value",
            )

    def array(self, argument: Argument, given: Any) -> Array:
        """The memory of a tensor that is an argument."""
        torch = torch_module()
        if not isinstance(given, torch.Tensor):
            raise BindError(f"{argument.path} is a {type(given).__name__}", hint="pass a tensor")
        return array_of(given)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        return self._pytree.tree_unflatten(list(leaves), self._out_spec)


def _paths(pytree: Any, spec: Any) -> list[str]:
    """The leaves of arguments as a caller writes them."""
    whole = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    found: list[str] = []
    for path, _ in pytree.tree_flatten_with_path(whole)[0]:
        text = pytree.keystr(path[1:])
        found.append(f"argument {text}" if path[0].idx == 0 else f"the argument {text.strip('[]')}")
    return found


def _spelled(spec: Any) -> str:
    text = str(spec).replace("\n", " ")
    return text if len(text) < 300 else f"{text[:300]}…"


def _results(exported: Exported, outputs: Mapping[str, DType]) -> tuple[Result, ...]:
    found: list[Result] = []
    for index, output in enumerate(exported.outputs):
        if output.mutates:
            continue
        name = f"output_{index}"
        if isinstance(output.value, Ref) and name in outputs:
            found.append(Result(name, outputs[name] if name not in exported.sizes else None))
        else:
            found.append(Result("", None, output.value))
    return tuple(found)


def _written(lowered: Any, exported: Exported) -> tuple[Written, ...]:
    leaves = {one.name: one for one in exported.leaves}
    found: list[Written] = []
    for output in exported.outputs:
        if output.mutates:
            one = leaves[output.mutates]
            held = {**lowered.state_dict, **lowered.constants}
            state = held[one.target] if one.kind == "state" else None
            found.append(Written(f"{output.mutates}_after", output.mutates, state))
    return tuple(found)


def as_module(call: Callable[..., Any], name: str) -> Any:
    """An nn.Module whose forward is a compiled program."""
    torch = torch_module()

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def refuse(self: Any, *_: Any) -> Any:
        raise BindError(
            "a compiled module cannot be copied or saved", hint="copy or save the module that it was compiled from"
        )

    made = type(
        f"Compiled{name}", (torch.nn.Module,), {"forward": forward, "__reduce_ex__": refuse, "__deepcopy__": refuse}
    )
    return cast(Any, made)()


__all__ = ["Argument", "Result", "Structure", "Written", "as_module"]
