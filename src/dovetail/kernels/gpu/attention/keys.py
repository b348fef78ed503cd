"""How a block of an attention on tensor cores comes to its keys: a warpgroup in order, a warp of a cluster on its own.

A warpgroup multiplies the scores of the next round while weights are computed. So keys come two rounds ahead of their
weights and values one, and one barrier in a round is enough: what is copied after it goes where everything was read
before it. Where blocks share the keys of few queries, each warp copies its own: no warp waits for another one until it
has gone through its keys. The keys of the next round are on their way while those of this one are multiplied, and so
are their masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, f32, i64, u32
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.fragments import FragmentScores, multiplied_keys, summed
from dovetail.kernels.gpu.attention.lanes import LaneKeys
from dovetail.kernels.gpu.attention.masks import NEXT, SeenAhead, Shifts
from dovetail.kernels.gpu.attention.tile import (
    CLUSTER_KEYS,
    FRAGMENT_ROWS,
    ClusterTile,
    GroupTile,
    LaneTile,
)
from dovetail.kernels.gpu.gemm.fragments import (
    LANE,
    Factor,
    SharedTile,
    both,
    clamped,
    copied,
    divided,
    less,
    private,
    remainder,
    rolled,
    unrolled,
)
from dovetail.kernels.gpu.pipeline import LATER, STAGE, STEP, CopyGroups, Pipeline, StagedOperand, pipeline
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Alloc,
    Amend,
    AwaitCopies,
    AwaitProducts,
    Barrier,
    Call,
    CommitCopies,
    Expr,
    Extent,
    FenceShared,
    Load,
    Loop,
    Name,
    Number,
    Prefetch,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    minimum,
    mul,
)


def prefetched(tile: ClusterTile, place: Sequence[Statement]) -> tuple[Statement, ...]:
    """The keys and values of each warp, where rows are dense; `place` sets the leading indices of a block."""
    problem, dtype = tile.problem, tile.dtype
    if isinstance(tile, LaneTile):
        # One warp prefetches for all, one run of keys after the other: a few long ones take it less time.
        splits = max(1, tile.splits * tile.warp_keys // CLUSTER_KEYS)
        tile = replace(tile, warp_keys=CLUSTER_KEYS, splits=splits)
    item, prefetches = dtype.itemsize, list[Statement]()
    for name in ("k", "v"):
        *lead, row, last = problem.strides[name]
        dense = (problem.d if name == "k" else problem.dv) * item
        if row != dense or last != item or dense % 16 or problem.rotated is not None:
            return ()
        count = minimum(Extent(tile.warp_keys), Call("sub", (Extent(problem.keys), Name("first_key")), i64))
        at = (*tile.lead[:-1], divided(tile.lead[-1], problem.groups), Name("first_key"), ZERO)
        prefetches.append(Prefetch(Tensor(name, dtype, (*lead, row, last)), at, mul(count, Extent(dense))))
    is_first = Call("equal", (LANE, ZERO), bool_)
    inside = Call("bit_and", (less(Name("first_key"), Extent(problem.keys)), is_first), bool_)
    each = (Set("first_key", tile.first_key(Name("round"))), When(inside, tuple(prefetches)))
    return (*place, Loop("round", Extent(tile.part_rounds), each))


_NEXT = "next_scores"
TILES = 2
"""Rounds of keys, and of values, that shared memory has room for."""


def scores_allocated(block: GroupTile) -> list[Alloc]:
    """Registers for the scores of the next round."""
    return [Alloc(_NEXT, f32, block.warp_keys // 2, "private")] if block.overlaps else []


@dataclass(frozen=True, slots=True)
class GroupRounds:
    """How the warpgroup of a block goes through the keys."""

    block: GroupTile
    keys: SharedTile
    values: SharedTile
    loaded: Callable[[str, Expr, Expr], list[Statement]]
    """Copies of the keys ("k") or values ("v") of a round to a tile."""

    def _steps(self, count: Expr, queries: Sequence[Statement] = ()) -> Pipeline:
        """Rounds: what is copied for one are its values, and the keys of the round after it."""
        few = self.block.few_rounds
        if few:
            by = CopyGroups(refill="never", is_fenced=True, committed=1 if queries else 0)
            return pipeline(few, few, self._first_copied, partial(self._few_used, queries), by, is_named=True)
        return pipeline(TILES, count, self._copied, self._used, CopyGroups(is_fenced=True), first=self._first_copied)

    def _first_copied(self, number: Expr, stage: Expr) -> list[Statement]:
        """The values of a first round, and the keys of the one after it if there is one."""
        assert isinstance(number, Extent), "it is known"
        later = add(number, ONE)
        keys = [] if later == Extent(self.block.few_rounds) else self.loaded("k", later, remainder(later, TILES))
        return [*self.loaded("v", number, stage), *keys]

    def _copied(self, number: Expr, stage: Expr) -> list[Statement]:
        after = Name("after")
        keys, values = self.loaded("k", after, remainder(after, TILES)), self.loaded("v", number, stage)
        if self.block.sees_ahead:
            seen = SeenAhead(self.block)
            keys, values = seen.where(after, keys), seen.where(number, values)
        return [Set(after.name, add(number, ONE)), *Shifts(self.block).loaded(number), *keys, *values]

    def _used(self, number: Expr, stage: Expr) -> list[Statement]:
        """The scores of the next round, and weights and sums of this one meanwhile."""
        scores = multiplied_keys(self.block, self.keys, _NEXT, remainder(LATER, TILES))
        work, last = self._work(), [*Shifts(self.block).kept(LATER), self._moved()]
        if not self.block.sees_ahead:
            return [*scores, *work, self._done(_NEXT), *last]
        seen = SeenAhead(self.block)
        work = [*seen.where(number, work), self._done(_NEXT), *seen.kept(), *seen.moved()]
        return [*seen.loaded(), *scores, *work, *last]

    def _work(self) -> list[Statement]:
        return [*FragmentScores(self.block).of_round(), *summed(self.block, self.values, "row")]

    def first(self, queries: Sequence[Statement], fragments: Statement) -> list[Statement]:
        """Queries, what is copied before the first round, and its scores."""
        few, shifts = self.block.few_rounds, Shifts(self.block)
        copies = [*queries, *self.loaded("k", ZERO, ZERO), CommitCopies(), *self._steps(ZERO).start()]
        ahead = [*shifts.loaded(ZERO), *(SeenAhead(self.block).first() if self.block.sees_ahead else ())]
        arrive = [AwaitCopies(max(1, few)), FenceShared(), Barrier()]
        return [*copies, *ahead, *shifts.kept(ZERO), *arrive, *self._first_scores(fragments)]

    def _first_scores(self, fragments: Statement) -> list[Statement]:
        return [fragments, *multiplied_keys(self.block, self.keys, "scores", ZERO), self._done("scores")]

    def later(self, fragments: Statement) -> list[Statement]:
        """Further queries, which were copied during rounds of those before, and the scores of their first round."""
        return [AwaitCopies(0), Barrier(), *self._first_scores(fragments)]

    def _done(self, name: str) -> Statement:
        return AwaitProducts(private(name, f32, 1), self.block.warp_keys)

    def rounds(self, count: Expr) -> list[Statement]:
        """Weights and sums of each round, and the scores of the one after it."""
        return [*self._steps(count).rounds(), Barrier()]

    def few_rounds(self, turn: int, queries: Sequence[Statement]) -> list[Statement]:
        """The same where all keys and values are on their way from the start: the last round starts nothing.

        The queries of the next turn are copied once all warps have those of this one in registers.
        """
        if turn == 0:
            return self._steps(ZERO, queries).rounds()
        statements: list[Statement] = [Barrier()] if queries else []
        for number in map(Extent, range(self.block.few_rounds)):
            statements += [Set(STEP.name, number), Set(STAGE.name, number)]
            statements += self._few_used(queries, number, number, is_first=False)
        return statements

    def _few_used(
        self, queries: Sequence[Statement], number: Expr, stage: Expr, *, is_first: bool = True
    ) -> list[Statement]:
        later, shifts = add(number, ONE), Shifts(self.block)
        following = [*queries, CommitCopies()] if queries and number == ZERO else []
        if later == Extent(self.block.few_rounds):
            return [*following, *self._work()]
        loaded, kept = (shifts.loaded(later), shifts.kept(later)) if is_first else ([], [])
        scores = multiplied_keys(self.block, self.keys, _NEXT, later)
        return [*loaded, *following, *scores, *self._work(), self._done(_NEXT), *kept, self._moved()]

    def _moved(self) -> Statement:
        """The scores of the next round become those of the round."""
        count, e = self.block.warp_keys // 2, Name("e")
        move = Store(private("scores", f32, count), (e,), Load(private(_NEXT, f32, count), (e,)))
        return unrolled("e", count, move)


_WARP = ThreadIndex("warp")


@dataclass(frozen=True, slots=True)
class WarpKeys:
    """The keys and values of the warps of a cluster."""

    block: ClusterTile
    tiles: Mapping[str, SharedTile]
    factors: Mapping[str, Factor]
    axes: Mapping[str, str]
    is_part: bool = False
    """Whether it is a part of a persistent kernel, which has few instructions more than it needs."""

    @property
    def by_lanes(self) -> LaneKeys:
        """Where lanes multiply without tensor cores."""
        assert isinstance(self.block, LaneTile), "lanes have a tile of their own"
        return LaneKeys(self.block, self.tiles, self.factors)

    def first(self) -> list[Statement]:
        """Start the copies of the first round."""
        return self._steps((), ()).start()

    def _steps(self, scored: Sequence[Statement], summed: Sequence[Statement]) -> Pipeline:
        """The rounds of a warp, with the copies of the next one on their way.

        Where a warp has room for one round, keys of the next one follow once these are multiplied, while weights are
        computed and values multiplied, and values of the next one follow these.
        """
        count, moved, weights = self._count(), self._scores.moved(), self._scores.of_round()

        def copied(names: Sequence[str], number: Expr, stage: Expr) -> list[Statement]:
            when = "" if number == ZERO else NEXT
            masks = self._scores.loaded(number, when) if "k" in names else ()
            return [When(self._has_keys(number), (*self._copied(number, stage, names), *masks))]

        def where_keys(*work: Statement) -> Statement:
            return When(self._has_keys(STEP), work)

        def used(work: Sequence[Statement], number: Expr, stage: Expr) -> Sequence[Statement]:
            return work

        every = partial(copied, ("k", "v"))
        if self.block.buffers > 1:
            use = partial(used, [where_keys(*scored, *weights, *summed), *moved])
            by = CopyGroups(refill="before", barrier=WarpBarrier())
            return pipeline(self.block.buffers, count, every, use, by, stage_of=self._stage_of)
        operands = (
            StagedOperand(partial(copied, ("k",)), partial(used, [where_keys(*scored)])),
            StagedOperand(
                partial(copied, ("v",)), partial(used, [where_keys(*summed), *moved]), [where_keys(*weights)]
            ),
        )
        by = CopyGroups(refill="after", barrier=WarpBarrier())
        return Pipeline(1, count, operands, by, first=every, stage_of=self._stage_of)

    @property
    def _scores(self) -> LaneKeys | FragmentScores:
        return self.by_lanes if isinstance(self.block, LaneTile) else FragmentScores(self.block)

    def _amended(self) -> list[Statement]:
        """The keys and values of the first round that the stages of a block write after their copies have started."""
        block, a = self.block, self.block.problem
        lead = (*block.lead[:-1], divided(block.lead[-1], a.groups))
        statements: list[Statement] = []
        for name, columns in (("k", a.d), ("v", a.dv)):
            source = Tensor(name, block.dtype, a.strides[name])
            target = self.tiles[name].place(self._stage_of(ZERO), Name("line"), LANE, Name("element"))
            statements.append(Amend(source, lead, block.first_key(ZERO), block.warp_keys, columns, *target))
        return [When(block.has_keys, tuple(statements))] if block.spare else statements

    def after_stages(self, rounds: Sequence[Statement], *, is_guarded: bool) -> list[Statement]:
        """The rounds of a warp of a persistent kernel, whose first keys are on their way; with `is_guarded`
        warps without keys have none."""
        # All lanes of a warp have copied its rows, of which some store one again.
        arrived = (AwaitCopies(0), WarpBarrier())
        queries = [] if isinstance(self.block, LaneTile) else self._queries()
        every = [*arrived, *self._amended(), WarpBarrier(), *queries, *rounds]
        return [When(self._has_keys(ZERO), tuple(every))] if is_guarded else every

    def _queries(self) -> list[Statement]:
        """Queries as left fragments, in pairs of columns, straight from where they are.

        Rows after the last query repeat it: nothing reads what they find.
        """
        block, a = self.block, self.block.problem
        assert isinstance(a.queries, int), "few queries are known"
        fragments = private("q_fragment", u32, block.d // 16, 2, 2)
        *lead, row, _ = self.factors["q"].tensor.strides
        source = Tensor("q", u32, (*lead, row, u32.itemsize), self.factors["q"].tensor.offset)
        statements: list[Statement] = []
        for half in FRAGMENT_ROWS:
            query = Name(half.query)
            for step in range(block.d // 16):
                for side in range(2):
                    pair = add(Extent(8 * step + 4 * side), remainder(LANE, 4))
                    value: Expr = Number(0, u32)
                    if half in block.lane_rows and 16 * step + 8 * side < a.d:
                        value = Load(source, (*block.lead, clamped(query, a.queries), pair))
                    statements.append(Store(fragments, (Extent(step), Extent(side), Extent(half.number)), value))
        return statements

    def rounds(self, scored: Sequence[Statement], summed: Sequence[Statement]) -> list[Statement]:
        """What a warp does in each round."""
        return self._steps(scored, summed).rounds()

    def _count(self) -> Expr:
        """Rounds of a block, of which its last warps may have one less."""
        block = self.block
        chunks = Call(
            "div", (add(Extent(block.problem.keys), Extent(block.warp_keys - 1)), Extent(block.warp_keys)), i64
        )
        pieces = block.parts * block.splits
        left = Call("sub", (add(chunks, Extent(pieces - 1)), Name("part")), i64)
        rounds = Call("div", (left, Extent(pieces)), i64)
        # A loop that is known to run starts with the sums that it would leave: they are set to 0 once.
        return Call("maximum", (rounds, Extent(1)), i64) if self.is_part else rounds

    def _copied(self, number: Expr, stage: Expr, names: Sequence[str]) -> list[Statement]:
        every: list[Statement] = []
        at = self.block.first_key(number)
        for name in names:
            row, k = (at, ZERO) if name == "k" else (ZERO, at)
            tile, factor = self.tiles[name], self.factors[name]
            every += copied(tile, factor, self.axes[name], row, k, stage, LANES, 0, 1, index=LANE)
        first, *others = every
        loops = [s for s in every if isinstance(s, Loop) and isinstance(first, Loop) and s.extent == first.extent]
        if not isinstance(first, Loop) or not others or len(loops) < len(every):
            return [rolled(s, 2) for s in every]
        # Rows of keys and of values have their places in common.
        return [rolled(replace(first, body=tuple([s for loop in loops for s in loop.body])), 1)]

    def _stage_of(self, number: Expr) -> Expr:
        """The tile of a warp in a round."""
        buffers = self.block.buffers
        return _WARP if buffers == 1 else add(mul(remainder(number, buffers), Extent(self.block.splits)), _WARP)

    def _has_keys(self, number: Expr) -> Expr:
        """Whether a warp has keys in a round."""
        block = self.block
        some = less(block.first_key(number), Extent(block.problem.keys))
        return both(block.has_keys, some) if block.spare else some


__all__ = ["GroupRounds", "WarpKeys", "prefetched", "scores_allocated"]
