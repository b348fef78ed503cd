"""Attend: attention with an online softmax on tensor cores.

A block has up to 64 queries of one head, 16 for each warp. It goes through the keys 64 at a time, with copies of the
next ones in flight. Scores stay in registers, where they become the left factor of the second product. On Hopper the
four warps of 64 queries multiply together, by keys and values in shared memory. Where queries are few and keys are
many, blocks share the keys, and combine their partial results: as a cluster, or in a second kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import f32, i32, i64
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.fragments import FragmentScores, scored, summed
from dovetail.kernels.gpu.attention.keys import GroupRounds, WarpKeys, prefetched, scores_allocated
from dovetail.kernels.gpu.attention.masks import SeenAhead, Shifts, seen_allocated, seen_loaded, where_seen
from dovetail.kernels.gpu.attention.results import (
    are_staged,
    cluster_combined,
    partial_stored,
    parts_combined,
    staged_allocated,
    written,
)
from dovetail.kernels.gpu.attention.softmax import started
from dovetail.kernels.gpu.attention.sources import AXES, AttendSources
from dovetail.kernels.gpu.attention.tile import (
    GROUP,
    GROUP_WARPS,
    PARTIAL,
    AttendTile,
    ClusterTile,
    GroupTile,
    LaneTile,
)
from dovetail.kernels.gpu.gemm.block_tile import chunk_of, dynamic_bytes
from dovetail.kernels.gpu.gemm.fragments import (
    LANE,
    THREAD,
    SharedTile,
    copied,
    divided,
    load_left,
    private,
    remainder,
    rolled,
    stored,
    unrolled,
    zeroed,
)
from dovetail.kernels.gpu.order.passes import in_passes
from dovetail.kernels.gpu.pipeline import STAGE, STEP, CopyGroups, Pipeline, Stores, pipeline
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Alloc,
    AwaitCopies,
    Barrier,
    Call,
    ClusterBarrier,
    CommitCopies,
    Expr,
    Extent,
    Kernel,
    Launch,
    Loop,
    Name,
    Schedule,
    Set,
    Statement,
    ThreadIndex,
    WarpBarrier,
    add,
    indices,
    minimum,
    mul,
    sizes_in,
)
from dovetail.kernels.spec import Job, Tiles


class AttendWriter:
    """The kernels of an attention whose warps multiply for themselves, with copies of the next keys in flight."""

    def __init__(self, sources: AttendSources, tile: AttendTile) -> None:
        self.problem, self.bindings, self.device = sources.problem, sources.bindings, sources.device
        self.request, self.is_part = sources.request, not sources.request.is_launch
        self.dtype, self.factors, self.copies = sources.dtype, sources.factors, sources.copies
        self.lead, self.axes = tile.lead, AXES if self.copies else dict.fromkeys(AXES, "k")
        self.block, self.d, self.dv = tile, tile.d, tile.dv
        self.warps, self.threads, self.rows = tile.warps, tile.threads, tile.rows

    @property
    def keys(self) -> int:
        """Keys of a tile in shared memory."""
        return self.block.keys

    @property
    def stages(self) -> int:
        """Tiles in shared memory: of a round and of the next one."""
        return 2 if self.copies and not self.block.is_one_round else 1

    def _stage(self, number: Expr) -> Expr:
        """The tile of a round."""
        return remainder(number, 2)

    def tile(self, name: str) -> SharedTile:
        match name:
            case "q":
                return SharedTile("q_tile", self.dtype, self.rows, self.d // chunk_of(self.dtype), 1)
            case "k":
                return SharedTile("k_tile", self.dtype, self.keys, self.d // chunk_of(self.dtype), self.stages)
            case _ if self.axes["v"] == "row":
                return SharedTile("v_tile", self.dtype, self.keys, self.dv // chunk_of(self.dtype), self.stages)
            case _:
                return SharedTile("v_tile", self.dtype, self.dv, self.keys // chunk_of(self.dtype), self.stages)

    def job(self) -> Job | Refused:
        a, parts = self.problem, self.block.parts
        blocks = floordiv(a.queries + (self.rows - 1), self.rows)
        shape = (*a.lead, a.heads, self._blocks(blocks), parts)
        *front, block, part = indices(shape, Name("tile"))
        if self.block.descends:
            block, *front = indices((blocks, *a.lead, a.heads), Name("tile"))
            block = Call("sub", (Extent(blocks - 1), block), i64)
        share = [Set("part", part), Set("first_round", mul(Name("part"), Extent(self.block.part_rounds)))]
        allocations = self._allocations()
        place = [
            *(Set(name.name, index) for name, index in zip(self.lead, front, strict=True)),
            *(share if parts > 1 else ()),
        ]
        count = product(shape)
        each = (*place, *self._block(mul(block, Extent(self.rows))))
        body: tuple[Statement, ...] = (*allocations, Loop("tile", Extent(count), each, kind="block"))
        shared = shared_bytes(allocations)
        if shared > self.device.shared_bytes:
            return Refused("tiles_fit_shared_memory", f"{shared:,} bytes", f"at most {self.device.shared_bytes:,}")
        launch = self._launch(count, shared)
        if parts > 1:
            return self._split_keys(body, place, launch, count)
        of, sizes, schedule = tuple(self.bindings), sizes_in(body), Schedule("block", count)
        kernel = Kernel(self.block.kernel, of, ("y",), "tile", body, sizes=sizes, launch=launch, schedule=schedule)
        return Job(kernel, self.bindings, Tiles(count, self.rows))

    def _blocks(self, blocks: Size) -> Size:
        """Blocks along queries."""
        return blocks

    def _block(self, top: Expr) -> list[Statement]:
        """The results of the queries of a block."""
        return [Set("top", top), *self._queries(), *self._keys(), *self._written()]

    def _split_keys(
        self, body: tuple[Statement, ...], place: Sequence[Statement], launch: Launch, count: Size
    ) -> Job | Refused:
        """Blocks that share keys, and a kernel that combines what they have."""
        pointers = (*(name for name in self.bindings if name != "y"), PARTIAL)
        kernel = Kernel("attend_parts", pointers, (PARTIAL,), "tile", body, sizes=sizes_in(body), launch=launch)
        workspace = {PARTIAL: self.block.partial_bytes}
        return in_passes(((kernel, count), self._combining()), self.bindings, workspace)

    def _launch(self, grid: Size, shared: int) -> Launch:
        return Launch(grid, self.threads, dynamic_bytes(shared))

    def _written(self) -> list[Statement]:
        return written(self.block)

    def _combining(self) -> tuple[Kernel, Size]:
        """The kernel that combines the parts of the keys: a block for each query, a thread for each column."""
        a = self.problem
        shape = (*a.lead, a.heads, a.queries)
        place = zip((*self.lead, Name("query")), indices(shape, Name("tile")), strict=True)
        each = (*(Set(name.name, index) for name, index in place), *parts_combined(self.block))
        body = (Loop("tile", Extent(product(shape)), each, kind="block"),)
        launch = Launch(product(shape), min(256, -(-a.dv // 32) * 32))
        kernel = Kernel("attend_sum", (PARTIAL, "y"), ("y",), "tile", body, sizes=sizes_in(body), launch=launch)
        return kernel, product(shape)

    def _allocations(self) -> list[Alloc]:
        return [
            *(Alloc(f"{name}_tile", self.dtype, self.tile(name).count, "shared") for name in AXES),
            *self.block.shares_allocated(),
            *self._registers(),
        ]

    def _registers(self) -> list[Alloc]:
        return [
            *(FragmentScores(self.block).allocated() if self.block.holds_masks else ()),
            *seen_allocated(self.block),
            *Shifts(self.block).allocated(),
            *self._staged(),
            Alloc("sums", f32, self.dv // 8 * 4, "private"),
            Alloc("scores", f32, self.block.warp_keys // 8 * 4, "private"),
            *self._next_scores(),
            Alloc("q_fragment", self.dtype, self.d // 16 * 8, "private"),
            Alloc("right", self.dtype, max(self.block.warp_keys, self.dv) // 8 * 4, "private"),
            Alloc("weights", self.dtype, self.block.warp_keys // 16 * 8, "private"),
        ]

    def _staged(self) -> list[Alloc]:
        """Shared memory for results on their way."""
        return []

    def _next_scores(self) -> list[Alloc]:
        """Registers for the scores of the next round."""
        return []

    def _loaded(self, name: str, number: Expr, stage: Expr) -> list[Statement]:
        """Queries from the block's first on, or a round of keys or values."""
        first, k = self._first(name, mul(self.block.key_round(number), Extent(self.keys)))
        if not self.copies:
            return stored(self.tile(name), self.factors[name], first, k, self.threads, 0, 1)
        arguments = self.tile(name), self.factors[name], self.axes[name], first, k, stage
        return [rolled(s) for s in copied(*arguments, self.threads, 0, 1)]

    @staticmethod
    def _first(name: str, key: Expr) -> tuple[Expr, Expr]:
        """The first row of a tile and the first element along what is summed."""
        return (Name("top"), ZERO) if name == "q" else (key, ZERO) if name == "k" else (ZERO, key)

    @property
    def _warp_row(self) -> Expr:
        """The first query of a warp in a tile."""
        return mul(remainder(ThreadIndex("warp"), self.warps), Extent(16))

    def _fragments(self) -> Statement:
        """The queries of a warp in its registers."""
        fragments, step = private("q_fragment", self.dtype, self.d // 16, 8), Name("step")
        return unrolled(
            "step",
            self.d // 16,
            load_left(fragments, (step, ZERO), self.tile("q"), "k", ZERO, self._warp_row, mul(step, Extent(16))),
        )

    def _started(self) -> list[Statement]:
        """No sums yet."""
        empty = zeroed(private("sums", f32, 1), self.dv // 8 * 4)
        return [empty, *self._own_queries(self._warp_row), *started(self.block.lane_rows)]

    def _queries(self) -> list[Statement]:
        load, start = self._fragments(), self._started()
        if self.block.holds_masks:
            start += FragmentScores(self.block).loaded(ZERO)
        if not self.copies:
            return [*start, *self._loaded("q", ZERO, ZERO), Barrier(), load]
        arrive = [CommitCopies(), *self.steps.start(), *self._seen_first(), AwaitCopies(1), Barrier()]
        return [*start, *self._loaded("q", ZERO, ZERO), *arrive, load]

    def _seen_first(self) -> list[Statement]:
        """What queries see in the first rounds, where that is known before."""
        return []

    def _own_queries(self, first: Expr) -> list[Statement]:
        """The queries of a lane."""
        own = [add(divided(LANE, 4), Extent(8 * half.number)) for half in self.block.lane_rows]
        top = add(Name("top"), first)
        return [Set(half.query, add(top, x)) for half, x in zip(self.block.lane_rows, own, strict=True)]

    def _rounds(self) -> Expr:
        """Rounds of keys; those that no query of the block sees are left out."""
        a = self.problem
        keys: Expr = Extent(a.keys)
        if a.causal and a.fill is not None and math.isinf(a.fill):
            keys = minimum(keys, add(Name("top"), Extent(self.rows)))
        span = self.block.keys
        every = Call("div", (add(keys, Extent(span - 1)), Extent(span)), i64)
        if self.block.parts == 1:
            return every
        left = Call("maximum", (Call("sub", (every, Name("first_round")), i64), ZERO), i64)
        return minimum(left, Extent(self.block.part_rounds))

    def _work(self) -> list[Statement]:
        """The scores, the weights and the sums of a round."""
        return [*self._scored(), *FragmentScores(self.block).of_round(), *self._summed()]

    @property
    def steps(self) -> Pipeline:
        """Rounds of keys and values."""
        work, seen = (self._copied, self._weighted), seen_loaded(self.block, STEP)
        if not self.copies:
            return pipeline(1, self._rounds(), *work, Stores(), meanwhile=seen)
        if self.block.is_one_round:
            return pipeline(1, 1, *work, CopyGroups(refill="never"), meanwhile=seen)
        by = CopyGroups(refill="before")
        return pipeline(2, self._rounds(), *work, by, stage_of=self._stage, meanwhile=seen)

    def _copied(self, number: Expr, stage: Expr) -> list[Statement]:
        return [*self._loaded("k", number, stage), *self._loaded("v", number, stage)]

    def _weighted(self, number: Expr, stage: Expr) -> list[Statement]:
        named = [Set(STAGE.name, stage)] if stage == ZERO and self.copies else []
        return [*named, *where_seen(self.block, self._work())]

    def _keys(self) -> list[Statement]:
        rounds = self.steps.rounds()
        if not self.copies:
            return [Set(STAGE.name, ZERO), *rounds, Barrier()]
        # As a loop of one round, of which LLVM sees that its sums start at 0; without one it adds to them.
        return [*([Loop(STEP.name, ONE, tuple(rounds))] if self.block.is_one_round else rounds), Barrier()]

    def _scored(self) -> list[Statement]:
        return scored(self.block, self.tile("k"))

    def _summed(self) -> list[Statement]:
        return summed(self.block, self.tile("v"), self.axes["v"])


class GroupAttend(AttendWriter):
    """The same of warpgroups: one that multiplies the next scores meanwhile, or two that share the keys."""

    block: GroupTile

    def __init__(self, sources: AttendSources, tile: GroupTile) -> None:
        super().__init__(sources, tile)
        self.staged = are_staged(sources, tile)

    @property
    def keys(self) -> int:
        return self.block.warp_keys

    @property
    def stages(self) -> int:
        return 2 * self.block.splits

    def _stage(self, number: Expr) -> Expr:
        buffer = remainder(number, 2)
        return add(mul(GROUP, Extent(2)), buffer) if self.block.is_apart else buffer

    def _blocks(self, blocks: Size) -> Size:
        return blocks if self.block.turns == 1 else 1

    def _block(self, top: Expr) -> list[Statement]:
        return self._turns() if self.block.turns > 1 else super()._block(top)

    def _turns(self) -> list[Statement]:
        """The results of all queries, block by block, with the same keys and values in shared memory."""
        statements: list[Statement] = []
        for turn in range(self.block.turns):
            statements += [Set("top", Extent(turn * self.rows)), *self._started()]
            first = self._loaded("q", ZERO, ZERO)
            statements += (
                self._groups.later(self._fragments()) if turn else self._groups.first(first, self._fragments())
            )
            following = [Set("top", Extent((turn + 1) * self.rows)), *first] if turn + 1 < self.block.turns else []
            statements += [*self._groups.few_rounds(turn, following), *self._written()]
        return [*statements, Barrier()]

    def _launch(self, grid: Size, shared: int) -> Launch:
        # Tiles of warpgroups are aligned as dynamic shared memory is.
        return Launch(grid, self.threads, shared)

    def _written(self) -> list[Statement]:
        return written(self.block, staged=self.staged)

    def _staged(self) -> list[Alloc]:
        return [staged_allocated(self.block)] if self.staged else []

    def _next_scores(self) -> list[Alloc]:
        return scores_allocated(self.block)

    def _loaded(self, name: str, number: Expr, stage: Expr) -> list[Statement]:
        at = mul(self.block.key_round(number), Extent(self.keys))
        at = self.block.first_key(number) if self.block.is_apart else at
        arguments = self.tile(name), self.factors[name], self.axes[name], *self._first(name, at), stage
        if name == "q":
            return copied(*arguments, self.threads, 0, 1, in_columns=True)
        threads, thread = self.threads, THREAD
        if self.block.is_apart:
            threads, thread = GROUP_WARPS * LANES, remainder(THREAD, GROUP_WARPS * LANES)
        left = minimum(Call("sub", (Extent(self.problem.keys), at), i64), Extent(self.keys))
        there = Set("there", Call("cast", (Call("maximum", (left, ZERO), i64),), i32))
        return [there, *copied(*arguments, threads, 0, 1, thread, in_columns=True, there=Name("there", i32))]

    @property
    def _groups(self) -> GroupRounds:
        return GroupRounds(self.block, self.tile("k"), self.tile("v"), self._loaded)

    def _queries(self) -> list[Statement]:
        if not self.block.overlaps:
            return super()._queries()
        return [*self._started(), *self._groups.first(self._loaded("q", ZERO, ZERO), self._fragments())]

    def _seen_first(self) -> list[Statement]:
        return SeenAhead(self.block).first() if self.block.sees_ahead else []

    @property
    def steps(self) -> Pipeline:
        """Rounds of keys and values of warpgroups that wait for themselves alone."""
        by = CopyGroups(refill="before", barrier=WarpBarrier(GROUP_WARPS), is_fenced=True)
        first = super()._copied
        seen = SeenAhead(self.block).loaded() if self.block.sees_ahead else seen_loaded(self.block, STEP)
        arguments = 2, self._rounds(), self._copied, self._weighted, by
        return pipeline(*arguments, first=first, stage_of=self._stage, meanwhile=seen)

    def _copied(self, number: Expr, stage: Expr) -> list[Statement]:
        copies = super()._copied(number, stage)
        return SeenAhead(self.block).where(number, copies) if self.block.sees_ahead else copies

    def _weighted(self, number: Expr, stage: Expr) -> list[Statement]:
        if not self.block.sees_ahead:
            return super()._weighted(number, stage)
        ahead = SeenAhead(self.block)
        return [*ahead.where(number, self._work()), *ahead.kept(), *ahead.moved()]

    def _keys(self) -> list[Statement]:
        if self.block.overlaps:
            return self._groups.rounds(self._rounds())
        return super()._keys()


class ClusterAttend(AttendWriter):
    """The same of a cluster whose warps copy keys of their own: queries are few."""

    block: ClusterTile

    @property
    def keys(self) -> int:
        return self.block.warp_keys

    @property
    def stages(self) -> int:
        return self.block.buffers * self.block.splits

    @property
    def _by_lanes(self) -> bool:
        return isinstance(self.block, LaneTile)

    def _split_keys(
        self, body: tuple[Statement, ...], place: Sequence[Statement], launch: Launch, count: Size
    ) -> Job | Refused:
        """The blocks of a cluster wait for each other, and combine what they have themselves."""
        own = Set("tile", ThreadIndex("block"))
        body = (*body, ClusterBarrier(), own, *place, *cluster_combined(self.block))
        pointers = (*(name for name in self.bindings if name != "y"), PARTIAL, "y")
        launch = replace(launch, cluster=self.block.parts)
        kernel = Kernel("attend", pointers, (PARTIAL, "y"), "tile", body, sizes=sizes_in(body), launch=launch)
        early = prefetched(self.block, (own, *place)) if self.device.bulk_copies else ()
        opening = self._opening((own, *place)) if self.is_part else ()
        sizes = sizes_in((*early, *opening, *body))
        kernel = replace(kernel, exchanged=(PARTIAL,), early=early, opening=opening, sizes=sizes)
        return in_passes([(kernel, count)], self.bindings, {PARTIAL: self.block.partial_bytes})

    def _written(self) -> list[Statement]:
        if not self._by_lanes:
            return super()._written()
        return partial_stored(self.block, self._warp_keys.by_lanes.stored(self.block.query_shares))

    def _allocations(self) -> list[Alloc]:
        # Parts of a persistent kernel take queries from where they are.
        tiles = [*AXES][1:] if self.is_part else [*AXES]
        return [
            *(Alloc(f"{name}_tile", self.dtype, self.tile(name).count, "shared") for name in tiles),
            *self.block.shares_allocated(),
            *(self._warp_keys.by_lanes.allocated() if self._by_lanes else self._registers()),
        ]

    @property
    def _warp_keys(self) -> WarpKeys:
        """How warps of a cluster come to their keys."""
        tiles = {name: self.tile(name) for name in ("k", "v")}
        return WarpKeys(self.block, tiles, self.factors, self.axes, self.is_part)

    def _started(self) -> list[Statement]:
        return self._warp_keys.by_lanes.started() if self._by_lanes else super()._started()

    def _queries(self) -> list[Statement]:
        # Rows without queries weigh no key.
        empty = zeroed(private("weights", self.dtype, 1), self.block.warp_keys // 16 * 8)
        start = [*self._started(), *([] if self._by_lanes else [empty])]
        if self.is_part:
            return start
        queries = [*self._loaded("q", ZERO, ZERO), CommitCopies(), AwaitCopies(0), Barrier()]
        return [*start, *self._warp_keys.first(), *queries, self._fragments()]

    def _opening(self, place: Sequence[Statement]) -> tuple[Statement, ...]:
        """The first keys and values, which are copied before a block of a persistent kernel waits for its queries."""
        return (*place, Set("top", ZERO), *self._own_queries(ZERO), *self._warp_keys.first())

    def _keys(self) -> list[Statement]:
        rounds = self._warp_keys.rounds(self._scored(), self._summed())
        if not self.is_part:
            return rounds
        # Without a warp that copies, threads have no registers for addresses that LLVM computes before a condition.
        return self._warp_keys.after_stages(rounds, is_guarded=not self.device.copying_warp)

    def _scored(self) -> list[Statement]:
        return self._warp_keys.by_lanes.scored() if self._by_lanes else super()._scored()

    def _summed(self) -> list[Statement]:
        return self._warp_keys.by_lanes.summed() if self._by_lanes else super()._summed()


def writer_of(sources: AttendSources, tile: AttendTile) -> AttendWriter:
    """What writes the kernels of a tile."""
    match tile:
        case GroupTile():
            return GroupAttend(sources, tile)
        case ClusterTile():
            return ClusterAttend(sources, tile)
        case _:
            return AttendWriter(sources, tile)


__all__ = ["AttendWriter", "writer_of"]
