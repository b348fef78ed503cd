"""How blocks, warps and lanes share an attention of one query for each head in f32."""

from __future__ import annotations

import math

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import bool_, f32
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.attention.sources import by_key_head
from dovetail.kernels.gpu.attention.tile import PARTIAL
from dovetail.kernels.gpu.gemm.fragments import LANE, remainder
from dovetail.kernels.loops.ir import Call, Expr, Extent, Name, Number, Tensor, ThreadIndex, add, mul
from dovetail.kernels.problems.attention import Attention

WARPS = 8
SHARING = 8
"""Lanes that share a key."""
VECTOR = 4
"""Features that a lane loads at once."""
MOST_FEATURES = 256
"""Of all rows of a head: a lane has an eighth of them in registers, of queries and of sums."""
MOST_PARTS = 32
"""Blocks that share the keys of a head."""
PADDED = 4
"""Numbers after the columns of a share: the largest score, the total, and what fills 16 bytes."""
LEAST = Number(-math.inf, f32)
WARP = ThreadIndex("warp")


@dataclass(frozen=True, slots=True)
class RowTile:
    """An attention and the share of a block."""

    problem: Attention
    """Its rows are the queries of heads that share keys."""
    rows: int
    parts: int
    """Blocks that share the keys of a head."""
    lanes: int = LANES
    """Of a warp."""

    @staticmethod
    def of(problem: Attention, device: GpuDevice) -> RowTile:
        if problem.groups * max(problem.d, problem.dv) <= MOST_FEATURES:
            problem = by_key_head(problem)
        rows = problem.queries
        assert isinstance(rows, int), "it was checked"
        heads = product((*problem.lead, problem.heads))
        most = device.cluster
        if device.as_parts and isinstance(heads, int):
            most = min(MOST_PARTS, device.multiprocessors // max(heads, 1))
        few = isinstance(heads, int) and 2 * heads <= device.multiprocessors
        columns = rows * problem.dv
        even = [n for n in range(2, most + 1) if columns % (4 * n) == 0 and problem.dv % (columns // n) == 0]
        return RowTile(problem, rows, even[-1] if few and even else 1, device.warp)

    @property
    def keys(self) -> int:
        """Keys of a warp at a time."""
        return self.lanes // SHARING

    @property
    def share(self) -> int:
        """Columns of all rows that a block combines."""
        return self.rows * self.problem.dv // self.parts

    @property
    def partial_shape(self) -> tuple[Size, ...]:
        return (*self.problem.lead, self.problem.heads, self.parts, self.parts, self.share + PADDED)

    @property
    def partial(self) -> Tensor:
        """What each block found: leading axes, head, share of the columns, part."""
        shape = self.partial_shape
        return Tensor(PARTIAL, f32, tuple([product(shape[i + 1 :]) * f32.itemsize for i in range(len(shape))]))

    @property
    def found(self) -> Tensor:
        """Sums that each group of lanes found of each row."""
        item, width = f32.itemsize, self.problem.dv
        return Tensor("found", f32, (self.rows * width * item, width * item, item), space="shared")

    @property
    def kept(self) -> Tensor:
        """The largest score and the total that each warp found of each row."""
        item = f32.itemsize
        return Tensor("kept", f32, (self.rows * 2 * item, 2 * item, item), space="shared")

    @property
    def lead(self) -> tuple[Name, ...]:
        return (*[Name(f"b{i}") for i in range(len(self.problem.lead))], Name("head"))

    def features(self, width: int) -> list[Expr]:
        """Those of a lane, in vectors that are neighbours of those of others that share a key."""
        first = mul(remainder(LANE, SHARING), Extent(VECTOR))
        each = [i // VECTOR * SHARING * VECTOR + i % VECTOR for i in range(width // SHARING)]
        return [add(first, Extent(at)) for at in each]

    @property
    def span(self) -> Size:
        """Keys of a block, at most."""
        return floordiv(self.problem.keys + (self.parts - 1), self.parts)


def f32_name(name: str) -> Name:
    return Name(name, f32)


def equal(x: Expr, y: Expr) -> Expr:
    return Call("equal", (x, y), bool_)


def exp_of(x: Expr, y: Expr) -> Expr:
    """Of a difference that is not above 0."""
    return Call("exp_falling", (Call("sub", (x, y), f32),), f32)


__all__ = [
    "LEAST", "MOST_FEATURES", "PADDED", "SHARING", "VECTOR", "WARP", "WARPS", "RowTile", "equal", "exp_of",
    "f32_name",
]  # fmt: skip
