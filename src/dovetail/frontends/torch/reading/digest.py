"""What an exported program is, in one digest: equal digests import to equal graphs, whatever the weights contain."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from dovetail.frontends.torch.reading.package import dtypes, torch_module
from dovetail.frontends.torch.reading.tensors import array_of
from dovetail.ir.dtype import DType

IsPart = Callable[[DType, int, bool], bool]
"""Whether the elements of a tensor are part of the graph: given its dtype, their number, and whether it is a weight."""


def digest_of(program: Any, names: Mapping[str, str], is_part: IsPart) -> str:
    """The digest of a program before it is decomposed; `names` are the user's names of symbols."""
    found = hashlib.blake2b(digest_size=20)
    for text in (torch_module().__version__, str(sorted(names.items())), *_texts(program)):
        found.update(text.encode("utf-8", "surrogatepass"))
        found.update(b"\0")
    for content in _contents(program, is_part):
        found.update(content)
    return found.hexdigest()


def _texts(program: Any) -> Iterator[str]:
    yield str(program.graph_signature)
    yield str(program.call_spec)
    yield str(sorted((str(k), str(v)) for k, v in program.range_constraints.items()))
    for name, module in program.graph_module.named_modules():
        graph = getattr(module, "graph", None)
        if graph is not None:
            yield name
            yield from map(_node, graph.nodes)


def _node(node: Any) -> str:
    # An operator of torch prints as aten.linear.default, a function of Python with its address.
    name = str(node.target) if hasattr(node.target, "_schema") else getattr(node.target, "__name__", str(node.target))
    return f"{node.op} {node.name} {name} {node.args} {node.kwargs} {_result(node.meta.get('val'))}"


def _result(value: Any) -> str:
    if isinstance(value, torch_module().Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.device.type} {value.layout}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_result, cast(list[Any], value)))}]"
    return f"{type(value).__name__} {value}"


def _contents(program: Any, is_part: IsPart) -> Iterator[bytes]:
    """The tensors that a program has: their types, which of them share memory, and elements that become constants."""
    first: dict[Any, str] = {}
    tensors = held(program)
    for spec in program.graph_signature.input_specs:
        tensor: Any = tensors.get(spec.target)
        if not isinstance(tensor, torch_module().Tensor):
            continue
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        shared = first.setdefault(key, spec.target) if tensor.numel() else spec.target
        yield f"{spec.target} {shared} {tensor.dtype} {tuple(tensor.shape)}\0".encode()
        dtype = dtypes().get(tensor.dtype)
        is_weight = spec.kind.name != "CONSTANT_TENSOR"
        if dtype is not None and is_part(dtype, tensor.numel(), is_weight):
            yield array_of(tensor).tobytes()


def held(program: Any) -> dict[str, Any]:
    """The parameters, buffers and constants of a program by name."""
    return {**program.state_dict, **program.constants}


__all__ = ["digest_of", "held"]
