"""What a compiled program takes and gives, as plain data: the leaves of a call as inputs, outputs as leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.frontends.torch.exported import Exported, Ref
from dovetail.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Argument:
    """One leaf of the arguments: a tensor by the name of its input, or a value that the program was exported with."""

    name: str
    is_tensor: bool
    value: Any = None


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
    target: str
    """The name of the buffer; empty where the caller passes the tensor."""


@dataclass(frozen=True, slots=True)
class Interface:
    """Arguments, results, and the tensors of the module that the program reads or writes."""

    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    written: tuple[Written, ...]
    params: tuple[str, ...]
    """The names of parameters and buffers that are parameters of the graph."""


def interface_of(lowered: Any, exported: Exported, outputs: Mapping[str, DType]) -> Interface:
    """The interface of a decomposed program; `outputs` are those of its graph."""
    tensors = {one.name for one in exported.leaves}
    arguments: list[Argument] = []
    for spec in lowered.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            name = getattr(spec.arg, "name", "") or ""
            is_tensor = name in tensors
            arguments.append(Argument(name, is_tensor, None if is_tensor else getattr(spec.arg, "value", None)))
    params = tuple(dict.fromkeys(one.target for one in exported.leaves if one.kind == "param"))
    return Interface(tuple(arguments), _results(exported, outputs), _written(exported), params)


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


def _written(exported: Exported) -> tuple[Written, ...]:
    leaves = {one.name: one for one in exported.leaves}
    return tuple(
        Written(f"{o.mutates}_after", o.mutates, one.target if (one := leaves[o.mutates]).kind == "state" else "")
        for o in exported.outputs
        if o.mutates
    )


__all__ = ["Argument", "Interface", "Result", "Written", "interface_of"]
