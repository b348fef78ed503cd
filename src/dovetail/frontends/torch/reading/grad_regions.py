"""Regions of an exported program under `torch.no_grad()`: their calls are inlined, and their results detached.

torch.export keeps such a region as one call of a sub-graph. Decomposition would inline it too, but the calls would lose
their lines, and nothing would say that no gradient flows through them.
"""

from __future__ import annotations

import copy
from typing import Any

from dovetail.frontends.torch.reading.package import torch_module

_REGION = "wrap_with_set_grad_enabled"


def gradients_stopped(program: Any) -> Any:
    """The program with its regions inlined: itself if it has none."""
    if not any(_regions(module) for module in _graph_modules(program.graph_module)):
        return program
    made = copy.copy(program)
    made._graph_module = copy.deepcopy(program.graph_module)  # pyright: ignore[reportPrivateUsage]
    for module in reversed(_graph_modules(made.graph_module)):
        for region in _regions(module):
            _inline(module, region)
        module.graph.lint()
        module.recompile()
    return made


def _graph_modules(module: Any) -> list[Any]:
    """A graph and its sub-graphs, those inside after those around them."""
    return [m for m in module.modules() if isinstance(m, torch_module("torch.fx").GraphModule)]


def _regions(module: Any) -> list[Any]:
    return [n for n in module.graph.nodes if n.op == "call_function" and getattr(n.target, "__name__", "") == _REGION]


def _inline(module: Any, region: Any) -> None:
    """The calls of a region in its place."""
    enabled, body, *given = region.args
    inner = getattr(module, body.target)
    placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
    known: dict[Any, Any] = dict(zip(placeholders, given, strict=True))
    outputs: tuple[Any, ...] = ()
    with module.graph.inserting_before(region):
        for node in inner.graph.nodes:
            if node.op == "output":
                outputs = tuple([known.get(x, x) for x in node.args[0]])
            elif node.op != "placeholder":
                known[node] = module.graph.node_copy(node, known.__getitem__)
                if node.op == "get_attr":
                    known[node].target = f"{body.target}_{node.target}"
                    setattr(module, known[node].target, getattr(inner, node.target))
        results = outputs if enabled else tuple([_detached(module, x) for x in outputs])
    for user in list(region.users):
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(region)
    if not body.users:
        module.graph.erase_node(body)


def _detached(module: Any, x: Any) -> Any:
    """A tensor through which no gradient flows; anything else as it is."""
    torch = torch_module()
    if not isinstance(x, torch.fx.Node) or not isinstance(x.meta.get("val"), torch.Tensor):
        return x
    found = module.graph.call_function(torch.ops.aten.detach.default, (x,))
    found.meta = dict(x.meta)
    return found


__all__ = ["gradients_stopped"]
