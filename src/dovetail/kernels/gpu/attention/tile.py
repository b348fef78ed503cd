"""How a block of threads shares an attention: warps along queries and along keys, and the names of what they keep."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from typing import ClassVar, Self

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import DType, bool_, f32
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.attention.softmax import LaneRow, Numerics
from dovetail.kernels.gpu.gemm.fragments import divided
from dovetail.kernels.gpu.gemm.tile import CHUNK, GROUP_ROWS
from dovetail.kernels.loops.analysis import SHARED_ALIGNMENT
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Call,
    Expr,
    Extent,
    Name,
    Tensor,
    ThreadIndex,
    add,
    mul,
)
from dovetail.kernels.problems.attention import Attention
from dovetail.kernels.request import Request

FRAGMENT_ROWS = (LaneRow(0), LaneRow(1))
FMA_ROWS = tuple([LaneRow(number) for number in range(8)])
"""Those of a lane that multiplies by multiply-adds."""
GROUP_WARPS = GROUP_ROWS // 16
GROUP = divided(ThreadIndex("warp"), GROUP_WARPS)
"""The warpgroup of a thread."""
KEYS = 64
"""Keys that a warp goes through at once."""
LEAST_KEYS = 16
"""The same where shared memory has no room for more: they are a fragment of values."""
MOST_WARPS = 4
LONE_WARPS = 8
"""Warps of a block that has a multiprocessor to itself."""
FULL = 0.9
"""Blocks for each multiprocessor from which on there are enough."""
CLUSTER_KEYS = 16
"""Keys that a warp of a cluster goes through at once: few, so that all warps have some where a cache is short."""
LANE_KEYS = 8
"""The same without tensor cores."""
CLUSTER_WARPS = 8
CLUSTER_BYTES = 140 << 10
"""Shared memory for keys and values of a block of a cluster: the next kernel fits too."""
PART_BYTES = 64 << 10
"""The same of a part of a persistent kernel: weights of the products after it arrive meanwhile."""
PART_BUFFERS = 2
"""Rounds of keys that a warp of such a part has room for, at most; one leaves room for twice as many warps."""
SPLIT_BYTES = 128 << 10
"""Shared memory for keys and values that warps share out among them."""
MOST_PARTS = 32
"""Parts into which keys go, each of them for a block of its own."""
PARTIAL = "partial0"
_KEPT = 2
"""What a block keeps of a query in addition to its weighted values: the largest score and the total."""


@dataclass(frozen=True, slots=True)
class AttendTile:
    """An attention and its share of a block: warps have 16 queries each, and multiply by fragments of their own."""

    kernel: ClassVar[str] = "attend"
    """The name of the kernel that computes all of it."""
    is_fast: ClassVar[bool] = False
    """Whether scores are powers of 2 where they can be."""

    problem: Attention
    dtype: DType
    warps: int
    """Warps along queries, 16 each."""
    splits: int
    """Warps along keys, whose results are combined."""
    parts: int = 1
    """Blocks along keys, whose results are combined: by themselves if they are a cluster, else by a second kernel."""
    warp_keys: int = KEYS
    """Keys that a warp goes through at once."""

    @staticmethod
    def of(
        problem: Attention, dtype: DType, device: GpuDevice, request: Request, *, in_clusters: bool = True
    ) -> AttendTile:
        parts = _parts(problem, device)
        if parts > 1 and device.cluster and in_clusters:
            return ClusterTile.by(problem, dtype, device, request, CLUSTER_KEYS)
        if parts > 1:
            return _fitting(AttendTile(problem, dtype, 1, 1, parts), device)
        warps, splits, keys = _warps(problem, device)
        return _fitting(AttendTile(problem, dtype, warps, splits, warp_keys=keys), device)

    @property
    def threads(self) -> int:
        return LANES * self.warps * self.splits

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return 16 * self.warps

    @property
    def keys(self) -> int:
        """Keys of a round."""
        return self.warp_keys * self.splits

    @property
    def is_one_round(self) -> bool:
        """Whether warps go through all keys at once, so that nothing is copied for a next round."""
        keys = self.problem.keys
        return self.parts == 1 and isinstance(keys, int) and 0 < keys <= self.keys

    @property
    def held_rounds(self) -> int:
        """Rounds whose keys and values are in shared memory at once."""
        return 1 if self.is_one_round else 2

    @property
    def shared_bytes(self) -> int:
        """Shared memory for queries, keys, values and shares."""
        keys = self.held_rounds * self.keys
        tiles = [self.rows * self.d, keys * self.d, keys * self.dv]
        each = [count * self.dtype.itemsize for count in tiles]
        each += [alloc.count * alloc.dtype.itemsize for alloc in self.shares_allocated()]
        return sum([-(-nbytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT for nbytes in each])

    @property
    def holds_masks(self) -> bool:
        """Whether lanes load what is added to scores before they wait for keys: it takes as long to come."""
        return self.is_one_round and "mask" in self.problem.strides and "keep" not in self.problem.strides

    @property
    def leaves_out(self) -> bool:
        """Whether rounds are left out in which no query of a warp sees a key: a mask of bools hides keys, so that they
        weigh nothing whatever their scores are."""
        return "keep" in self.problem.strides and self.problem.fill in (None, -math.inf)

    @property
    def numerics(self) -> Numerics:
        return Numerics.near(self.problem, is_fast=self.is_fast)

    @property
    def overlaps(self) -> bool:
        """Whether the scores of the next round are multiplied while weights are computed."""
        return False

    @property
    def descends(self) -> bool:
        """Whether the last queries come first: they may see the most keys, and blocks that take long start early."""
        return False

    @property
    def sees_ahead(self) -> bool:
        """Whether it is known some rounds before whether queries see a key: nothing is copied for rounds without."""
        return False

    @property
    def sees_ranges(self) -> bool:
        """Whether bits say which keys a query sees, from the first that it sees to the last: compares of every key take
        far more instructions."""
        return False

    @property
    def d(self) -> int:
        """Features of queries and keys, padded to fragments."""
        return -(-self.problem.d // 16) * 16

    @property
    def dv(self) -> int:
        """Features of values, padded to fragments."""
        return -(-self.problem.dv // 16) * 16

    @property
    def lead(self) -> tuple[Name, ...]:
        """The index along each axis before that of queries."""
        return lead_of(self.problem)

    @property
    def shares(self) -> Tensor:
        """What each warp along the keys has of each row: weighted sums, then the largest score and the total."""
        return Tensor("shares", f32, (self.rows * self.share_bytes, self.share_bytes, f32.itemsize), space="shared")

    def shares_allocated(self) -> list[Alloc]:
        """Shared memory for the shares, where warps of a block share the keys."""
        return [Alloc("shares", f32, self.splits * self.rows * (self.dv + CHUNK), "shared")] if self.splits > 1 else []

    @property
    def share_bytes(self) -> int:
        """Bytes of a row of the shares."""
        return (self.dv + CHUNK) * f32.itemsize

    @property
    def lane_rows(self) -> tuple[LaneRow, ...]:
        """The rows of a lane that have queries."""
        return FRAGMENT_ROWS

    @property
    def share(self) -> int:
        """Columns of a query that a block combines at once."""
        return self.dv

    @property
    def share_width(self) -> int:
        """Numbers of a share: its columns, the largest score and the total, padded to 16 bytes."""
        return -(-(self.share + _KEPT) // 4) * 4

    @property
    def _partial_shape(self) -> tuple[Size, ...]:
        shares = self.problem.queries * (self.dv // self.share)
        return (*self.problem.lead, self.problem.heads, shares, self.parts, self.share_width)

    @property
    def partial(self) -> Tensor:
        """The same of each block along the keys, in the workspace: leading axes, head, share of the columns, part."""
        shape = self._partial_shape
        strides = [product(shape[i + 1 :]) * f32.itemsize for i in range(len(shape))]
        return Tensor(PARTIAL, f32, tuple(strides))

    @property
    def partial_bytes(self) -> Size:
        return product(self._partial_shape) * f32.itemsize

    @property
    def part_rounds(self) -> Size:
        """Rounds of keys of a part."""
        span = self.keys * self.parts
        return floordiv(self.problem.keys + (span - 1), span)

    def key_round(self, number: Expr) -> Expr:
        """A round of this block, counted from the first key."""
        return number if self.parts == 1 else add(Name("first_round"), number)

    def first_key(self, number: Expr) -> Expr:
        """The first key of this warp in a round."""
        return add(mul(self.key_round(number), Extent(self.keys)), self.own_keys)

    @property
    def own_keys(self) -> Expr:
        """Where the keys of this warp start among those of a tile in shared memory."""
        return ZERO if self.splits == 1 else mul(divided(ThreadIndex("warp"), self.warps), Extent(self.warp_keys))


@dataclass(frozen=True, slots=True)
class GroupTile(AttendTile):
    """Four warps multiply their 64 queries together, by keys and values in shared memory."""

    kernel = "attend_groups"
    is_fast = True
    turns: int = 1
    """Times that a block goes through queries one after the other, with all keys in shared memory."""

    @property
    def is_one_round(self) -> bool:
        return False

    @property
    def is_apart(self) -> bool:
        """Whether warpgroups copy and wait for their own keys alone: one multiplies while another computes weights."""
        return self.splits > 1

    @property
    def overlaps(self) -> bool:
        """Not with two warpgroups of a block: one does that while the other multiplies, and registers and the first
        rounds cost more than it gains."""
        return self.splits == 1

    @property
    def few_rounds(self) -> int:
        """Rounds of a warpgroup where none needs a tile of shared memory that another one had; 0 where any may."""
        keys, is_loop = self.problem.keys, not self.overlaps or self.leaves_out or self.problem.causal
        return 0 if is_loop or not isinstance(keys, int) or keys > 2 * self.keys else -(-keys // self.keys)

    @property
    def descends(self) -> bool:
        return self.problem.causal or self.leaves_out

    @property
    def sees_ahead(self) -> bool:
        return self.leaves_out

    @property
    def sees_ranges(self) -> bool:
        a = self.problem
        is_ragged = not isinstance(a.keys, int) or a.keys % self.keys != 0
        hides = a.fill in (None, -math.inf) and not ("mask" in a.strides and a.filled == "first")
        return not self.leaves_out and hides and (a.causal or is_ragged)

    @property
    def exchanged(self) -> Tensor:
        """What two warpgroups exchange in the end, in fours of a thread: half of its accumulators, then the largest
        score and the total of both of its rows."""
        item = f32.itemsize
        four = GROUP_WARPS * LANES * 4 * item
        return Tensor("told", f32, ((self.dv // 16 + 1) * four, four, 4 * item, item), space="shared")

    def shares_allocated(self) -> list[Alloc]:
        return [Alloc("told", f32, self.threads * (self.dv // 4 + 4), "shared")] if self.is_apart else []

    def first_key(self, number: Expr) -> Expr:
        first = mul(self.key_round(number), Extent(self.keys))
        return add(first, mul(GROUP, Extent(self.warp_keys)) if self.is_apart else ZERO)

    @property
    def own_keys(self) -> Expr:
        return ZERO


@dataclass(frozen=True, slots=True)
class ClusterTile(AttendTile):
    """Blocks of a cluster share the keys of few queries, and warps of a block have keys of their own."""

    spare: int = 0
    """Warps without keys: stages before the attention have all of them."""
    buffers: int = 2
    """Rounds of keys that a warp has room for."""

    @classmethod
    def by(
        cls, problem: Attention, dtype: DType, device: GpuDevice, request: Request, keys: int, **options: int
    ) -> Self:
        """The tile whose warps have this many keys at once."""
        is_part = not request.is_launch
        nbytes = _round_bytes(problem) * keys // KEYS
        room = PART_BYTES if is_part else CLUSTER_BYTES
        # Addresses of two rounds take more registers than threads have that copy weights, too.
        most = PART_BUFFERS if device.copying_warp else 1
        buffers = most if is_part and room // nbytes < CLUSTER_WARPS else 2
        blocks = _resident_parts(problem, device) if is_part else device.cluster

        def tile(splits: int) -> Self:
            spare = CLUSTER_WARPS - splits if is_part else 0
            return cls(problem, dtype, 1, splits, blocks, keys, spare, buffers, **options)

        splits = max(1, min(CLUSTER_WARPS, 2 * room // (buffers * nbytes)))
        while splits > 1 and tile(splits).shared_bytes > device.shared_bytes:
            splits -= 1
        return tile(splits)

    @property
    def threads(self) -> int:
        return LANES * (self.splits + self.spare)

    @property
    def is_one_round(self) -> bool:
        return False

    @property
    def held_rounds(self) -> int:
        return self.buffers

    @property
    def holds_masks(self) -> bool:
        return True

    @property
    def leaves_out(self) -> bool:
        return False

    @property
    def lane_rows(self) -> tuple[LaneRow, ...]:
        queries = self.problem.queries
        return FRAGMENT_ROWS[:1] if isinstance(queries, int) and queries <= 8 else FRAGMENT_ROWS

    @property
    def queries(self) -> int:
        assert isinstance(self.problem.queries, int), "few queries are known"
        return self.problem.queries

    @property
    def share(self) -> int:
        """Few, so that all blocks of a cluster have some."""
        return self.dv // max([n for n in range(1, max(1, self.parts // self.queries) + 1) if self.dv % n == 0])

    @property
    def shares_in_keys(self) -> bool:
        """Whether what a warp has of queries takes the place of its keys, which it has multiplied by then."""
        return False

    def shares_allocated(self) -> list[Alloc]:
        if self.splits == 1 or self.shares_in_keys:
            return []
        return [Alloc("shares", f32, self.splits * self.queries * (self.dv + CHUNK), "shared")]

    @property
    def query_shares(self) -> Tensor:
        """The shares of queries alone, where a block has fewer than rows."""
        step = self.key_bytes if self.shares_in_keys else self.queries * self.share_bytes
        room = "k_tile" if self.shares_in_keys else "shares"
        return Tensor(room, f32, (step, self.share_bytes, f32.itemsize), space="shared")

    @property
    def key_bytes(self) -> int:
        return self.warp_keys * self.d * self.dtype.itemsize

    @property
    def has_keys(self) -> Expr:
        """Whether a warp ever has keys."""
        return Call("less", (ThreadIndex("warp"), Extent(self.warps * self.splits)), bool_)

    def chunk(self, number: Expr, warp: Expr) -> Expr:
        """Which keys a warp of a cluster has in a round: neighbours are those of the next block, so that all blocks
        have some where keys are few."""
        return add(mul(add(mul(number, Extent(self.splits)), warp), Extent(self.parts)), Name("part"))

    def first_key(self, number: Expr) -> Expr:
        return mul(self.chunk(number, divided(ThreadIndex("warp"), self.warps)), Extent(self.warp_keys))

    @property
    def own_keys(self) -> Expr:
        return ZERO


@dataclass(frozen=True, slots=True)
class LaneTile(ClusterTile):
    """The same without tensor cores: neighbouring lanes share the features of a key."""

    is_fast = True
    sharing: int = 0
    """Lanes that share a key."""

    @property
    def shares_in_keys(self) -> bool:
        return self.queries * self.share_bytes <= self.key_bytes


@dataclass(frozen=True, slots=True)
class FmaAttendTile(AttendTile):
    """Threads multiply by multiply-adds, out of shared memory: f32, which tensor cores would round."""

    kernel = "attend_fma"
    is_fast = True

    @property
    def is_one_round(self) -> bool:
        return False

    @property
    def leaves_out(self) -> bool:
        return False

    @property
    def descends(self) -> bool:
        return self.parts == 1 and self.problem.causal

    @property
    def lane_rows(self) -> tuple[LaneRow, ...]:
        return FMA_ROWS


def _fitting(tile: AttendTile, device: GpuDevice) -> AttendTile:
    """The tile with so few keys of a warp that the shared memory of a block has room for them."""
    while tile.shared_bytes > device.shared_bytes and tile.warp_keys > LEAST_KEYS:
        tile = replace(tile, warp_keys=max(LEAST_KEYS, tile.warp_keys // 32 * 16))
    return tile


def lead_of(a: Attention) -> tuple[Name, ...]:
    """The index along each axis before that of queries."""
    return (*(Name(f"b{i}") for i in range(len(a.lead))), Name("head"))


def _head_count(a: Attention) -> int:
    """Heads of all leading axes; axes whose size is a symbol count as one."""
    return prod([size for size in (*a.lead, a.heads) if isinstance(size, int)])


def _warps(a: Attention, device: GpuDevice) -> tuple[int, int, int]:
    """Warps of a block along queries, and along keys, and the keys of each: enough blocks for all multiprocessors, then
    enough warps."""
    queries = a.queries if isinstance(a.queries, int) else KEYS
    keys = a.keys if isinstance(a.keys, int) else KEYS * MOST_WARPS
    heads, warps = _head_count(a), min(MOST_WARPS, max(1, -(-queries // 16)))
    while warps > 1 and heads * -(-queries // (16 * warps)) < FULL * device.multiprocessors:
        warps //= 2
    is_lone = heads * -(-queries // (16 * warps)) <= device.multiprocessors
    every = LONE_WARPS if is_lone else MOST_WARPS
    most = max(1, min(SPLIT_BYTES, device.shared_bytes * 3 // 4) // _round_bytes(a))
    splits = 1
    while 2 * splits * warps <= every and 2 * splits <= most and splits * KEYS < keys:
        splits *= 2
    if is_lone and warps == 1 and 1 < splits < every and keys <= KEYS * splits:
        # One round of keys, which twice as many warps go through in less time.
        return warps, 2 * splits, KEYS // 2
    if is_lone and splits == 1 and keys:
        # What is no key would be copied as zeros, and multiplied.
        return warps, splits, min(KEYS, -(-keys // 16) * 16)
    return warps, splits, KEYS


def _round_bytes(a: Attention) -> int:
    """Shared memory for the keys and values of a warp: of this round and of the next."""
    return 2 * 2 * KEYS * max(a.d, a.dv) * 2


def _parts(a: Attention, device: GpuDevice) -> int:
    """Blocks along keys: enough to fill the device twice where queries are few and keys are many."""
    if not isinstance(a.queries, int) or a.queries > 16 or a.causal:
        return 1
    rounds = MOST_PARTS
    if isinstance(a.keys, int):
        if a.keys <= KEYS * MOST_WARPS:
            return 1
        rounds = -(-a.keys // KEYS)
    return max(1, min(MOST_PARTS, rounds, 2 * device.multiprocessors // max(1, _head_count(a))))


def _resident_parts(a: Attention, device: GpuDevice) -> int:
    """Blocks along keys where they need not be a cluster: one for each multiprocessor."""
    heads = product((*a.lead, a.heads))
    return (
        max(1, min(MOST_PARTS, device.multiprocessors // max(1, heads))) if isinstance(heads, int) else device.cluster
    )


__all__ = [
    "CLUSTER_KEYS",
    "FRAGMENT_ROWS",
    "GROUP",
    "GROUP_WARPS",
    "LANE_KEYS",
    "MOST_PARTS",
    "PARTIAL",
    "AttendTile",
    "ClusterTile",
    "FmaAttendTile",
    "GroupTile",
    "LaneTile",
    "lead_of",
]
