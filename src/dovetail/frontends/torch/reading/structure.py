"""How a program is called: the structure of its arguments and results, and which tensors each part is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from dovetail.errors import BindError
from dovetail.frontends.torch.reading.interface import Interface
from dovetail.frontends.torch.reading.limits import limits_of
from dovetail.frontends.torch.reading.package import dtypes, torch_module
from dovetail.frontends.torch.reading.tensors import array_of
from dovetail.frontends.torch.reading.trees import OtherStructureError, builder, reader
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array


class Structure:
    """Arguments to leaves in the order of the program, and leaves to results."""

    def __init__(self, program: Any, interface: Interface, forward: Any = None) -> None:
        """`program` is torch's exported program, `forward` the module's own method."""
        self.interface = interface
        self._in_spec = program.call_spec.in_spec
        self._signature = None if forward is None else inspect.signature(forward)
        positional, named = self._in_spec.child(0), self._in_spec.child(1)
        self.positional: int = positional.num_children
        self.keywords: tuple[str, ...] = tuple(named.context or ())
        self.is_flat = not self.keywords and all(s.is_leaf() for s in positional.children())
        """Whether a call with positional arguments alone is the list of its leaves."""
        self._readers = [reader(s) for s in (*positional.children(), *named.children())]
        out_spec = program.call_spec.out_spec
        self.single = out_spec.is_leaf()
        """Whether the result is one leaf."""
        self.build = builder(out_spec)
        """What builds the result of an iterator of leaves."""
        paths = _paths(self._in_spec, _argument_names(program, self.positional))
        self.spelled = tuple(f"argument {name}{rest}" for name, rest in paths)
        """The leaves of arguments, as a caller writes them."""
        tensors = [
            (argument.name, f"L['{name}']{rest}", f"{name}{rest}")
            for argument, (name, rest) in zip(interface.arguments, paths, strict=True)
            if argument.is_tensor
        ]
        self.limits = limits_of(program, tensors)
        """What shapes of tensor arguments must fulfil; None where their types say it all."""

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The leaves of a call's arguments, which must have the structure that the program was exported with."""
        try:
            return self._read(args, kwargs)
        except OtherStructureError:
            pass
        if self._signature is not None:
            args, kwargs = self._rebound(args, kwargs)
            try:
                return self._read(args, kwargs)
            except OtherStructureError:
                pass
        raise self._refused(args, kwargs)

    def _read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        if len(args) != self.positional or len(kwargs) != len(self.keywords):
            raise OtherStructureError
        if any(name not in kwargs for name in self.keywords):
            raise OtherStructureError
        found: list[Any] = []
        for given, read in zip((*args, *(kwargs[name] for name in self.keywords)), self._readers, strict=True):
            read(given, found)
        return found

    def _rebound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The same call, with each argument given by position or by name as in the call that was exported."""
        assert self._signature is not None
        if len(args) == 1 and not kwargs and not self.positional and isinstance(args[0], Mapping):
            args, kwargs = (), cast(Mapping[str, Any], args[0])  # the dict of a tokeniser for keywords
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BindError(f"the call does not fit forward: {error}", hint="call it as the module is called") from None
        parameters = list(self._signature.parameters.values())
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return args, kwargs
        names = [p.name for p in parameters][: self.positional]
        if any(n not in bound for n in names):
            return args, kwargs
        rest = {k: v for k, v in bound.items() if k not in names}
        inner: Any = rest.pop(next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), ""), {})
        return [bound[n] for n in names], {**rest, **inner}

    def _refused(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BindError:
        """What of a call differs from the call that was exported, in as few words as tell it."""
        given = set(kwargs)
        missing = [name for name in self.keywords if name not in given]
        extra = sorted(given.difference(self.keywords))
        if len(args) > self.positional:
            said = f"{len(args)} positional arguments"
        elif len(args) < self.positional:
            said = f"no {', '.join(self.spelled[len(args) : self.positional])}" if self.is_flat else "too few arguments"
        elif missing or extra:
            words = [f"no argument {name}" for name in missing]
            said = " and ".join([*words, *(f"the argument {name}, which was not exported" for name in extra)])
        else:
            spec = torch_module("torch.utils._pytree").tree_structure((tuple(args), dict(kwargs)))
            return BindError(
                f"arguments of the structure {_short(spec)}",
                hint=f"the program was exported for {_short(self._in_spec)}",
            )
        wanted = [f"{self.positional} by position"] * bool(self.positional) + list(self.keywords)
        return BindError(f"the call has {said}", hint=f"the program was exported for {', '.join(wanted)}")

    def check_value(self, index: int, given: Any) -> None:
        """Raise where a value differs from the one that the program was exported with."""
        value, name = self.interface.arguments[index].value, self.spelled[index]
        if isinstance(given, torch_module().Tensor):
            raise BindError(f"{name} is a tensor", hint=f"the program was exported with {value!r}")
        if type(given) is not type(value) or given != value:
            raise BindError(
                f"{name} is {given!r}, and the program was exported with {value!r}",
                hint="a number is part of the program: compile the module again for another value, or pass a tensor",
            )

    def array(self, index: int, given: Any, dtype: DType | None) -> Array:
        """The memory of a tensor that is an argument, of the dtype of its input; None allows any."""
        torch, name = torch_module(), self.spelled[index]
        if not isinstance(given, torch.Tensor):
            given = _by_dlpack(given, name)
        if dtype is not None and dtypes().get(given.dtype) is not dtype:
            (own,) = [t for t, d in dtypes().items() if d is dtype]
            raise BindError(f"{name} is of {given.dtype}, and the program was exported for {own}", hint=f"x.to({own})")
        if given.requires_grad and torch.is_grad_enabled():
            raise BindError(
                f"{name} requires a gradient, and a compiled module gives none",
                hint="call it under torch.no_grad(), or pass x.detach(); torch.compile(backend='dovetail') trains",
            )
        return array_of(given, name)


def _by_dlpack(given: Any, name: str) -> Any:
    """An array of another library as a tensor of the same memory."""
    if hasattr(given, "__dlpack__"):
        try:
            return torch_module().from_dlpack(given)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise BindError(f"{name} is an array that torch cannot read: {error}", hint="pass a tensor") from error
    raise BindError(f"{name} is a {type(given).__name__}", hint="pass a tensor")


def _argument_names(program: Any, positional: int) -> list[str]:
    """The names of the positional arguments of forward, as far as torch tells them."""
    signature = program.module_call_graph[0].signature if program.module_call_graph else None
    names = list(getattr(signature, "forward_arg_names", None) or ())[:positional]
    return [*names, *(str(i) for i in range(len(names), positional))]


def _paths(spec: Any, names: Sequence[str]) -> list[tuple[str, str]]:
    """The leaves of arguments: the name of the argument, and the way from there: [1]['c']."""
    pytree = torch_module("torch.utils._pytree")
    whole = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    found: list[tuple[str, str]] = []
    for path, _ in pytree.tree_flatten_with_path(whole)[0]:
        name = names[path[1].idx] if path[0].idx == 0 else path[1].key
        found.append((str(name), str(pytree.keystr(path[2:]))))
    return found


def _short(spec: Any) -> str:
    text = " ".join(str(spec).split())
    return text if len(text) < 300 else f"{text[:300]}…"


def as_module(program: Callable[..., Any], name: str) -> Any:
    """An nn.Module whose forward is a compiled program."""
    torch = torch_module()

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return program(*args, **kwargs)

    def refuse(self: Any, *_: Any) -> Any:
        raise BindError(
            "a compiled module cannot be copied or saved", hint="copy or save the module that it was compiled from"
        )

    def train(self: Any, mode: bool = True) -> Any:
        if mode:
            raise BindError("a compiled module cannot be trained", hint="train the module that it was compiled from")
        return torch.nn.Module.train(self, False)

    def describe(self: Any) -> str:
        return repr(program)

    methods = {
        "forward": forward,
        "train": train,
        "extra_repr": describe,
        "__reduce_ex__": refuse,
        "__deepcopy__": refuse,
    }
    made = cast(Any, type(f"Compiled{name}", (torch.nn.Module,), methods))()
    made.training = False
    made.program = program
    return made


__all__ = ["Structure", "as_module"]
