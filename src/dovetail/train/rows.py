"""Gradients by rows: that of a table which a step looked a few rows up in is zero everywhere else."""

from __future__ import annotations

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import product
from dovetail.ir.value import Value
from dovetail.ops import adjoint

FEW = 8
"""A gradient is kept by rows where the table has this many times the rows that were looked up, or more."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A gradient as the rows that are not zero; a row may be named several times."""

    indices: Value
    """[n]"""
    once: Value
    """[n, …]: the gradient of each row where it is named last, zeros where it is named before."""
    every: Value
    """[n, …]: the gradient of each row wherever it is named."""

    def of(self, table: Value) -> Value:
        """Return the rows of another table of that shape."""
        return ops.gather(table, self.indices, axis=0)

    def put(self, table: Value, rows: Value) -> Value:
        """Return a table with these rows in place of its own; rows that are named several times are equal."""
        return ops.scatter_nd(table, ops.unsqueeze(self.indices, axes=(-1,)), rows)


def rows_of(gradient: Value) -> Rows | None:
    """Return the rows of a gradient that adds a few of them to zeros; None where it is anything else."""
    if gradient.op is not ops.scatter_nd or gradient.attrs["reduction"] != "add":
        return None
    into, indices, added = gradient.operands
    count, most = product(indices.shape[:-1]), into.shape[0]
    if not isinstance(count, int) or not isinstance(most, int) or count * FEW > most:
        return None
    if into != adjoint.zeros_like(into) or indices.shape[-1] != 1:
        return None
    named = ops.reshape(indices, (count,))
    each = ops.reshape(added, (count, *into.shape[1:]))
    places = ops.iota(size=count, dtype=named.dtype)
    last = ops.scatter_nd(adjoint.zeros((most,), named.dtype), ops.unsqueeze(named, axes=(-1,)), places)
    place = ops.gather(last, named, axis=0)
    once = ops.scatter_nd(adjoint.zeros_like(each), ops.unsqueeze(place, axes=(-1,)), each, reduction="add")
    return Rows(named, once, ops.gather(once, place, axis=0))


__all__ = ["FEW", "Rows", "rows_of"]
