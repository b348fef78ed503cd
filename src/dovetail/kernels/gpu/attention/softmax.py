"""The online softmax of an attention on GPUs, whatever lanes have its scores, and how partial results are combined.

A query keeps the largest score so far, the total of its weights and weighted sums of values. With each round of keys
the largest may rise: then the total and the sums shrink by what the weights before it were too large.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, f32, i64
from dovetail.kernels.gpu.gemm.fragments import LANE, plus, unrolled
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    AllReduce,
    Call,
    Expr,
    Extent,
    FromLane,
    Name,
    Number,
    Set,
    Statement,
    add,
    mul,
)
from dovetail.kernels.problems.attention import Attention

LOG2_E = math.log2(math.e)
MINUS_INFINITY = Number(-math.inf, f32)
At = tuple[Expr, ...]
"""Which of the scores that a lane has of a query."""


def f32_name(name: str) -> Name:
    return Name(name, f32)


def minus(x: Expr, y: Expr) -> Expr:
    return Call("sub", (x, y), f32)


def times(x: Expr, y: Expr) -> Expr:
    return Call("mul", (x, y), f32)


def largest(x: Expr, y: Expr) -> Expr:
    return Call("maximum", (x, y), f32)


def with_lane(name: str, op: str, apart: int) -> list[Statement]:
    """Combine what a lane keeps under a name with that of the lane whose number differs by one bit."""
    other = f"other_{name}"
    lane = Call("bit_xor", (LANE, Extent(apart)), i64)
    return [FromLane(other, name, lane, f32), Set(name, Call(op, (Name(name, f32), Name(other, f32)), f32))]


def or_zero(most: Expr) -> Expr:
    """The largest score as weights are relative to it: without a key that is seen it is -inf, and all weights are 0."""
    none = Call("equal", (most, MINUS_INFINITY), bool_)
    return Call("where", (none, Number(0.0, f32), most), f32)


@dataclass(frozen=True, slots=True)
class Numerics:
    """How weights are computed from products of queries and keys."""

    exponential: str
    """The function of a difference of scores: `near_exp2` where scores are powers of 2, which is one instruction."""
    scale: float
    """What a product is multiplied by to be a score."""
    is_folded: bool = False
    """Whether that happens where the largest is subtracted, by one multiply-add: nothing is added to scores."""
    is_fused: bool = False
    """Whether totals and sums take one rounding for each product and sum."""

    @staticmethod
    def near(a: Attention, *, is_fast: bool, can_fold: bool = True) -> Numerics:
        """To the accuracy of 16-bit floats; `is_fast` by powers of 2, where nothing but -inf takes a score's place."""
        if not is_fast or a.softcap is not None or a.fill not in (None, -math.inf):
            return Numerics("near_exp", a.scale)
        return Numerics("near_exp2", a.scale * LOG2_E, can_fold and "mask" not in a.strides and a.scale > 0)

    @staticmethod
    def exact(a: Attention) -> Numerics:
        """To the accuracy of f32."""
        return Numerics("exp_falling", a.scale, is_fused=True)

    @property
    def in_powers(self) -> bool:
        return self.exponential == "near_exp2"

    def exp(self, difference: Expr) -> Expr:
        """The weight of a difference of scores."""
        return Call(self.exponential, (difference,), f32)

    def scaled(self, score: Expr) -> Expr:
        return times(score, Number(self.scale, f32)) if self.in_powers or self.scale != 1.0 else score

    def of_mask(self, mask: Expr) -> Expr:
        """What an element of a mask adds to a score."""
        wide = cast_to(mask, f32)
        return times(wide, Number(LOG2_E, f32)) if self.in_powers else wide

    def shrunk(self, x: Expr, by: Expr, more: Expr) -> Expr:
        """What was kept so far, with more of it."""
        return Call("fma", (x, by, more), f32) if self.is_fused else plus(times(x, by), more)

    def added(self, total: Expr, weight: Expr, value: Expr) -> Expr:
        return Call("fma", (weight, value, total), f32) if self.is_fused else plus(total, times(weight, value))


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One of the queries of which a lane has scores, and the names of what it keeps of it."""

    number: int

    @property
    def most(self) -> str:
        return f"most{self.number}"

    @property
    def total(self) -> str:
        return f"total{self.number}"

    @property
    def shrunk(self) -> str:
        return f"shrunk{self.number}"

    @property
    def query(self) -> str:
        return f"query{self.number}"


def started(rows: Sequence[LaneRow]) -> list[Statement]:
    """No key yet."""
    return [s for row in rows for s in (Set(row.most, MINUS_INFINITY), Set(row.total, Number(0.0, f32)))]


class ScoreLayout(ABC):
    """Which lane has which score of a round, and the online softmax of them."""

    numerics: Numerics
    merges_late: bool = False
    """Whether the largest score of earlier rounds joins after those of other lanes."""
    sums_late: bool = False
    """Whether each lane keeps the total of its own keys, which are summed after the last round."""

    @abstractmethod
    def each(self, body: Callable[[At], Sequence[Statement]]) -> list[Statement]:
        """Statements for each score of a query in a lane."""

    @abstractmethod
    def score(self, row: LaneRow, at: At) -> Expr: ...

    @abstractmethod
    def shown(self, row: LaneRow, at: At) -> list[Statement]:
        """Make a product a score as the softmax sees it: scaled, with masks and fills."""

    @abstractmethod
    def combined(self, rows: Sequence[LaneRow], name: str, op: str) -> list[Statement]:
        """Combine what lanes with scores of the same queries keep under a name."""

    def weight(self, row: LaneRow, at: At) -> Name:
        return f32_name("weight")

    def kept(self, row: LaneRow, at: At, weight: Name) -> list[Statement]:
        """Keep the weight of a score, where its name is not enough."""
        return []

    def own(self, name: str, row: LaneRow) -> Name:
        """A name for a query: all have the same where one query follows the other."""
        return f32_name(name)

    def weighted(self, rows: Sequence[LaneRow]) -> list[Statement]:
        """Scores, which become weights; what is kept of queries so far, and what it shrinks by."""
        statements = [s for row in rows for s in self._find_largest(row)]
        statements += self.combined(rows, "round_most", "maximum")
        return statements + [s for row in rows for s in self._weigh(row)]

    def _starts_late(self) -> bool:
        return self.merges_late or self.numerics.is_folded

    def _find_largest(self, row: LaneRow) -> list[Statement]:
        most = self.own("round_most", row)

        def one(at: At) -> list[Statement]:
            return [*self.shown(row, at), Set(most.name, largest(most, self.score(row, at)))]

        start = MINUS_INFINITY if self._starts_late() else f32_name(row.most)
        return [Set(most.name, start), *self.each(one)]

    def _weigh(self, row: LaneRow) -> list[Statement]:
        numerics, most, safe = self.numerics, self.own("round_most", row), self.own("safe", row)
        before, shrunk, total = f32_name(row.most), f32_name(row.shrunk), f32_name(row.total)
        factor = Number(numerics.scale, f32)
        statements: list[Statement] = []
        if self._starts_late():
            statements.append(Set(most.name, largest(before, times(most, factor) if numerics.is_folded else most)))
        statements.append(Set(safe.name, or_zero(most)))
        statements += [Set("below", minus(Number(0.0, f32), safe))] if numerics.is_folded else []
        statements += [Set(shrunk.name, numerics.exp(minus(before, safe))), Set(before.name, most)]

        def weight_of(at: At) -> Expr:
            score = self.score(row, at)
            if numerics.is_folded:
                return numerics.exp(Call("fma", (score, factor, f32_name("below")), f32))
            return numerics.exp(minus(score, safe))

        if self.sums_late:
            weights: list[Name] = []

            def one_of(at: At) -> list[Statement]:
                weights.append(self.weight(row, at))
                return [Set(weights[-1].name, weight_of(at)), *self.kept(row, at, weights[-1])]

            statements += self.each(one_of)
            first, *others = weights
            every = numerics.shrunk(total, shrunk, first)
            for weight in others:
                every = plus(every, weight)
            return [*statements, Set(total.name, every)]

        def one(at: At) -> list[Statement]:
            weight = self.weight(row, at)
            of_round = Set("round_total", plus(f32_name("round_total"), weight))
            return [Set(weight.name, weight_of(at)), *self.kept(row, at, weight), of_round]

        statements += [
            Set("round_total", Number(0.0, f32)),
            *self.each(one),
            *self.combined([row], "round_total", "add"),
        ]
        return [*statements, Set(total.name, numerics.shrunk(total, shrunk, f32_name("round_total")))]


def merged(
    numerics: Numerics,
    count: int,
    most: Callable[[Expr], Expr],
    sums: Mapping[str, Callable[[Expr], Expr]],
    lanes: int = 1,
    *,
    keeps_shares: bool = False,
) -> list[Statement]:
    """Combine partial results, always in one order: the largest score as `most`, and totals or weighted sums by name.

    A part counts by its share, which is 0 where it has seen no key; `keeps_shares` names them by number. Lanes whose
    `of_lane` differ may have some parts each.
    """
    part: Expr = Name("each")
    if lanes > 1:
        part = add(mul(part, Extent(lanes)), Name("of_lane"))

    def for_each(body: Callable[[Expr, Name], list[Statement]]) -> list[Statement]:
        if keeps_shares:
            return [s for i in range(count) for s in body(Extent(i), f32_name(f"share{i}"))]
        return [unrolled("each", count // lanes, *body(part, f32_name("share")))]

    def reduced(op: str, *names: str) -> list[Statement]:
        return [AllReduce(name, op, f32, lanes) for name in names] if lanes > 1 else []

    def added(part: Expr, share: Name) -> list[Statement]:
        own = Set(share.name, numerics.exp(minus(most(part), f32_name("most"))))
        return [own, *[Set(n, numerics.added(f32_name(n), share, of(part))) for n, of in sums.items()]]

    return [
        Set("most", MINUS_INFINITY),
        *for_each(lambda part, _: [Set("most", largest(f32_name("most"), most(part)))]),
        *reduced("maximum", "most"),
        Set("most", or_zero(f32_name("most"))),
        *[Set(name, Number(0.0, f32)) for name in sums],
        *for_each(added),
        *reduced("add", *sums),
    ]


__all__ = [
    "MINUS_INFINITY",
    "At",
    "LaneRow",
    "Numerics",
    "ScoreLayout",
    "f32_name",
    "largest",
    "merged",
    "minus",
    "or_zero",
    "started",
    "times",
    "with_lane",
]
