"""Functions of JAX, imported and run, against what JAX computes."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from dovetail import compile
from dovetail.errors import UnsupportedError
from dovetail.ir.dtype import ALL
from tests.frontends.jax.functions import Case
from tests.tolerances import assert_close

_DTYPES = {d.numpy: d for d in ALL}
SCALE = 4.0
"""Sums are in another order, and XLA's own functions are within a few units in the last place."""


def verdict(case: Case, target: str = "reference") -> str:
    """`agrees`, or `refused: …` with what was not imported; a difference raises."""
    # With all arguments kept, inputs are the leaves of the arguments in order.
    function = jax.jit(case.function, keep_unused=True)
    try:
        program = compile(function.lower(*case.arguments), target=target)
    except UnsupportedError as error:
        said = str(error).splitlines()
        return f"refused: {said[0] if not said[0].endswith('not supported:') else said[1].strip()}"
    leaves = jax.tree_util.tree_leaves(case.arguments)
    names = [str(v.attrs["name"]) for v in program.graph.inputs]
    found = program.run(dict(zip(names, leaves, strict=True)))
    wanted: list[Any] = jax.tree_util.tree_leaves(function(*case.arguments))
    assert len(found) == len(wanted), (len(found), len(wanted))
    for one, other in zip(found.values(), map(np.asarray, wanted), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape, (one.dtype, one.shape, other.dtype, other.shape)
        assert_close(one, other, _DTYPES[other.dtype], scale=SCALE)
    return "agrees"


__all__ = ["verdict"]
