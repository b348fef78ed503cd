"""How a function of JAX is called, and where its arguments are placed: what a lowered function says beside its text."""
# pyright: basic, reportPrivateUsage=true
# Objects of JAX have no types here.

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from dovetail.errors import BindError, UnsupportedError
from dovetail.frontends.jax.module import argument_names
from dovetail.ir.literal import Array
from dovetail.ir.value import Value

WHOLE = "-"
"""An axis that is not split, as placements write it."""


class Calling:
    """Arguments of the function to inputs by name, and outputs to its result."""

    def __init__(self, given: Any, inputs: Sequence[Value]) -> None:
        self._tree = import_module("jax.tree_util")
        self._in_tree, self._out_tree = given.in_tree, given.out_tree
        self._inputs = tuple(inputs)
        self._kept = _kept(given, self._in_tree.num_leaves, len(inputs))
        """The leaves that the module takes: JAX leaves out those that nothing reads."""

    def inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Array]:
        """The inputs of the graph for a call of the function."""
        leaves, tree = self._tree.tree_flatten((tuple(args), dict(kwargs)))
        if tree != self._in_tree:
            raise BindError(f"arguments of the structure {tree}", hint=f"the function was lowered for {self._in_tree}")
        found: dict[str, Array] = {}
        for value, at in zip(self._inputs, self._kept, strict=True):
            leaf = leaves[at]
            # A number of Python has no dtype of its own: it takes that of the function.
            plain = np.asarray(leaf, value.dtype.numpy) if isinstance(leaf, bool | int | float) else np.asarray(leaf)
            found[str(value.attrs["name"])] = plain
        return found

    def result(self, outputs: Sequence[Any]) -> Any:
        """What the function gives, of the outputs of the graph in their order."""
        return self._tree.tree_unflatten(self._out_tree, list(outputs))


def _kept(given: Any, count: int, inputs: int) -> tuple[int, ...]:
    if count == inputs:
        return tuple(range(count))
    noted = getattr(given, "module_kept_var_idx", None)
    if noted is None:
        noted = getattr(getattr(given, "_lowering", None), "compile_args", {}).get("kept_var_idx")
    if noted is None or len(noted) != inputs:
        raise UnsupportedError(
            f"a call by {count} arguments of a module that takes {inputs}",
            hint="call it by the names of its inputs, or lower it with jax.jit(f, keep_unused=True)",
        )
    return tuple(sorted(noted))


def placement_in(given: Any) -> tuple[dict[str, int], dict[str, str]]:
    """The mesh of a lowered function, and where its arguments are placed: what `in_shardings` said."""
    if not hasattr(given, "compiler_ir"):
        return {}, {}
    module = given.compiler_ir("stablehlo")
    mesh: dict[str, int] = {}
    main: Any = None
    for one in module.body.operations:
        if one.operation.name == "sdy.mesh":
            mesh = {name: int(size) for name, size in re.findall(r'"([^"]+)"=(\d+)', str(one.attributes["mesh"]))}
        elif one.operation.name == "func.func" and str(one.attributes["sym_name"].value) == "main":
            main = one
    if main is None or "arg_attrs" not in main.attributes:
        return mesh, {}
    place: dict[str, str] = {}
    for name, said in zip(argument_names(main), main.attributes["arg_attrs"], strict=True):
        found = re.search(r"#sdy\.sharding<@\w+, \[(.*?)\]", str(said))
        if found is not None:
            axes = ["+".join(re.findall(r'"([^"]+)"', one)) or WHOLE for one in re.findall(r"\{([^}]*)\}", found[1])]
            while axes and axes[-1] == WHOLE:
                axes.pop()
            if axes:
                place[name] = " ".join(axes)
    return mesh, place


__all__ = ["Calling", "placement_in"]
