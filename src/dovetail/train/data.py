"""Examples in arrays: checked once, and handed out in shuffled batches that the seed and the step alone decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import BindError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array


@dataclass(frozen=True, slots=True)
class Examples:
    """Arrays with one row for each example."""

    arrays: Mapping[str, Array]
    count: int

    def batches(self, size: int, *, seed: int, first: int = 0, steps: int) -> Iterator[dict[str, Array]]:
        """Batches number `first` to `steps`. Every epoch has an order of its own, drawn from the seed; rows that fill
        no batch are left for other epochs."""
        in_epoch = self.count // size
        order, drawn = np.arange(0), -1
        for number in range(first, steps):
            epoch, at = divmod(number, in_epoch)
            if epoch != drawn:
                order, drawn = np.random.default_rng((seed, epoch)).permutation(self.count), epoch
            rows = order[at * size : (at + 1) * size]
            yield {name: array[rows] for name, array in self.arrays.items()}

    def in_order(self, size: int) -> Iterator[dict[str, Array]]:
        """Yield all examples once, in batches; the last one may be smaller."""
        for start in range(0, self.count, size):
            yield {name: array[start : start + size] for name, array in self.arrays.items()}


def examples(graph: Graph, arrays: Mapping[str, Array], where: str) -> Examples:
    """Return the arrays of a file as a graph reads them, in its dtypes; `where` names the file in messages."""
    inputs = {str(v.attrs["name"]): v for v in graph.inputs}
    listed = ", ".join(f"{n} ({v.type})" for n, v in inputs.items())
    missing, strange = [n for n in inputs if n not in arrays], [n for n in arrays if n not in inputs]
    if missing:
        raise BindError(f"{where} has no array {', '.join(missing)}", hint=f"training reads {listed}")
    if strange:
        raise BindError(f"{where} has {', '.join(strange[:5])}, which nothing reads", hint=f"training reads {listed}")
    columns: dict[str, Array] = {}
    for name, value in inputs.items():
        array = arrays[name]
        if array.ndim != value.rank or not array.ndim:
            raise BindError(f"{name} of {where} has the shape {list(array.shape)}", hint=f"each batch is {value.type}")
        for axis, (size, length) in enumerate(zip(value.shape, array.shape, strict=True)):
            if axis and isinstance(size, int) and size != length:
                raise BindError(f"{name} of {where} has the shape {list(array.shape)}", hint=f"a batch is {value.type}")
        columns[name] = _in_dtype(name, array, np.dtype(value.dtype.numpy), where)
    counts = {name: len(array) for name, array in columns.items()}
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{n} {count}" for n, count in counts.items())
        raise BindError(f"the arrays of {where} have different numbers of rows: {lengths}", hint="one row an example")
    return Examples(columns, next(iter(counts.values()), 0))


def _in_dtype(name: str, array: Array, expected: np.dtype, where: str) -> Array:
    if not np.can_cast(array.dtype, expected, "same_kind"):
        raise BindError(f"{name} of {where} is {array.dtype}, and {expected} is read", hint="save it in that dtype")
    if array.dtype.kind == "f":
        bad = ~np.isfinite(array.reshape(len(array), -1)).all(-1) if array.size else np.zeros(0, bool)
        if bad.any():
            rows = np.flatnonzero(bad)
            raise BindError(
                f"{name} of {where} has NaN or infinities in {len(rows)} rows, row {rows[0]} first",
                hint="leave these rows out",
            )
    return np.ascontiguousarray(array, expected)


def check_labels(labels: Array, classes: int, where: str) -> None:
    """Refuse labels that are no classes."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise BindError(
            f"labels of {where} has {labels.reshape(-1)[wrong[0]]} at {wrong[0]}, and there are {classes} classes",
            hint=f"labels are from 0 to {classes - 1}",
        )


__all__ = ["Examples", "check_labels", "examples"]
