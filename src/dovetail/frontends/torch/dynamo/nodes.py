"""Facts about nodes of traced graphs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from math import prod
from typing import Any

from dovetail.frontends.torch.reading.package import torch_module

_SWITCHES = ("dropout_p", "dropout", "train", "training")
"""Arguments without which an operator draws no random numbers."""
_WEIGHT = "dovetail_weight"
"""The note on a placeholder for what a module holds."""


def value_of(node: Any) -> Any:
    """What torch inferred for a node: a tensor without memory, a number, or several of them."""
    return node.meta.get("val")


def is_tensor(node: Any) -> bool:
    return isinstance(value_of(node), torch_module().Tensor)


def is_number(node: Any) -> bool:
    """Whether a node makes a number: sizes, and arithmetic of sizes."""
    torch = torch_module()
    return isinstance(value_of(node), int | float | torch.SymInt | torch.SymFloat | torch.SymBool)


def is_item(node: Any) -> bool:
    """Whether a node takes one of several results."""
    return node.op == "call_function" and node.target is operator.getitem


def is_view(node: Any) -> bool:
    return bool(getattr(node.target, "is_view", False))


def is_random(node: Any) -> bool:
    """Whether a node draws from torch's stream of random numbers."""
    tags = getattr(node.target, "tags", ())
    if torch_module().Tag.nondeterministic_seeded not in tags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    defaults = {a.name: a.default_value for a in node.target._schema.arguments}
    # Attention and recurrent cells have dropout, others a flag for training: without it they draw nothing.
    return not any(not given.get(name, defaults[name]) for name in _SWITCHES if name in defaults)


def writes(node: Any) -> bool:
    """Whether a node changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def copied_into(node: Any) -> Any:
    """The placeholder that a node gives its new content; None where it does something else."""
    is_copy = node.op == "call_function" and str(node.target) == "aten.copy_.default" and len(node.args) == 2
    is_last = all(user.op == "output" for user in node.users)
    return node.args[0] if is_copy and is_last and node.args[0].op == "placeholder" else None


def symbol_of(node: Any) -> str:
    """The symbol that a number is, if it is one alone and never negative; else empty."""
    value = value_of(node)
    if not isinstance(value, torch_module().SymInt) or not value.node.expr.is_Symbol:
        return ""
    lower = value.node.shape_env.bound_sympy(value.node.expr).lower
    return str(value.node.expr) if lower >= 0 else ""


def symbols_of(value: Any) -> frozenset[str]:
    """The symbols of a number."""
    node = getattr(value, "node", None)
    return frozenset() if node is None else frozenset(map(str, node.expr.free_symbols))


def storage_of(node: Any) -> Any:
    """The memory of a tensor as torch traced it: views of one tensor have the same; None for other nodes."""
    torch = torch_module()
    value = value_of(node)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return torch_module("torch.multiprocessing.reductions").StorageWeakRef(value.untyped_storage())


def stored_order(node: Any) -> tuple[int, ...] | None:
    """The axes of a dense tensor, outermost in memory first; None where they are in order, or it is not dense."""
    value = value_of(node)
    sizes, strides = [_hint(s) for s in value.shape], [_hint(s) for s in value.stride()]
    if any(s is None for s in (*sizes, *strides)):
        return None
    wide = sorted((axis for axis, size in enumerate(sizes) if size != 1), key=lambda axis: -strides[axis])
    if wide == sorted(wide):
        return None
    expected = 1
    for axis in reversed(wide):
        if strides[axis] != expected:
            return None
        expected *= sizes[axis]
    return (*(axis for axis, size in enumerate(sizes) if size == 1), *wide)


def _hint(size: Any) -> Any:
    """The size at the first call; None for one that only the run knows."""
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else None
    return None if hint is None else int(hint)


def inputs_of(nodes: Iterable[Any]) -> list[Any]:
    """The nodes that these read and that are not among them, in the order of their graph."""
    inside = set(nodes)
    found = {read for node in inside for read in node.all_input_nodes if read not in inside}
    graphs = {node.graph for node in found}
    return [node for graph in graphs for node in graph.nodes if node in found]


def mark_weights(graph: Any, indices: Iterable[int]) -> None:
    """Note which placeholders of a graph are weights: tensors that a module holds, of sizes that never change."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for index in indices:
        node = placeholders[index]
        if is_tensor(node) and all(isinstance(size, int) for size in node.meta["val"].shape):
            node.meta[_WEIGHT] = True


def is_weight(node: Any) -> bool:
    """Whether a node is a placeholder that was noted as a weight."""
    return bool(node.meta.get(_WEIGHT))


def bytes_of(node: Any) -> int:
    """Bytes that a node reads and writes, at the sizes of the first call."""
    torch = torch_module()
    values = [value_of(n) for n in (*node.all_input_nodes, node)]
    tensors = [v for v in torch_module("torch.utils._pytree").tree_leaves(values) if isinstance(v, torch.Tensor)]
    return sum(prod([_hint(s) or 0 for s in t.shape]) * t.element_size() for t in tensors)
