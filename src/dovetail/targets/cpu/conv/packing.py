"""Packed weights of convolutions: filters of a register tile side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.problems.convolution import Convolution
from dovetail.kernels.spec import Packed
from dovetail.targets.cpu.denormals import as_before, normal
from dovetail.targets.runtime.arrays.aligned import aligned


def bindings(conv: Convolution, w: Packed, rows: int) -> dict[str, Value | Packed]:
    """What a kernel points to, with `rows` filters together in the bias."""
    groups = int(conv.attrs["groups"])
    return pointers(conv, w, None if conv.b is None else Packed(conv.b, f"conv {groups} {rows}", Packing(groups, rows)))


def pointers(conv: Convolution, w: Value | Packed, bias: Value | Packed | None) -> dict[str, Value | Packed]:
    """What a kernel points to."""
    b = {} if bias is None else {"b": bias}
    residual = {} if conv.residual is None else {"r": conv.residual}
    above: Mapping[str, Value] = {} if conv.row_steps is None else conv.row_steps.bindings
    return {"x": conv.x, "w": w, **b, **residual, "y": conv.result, **above}


def packed(conv: Convolution, rows: int) -> dict[str, Value | Packed]:
    """The same, with `rows` filters together in the weights too."""
    groups = int(conv.attrs["groups"])
    return bindings(conv, Packed(conv.w, f"conv {groups} {rows}", Packing(groups, rows)), rows)


@dataclass(frozen=True, slots=True)
class Packing:
    """Weights [m, c, *window] as [group][register tile][c][tap][filter], a bias without c and taps; 0 in what is left
    of the last register tile of a group."""

    groups: int
    rows: int

    def __call__(self, of: Array) -> Array:
        filters = of.shape[0] // self.groups
        tiles = -(-filters // self.rows)
        packed = np.zeros((self.groups, tiles * self.rows, of[:1].size), np.float32)
        packed[:, :filters] = of.reshape((self.groups, filters, packed.shape[2]))
        split = packed.reshape((self.groups, tiles, self.rows, packed.shape[2]))
        tiled = aligned((self.groups, tiles, packed.shape[2], self.rows))
        tiled[...] = split.swapaxes(2, 3)
        return normal(tiled)

    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether every element of weights of these shapes is laid out: always."""
        return len(shapes) == 1

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """The weights that were packed."""
        count, taps = shapes[0][0] // self.groups, math.prod(shapes[0][1:])
        tiles = -(-count // self.rows)
        split = as_before(packed, (self.groups, tiles, taps, self.rows))
        filters = split.swapaxes(2, 3).reshape((self.groups, tiles * self.rows, taps))
        return (filters[:, :count].reshape(shapes[0]),)
