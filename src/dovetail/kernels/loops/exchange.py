"""How threads of a GPU exchange scalars: between the lanes of a warp, by atomic updates of memory, and by barriers."""

from __future__ import annotations

from typing import Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, u32
from dovetail.kernels.loops.expr import Expr, Tensor


@dataclass(frozen=True, slots=True)
class FromLane:
    """Keep under a name the scalar that another lane of the warp keeps under `source`; all lanes take part."""

    name: str
    source: str
    lane: Expr
    """From 0 to the last lane of the warp."""
    dtype: DType


@dataclass(frozen=True, slots=True)
class Ballot:
    """Keep under a name, as bits of an integer, the bools that all lanes of the warp keep under `source`."""

    name: str
    source: str
    dtype: DType = u32
    """With a bit for each lane at least."""


@dataclass(frozen=True, slots=True)
class AtomicUpdate:
    """Combine an element of global memory, an integer of 32 or 64 bits, with a value.

    Updates of one element by several threads all count, in any order.
    """

    tensor: Tensor
    at: tuple[Expr, ...]
    op: Literal["add", "maximum", "minimum"]
    value: Expr


@dataclass(frozen=True, slots=True)
class ClusterBarrier:
    """No thread of a cluster of blocks goes on before all have come here; what they stored in memory is seen by all."""

    ordered: bool = True
    """False where only barriers in shared memory are seen, which are then new."""


Exchange: TypeAlias = FromLane | Ballot | AtomicUpdate | ClusterBarrier

__all__ = ["AtomicUpdate", "Ballot", "ClusterBarrier", "Exchange", "FromLane"]
