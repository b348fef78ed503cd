"""Keys and values of an attention whose blocks share the keys of few queries: each warp copies its own.

No warp waits for another one until it has gone through its keys. The keys of the next round are on their way while
those of this one are multiplied, and so are their masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import i64, u32
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.lane_rows import FRAGMENT_ROWS
from dovetail.kernels.gpu.attention.lanes import LaneKeys
from dovetail.kernels.gpu.attention.softmax import NEXT, masks_loaded, masks_moved, weighted
from dovetail.kernels.gpu.attention.tile import AttendTile
from dovetail.kernels.gpu.gemm.fragments import (
    LANE,
    Factor,
    both,
    clamped,
    copied,
    divided,
    less,
    private,
    remainder,
    rolled,
)
from dovetail.kernels.gpu.gemm.shared_tiles import SharedTile
from dovetail.kernels.loops.ir import (
    ZERO,
    Amend,
    AwaitCopies,
    Call,
    CommitCopies,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    mul,
)

_WARP = ThreadIndex("warp")


@dataclass(frozen=True, slots=True)
class WarpKeys:
    """The keys and values of the warps of a cluster."""

    block: AttendTile
    tiles: Mapping[str, SharedTile]
    factors: Mapping[str, Factor]
    axes: Mapping[str, str]
    is_part: bool = False
    """Whether it is a part of a resident kernel, which has few instructions more than it needs."""

    @property
    def by_lanes(self) -> LaneKeys:
        """Where lanes multiply without tensor cores."""
        return LaneKeys(self.block, self.tiles, self.factors)

    def first(self) -> list[Statement]:
        """Start the copies of the first round."""
        return [When(self._has_keys(ZERO), (*self._copied(ZERO), *self._masks_loaded(ZERO))), CommitCopies()]

    def _masks_loaded(self, number: Expr, when: str = "") -> list[Statement]:
        if self.block.sharing:
            return self.by_lanes.masks_loaded(number, when)
        return masks_loaded(self.block, number, when)

    def _masks_moved(self) -> list[Statement]:
        return self.by_lanes.masks_moved() if self.block.sharing else masks_moved(self.block)

    def _weighted(self) -> list[Statement]:
        return self.by_lanes.weighted() if self.block.sharing else weighted(self.block)

    def _amended(self) -> list[Statement]:
        """The keys and values of the first round that the stages of a block write after their copies have started."""
        block, a = self.block, self.block.problem
        lead = (*block.lead[:-1], divided(block.lead[-1], a.groups))
        found: list[Statement] = []
        for name, columns in (("k", a.d), ("v", a.dv)):
            source = Tensor(name, block.dtype, a.strides[name])
            target = self.tiles[name].place(self._stage_of(ZERO), Name("line"), LANE, Name("element"))
            found.append(Amend(source, lead, block.first_key(ZERO), block.warp_keys, columns, *target))
        return [When(block.has_keys, tuple(found))] if block.spare else found

    def after_stages(self, rounds: Sequence[Statement], *, is_guarded: bool) -> list[Statement]:
        """The rounds of a warp of a resident kernel, whose first keys are on their way; with `is_guarded` warps without
        keys have none."""
        # All lanes of a warp have copied its rows, of which some store one again.
        arrived = (AwaitCopies(0), WarpBarrier())
        queries = [] if self.block.sharing else self._queries()
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
        found: list[Statement] = []
        for half in FRAGMENT_ROWS:
            query = Name(half.query)
            for step in range(block.d // 16):
                for side in range(2):
                    pair = add(Extent(8 * step + 4 * side), remainder(LANE, 4))
                    value: Expr = Number(0, u32)
                    if half in block.lane_rows and 16 * step + 8 * side < a.d:
                        value = Load(source, (*block.lead, clamped(query, a.queries), pair))
                    found.append(Store(fragments, (Extent(step), Extent(side), Extent(half.number)), value))
        return found

    def rounds(self, scored: Sequence[Statement], summed: Sequence[Statement]) -> list[Statement]:
        """What a warp does in each round, with the copies of the next one on their way."""
        if self.block.buffers == 1:
            return self._rounds_in_place(scored, summed)
        later, now = Name("later"), Name("round")
        work = (*scored, *self._weighted(), *summed)
        ahead = (*self._copied(later), *self._masks_loaded(later, NEXT))
        one = (
            Set("later", add(now, Extent(1))),
            When(self._has_keys(later), ahead),
            CommitCopies(),
            AwaitCopies(1),
            WarpBarrier(),
            Set("stage", self._stage_of(now)),
            When(self._has_keys(now), work),
            *self._masks_moved(),
            WarpBarrier(),
        )
        return [Loop("round", self._count(), one), AwaitCopies(0)]

    def _rounds_in_place(self, scored: Sequence[Statement], summed: Sequence[Statement]) -> list[Statement]:
        """The same where a warp has room for one round: keys of the next one follow once these are multiplied, while
        weights are computed and values multiplied, and values of the next one follow these."""
        later, now = Name("later"), Name("round")
        more, some = self._has_keys(later), self._has_keys(now)

        def ahead(name: str, *others: Statement) -> tuple[Statement, ...]:
            """All lanes have read a tile before it is copied to again."""
            return WarpBarrier(), When(more, (*self._copied(later, (name,)), *others)), CommitCopies()

        one = (
            Set("later", add(now, Extent(1))),
            Set("stage", self._stage_of(now)),
            # Of two groups on their way, keys of a round are the first; then its values are.
            AwaitCopies(1),
            WarpBarrier(),
            When(some, tuple(scored)),
            *ahead("k", *self._masks_loaded(later, NEXT)),
            When(some, tuple(self._weighted())),
            AwaitCopies(1),
            WarpBarrier(),
            When(some, tuple(summed)),
            *ahead("v"),
            *self._masks_moved(),
        )
        return [Loop("round", self._count(), one), AwaitCopies(0)]

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

    def _copied(self, number: Expr, names: Sequence[str] = ("k", "v")) -> list[Statement]:
        every: list[Statement] = []
        at, stage = self.block.first_key(number), self._stage_of(number)
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


__all__ = ["WarpKeys"]
