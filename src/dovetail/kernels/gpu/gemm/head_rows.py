"""The epilogue of a q, k, v product: heads are normed, rotated (RoPE) and appended to the KV cache where sums are.

A tile has the columns of one head, and a warp has whole rows of it: a thread has every fourth pair of columns, so that
four lanes add up the squares of a row, and both features of a rotated pair are in one thread. Results go through shared
memory, as those of other products do (`narrow_results.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_, f32, i64, u32
from dovetail.kernels.device import LANES
from dovetail.kernels.families.gather import STATUS, checked, guarded
from dovetail.kernels.gpu.gemm.fragments import LANE, both, clamped, divided, less, plus, remainder
from dovetail.kernels.gpu.gemm.scaled_rows import exchanged
from dovetail.kernels.gpu.gemm.tile import CHUNK, WARP_ROWS
from dovetail.kernels.gpu.gemm.tiled import Producer
from dovetail.kernels.gpu.hoisted import Hoisted
from dovetail.kernels.loops.ir import (
    ZERO,
    Ballot,
    Call,
    Expr,
    Extent,
    FromLane,
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

LINE = 64
"""Results of a line in shared memory."""
_PLACES = 4
"""Lanes that have the same row of sums."""
_NOWHERE = Number(-1, i64)
_PLACE, _TO = Name("place"), Name("to")
_QUAD, _PAIR, _WARP, _FIRST = Name("quad"), Name("pair"), Name("own_warp"), Name("first_token")
_ROW = Name("target_row")


@dataclass(frozen=True, slots=True)
class Appended:
    """Rows of a cache that tokens go to."""

    index: Tensor
    """The row of each token."""
    rows: Size
    """Rows of the cache for each head."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Some heads of a product, one after the other, and where they go."""

    first: int
    """The first column."""
    count: int
    target: Tensor
    """Rows of all heads, one head after the other, and features."""
    gain: Tensor | None = None
    """Of the norm; None where there is none."""
    eps: float = 0.0
    angles: tuple[Tensor, Tensor] | None = None
    """Cosines and sines of tokens, for each feature; None where nothing is rotated."""
    appended: Appended | None = None
    """None where all tokens of a head follow each other."""


@dataclass(frozen=True, slots=True)
class HeadResults:
    """The results of the warps of a block whose tile is a head."""

    producer: Producer
    width: int
    """Features of a head, and columns of a tile."""
    tokens: int
    parts: Sequence[Heads]

    @property
    def fits(self) -> bool:
        """Whether lines are whole, and pairs of features are in two of them."""
        return self.width % (2 * LINE) == 0 and LINE % self.producer.width == 0

    @property
    def dtype(self) -> DType:
        return self.parts[0].target.dtype

    def statements(self) -> tuple[list[Statement], list[Statement]]:
        """What comes before the sums, and what comes after them."""
        # Names for what many addresses have in common: LLVM has less to read.
        before: list[Statement] = [
            Set(_QUAD.name, divided(LANE, _PLACES)),
            Set(_PAIR.name, mul(remainder(LANE, _PLACES), Extent(2))),
            Set(_WARP.name, ThreadIndex("warp")),
            Set(_FIRST.name, add(Name("top"), mul(_WARP, Extent(WARP_ROWS)))),
        ]
        after: list[Statement] = []
        for number, part in enumerate(self.parts):
            loads, stores = self._part(number, part)
            end = part.first + part.count * self.width
            is_own = both(
                Call("less_equal", (Extent(part.first), Name("side")), bool_), less(Name("side"), Extent(end))
            )
            if part.appended is not None:
                loads = [*self._placed(part.appended), *loads]
            before.append(When(is_own, tuple(loads)))
            after.append(When(is_own, tuple(stores)))
        return before, after

    @staticmethod
    def _row(line: Expr) -> Expr:
        """The token of a line of this warp."""
        return add(_FIRST, line)

    def _sums(self) -> Mapping[tuple[int, int], Expr]:
        """The sums of this thread: which of its two rows, and the column without what lanes add to it."""
        sums: dict[tuple[int, int], Expr] = {}
        each = self.producer.width // 8
        for chunk in self.producer.chunks:
            for number, element in enumerate(chunk.elements):
                half, j, e = number // (2 * each), number // 2 % each, number % 2
                sums[half, chunk.column + 8 * j + e] = element.sums[0]
        return sums

    def _part(self, number: int, part: Heads) -> tuple[list[Statement], list[Statement]]:
        """The loads of the first line of results, and all that follows the sums."""
        sums = self._sums()
        statements: list[Statement] = []
        if part.gain is not None:
            for half in range(2):
                squares = [Call("mul", (x, x), f32) for (at, _), x in sums.items() if at == half]
                statements += [Set(_norm(half), reduce(plus, squares)), *exchanged(_norm(half), _PLACES)]
                mean = Call("mul", (Name(_norm(half), f32), Number(1 / self.width, f32)), f32)
                scale = Call("near_rsqrt", (Call("add", (mean, Number(part.eps, f32)), f32),), f32)
                statements.append(Set(_norm(half), scale))
        lines: list[tuple[list[Statement], list[Statement], list[Statement]]] = []
        for at in range(self.width // LINE):
            hoisted = Hoisted(f"head{number}_{at % 2}_")
            stores: list[Statement] = []
            for place, column in enumerate(self._columns(part, at)):
                # Lanes add to columns: of eight, a thread has the first two.
                for half in range(2) if column % 8 < 2 else ():
                    value = Call("cast", (_normed(part, sums[half, column], half, column),), self.dtype)
                    to = (_WARP, add(_QUAD, Extent(8 * half)), _feature(place))
                    stores.append(hoisted.store(Store(self._staged, to, value)))
            loads, written = self._written(part, at) if part.angles is None else self._rotated(part, part.angles, at)
            lines.append(([*hoisted.sets, *loads], stores, written))
        for at, (_, stores, written) in enumerate(lines):
            statements += stores
            statements += lines[at + 1][0] if at + 1 < len(lines) else []
            statements += [WarpBarrier(), *written, WarpBarrier()]
        return lines[0][0], statements

    def _columns(self, part: Heads, at: int) -> list[int]:
        """The features of a line: neighbours, or some of the first half and those that are rotated with them."""
        if part.angles is None:
            return [*range(at * LINE, (at + 1) * LINE)]
        some = range(at * LINE // 2, (at + 1) * LINE // 2)
        return [*some, *(self.width // 2 + column for column in some)]

    def _to(self, part: Heads, line: Expr) -> tuple[list[Statement], Expr]:
        """The row of the target that a line goes to, under a name, and whether it goes there."""
        head = divided(add(Name("side"), Extent(-part.first)), self.width)
        if part.appended is None:
            place, rows, there = Set(_TO.name, self._row(line)), self.tokens, less(_TO, Extent(self.tokens))
        else:
            place, rows = FromLane(_TO.name, _PLACE.name, line, i64), part.appended.rows
            there = Call("less_equal", (ZERO, _TO), bool_)
        return [place, Set(_ROW.name, add(mul(head, Extent(rows)), _TO))], there

    def _written(self, part: Heads, at: int) -> tuple[list[Statement], list[Statement]]:
        """A line of results of each row from shared memory, 16 bytes for each thread."""
        groups, column, line = LINE // CHUNK, Name("column"), Name("line")
        statements: list[Statement] = [Set(column.name, mul(remainder(LANE, groups), Extent(CHUNK)))]
        for turn in range(WARP_ROWS * groups // LANES):
            statements.append(Set(line.name, divided(add(LANE, Extent(turn * LANES)), groups)))
            places, there = self._to(part, line)
            stores: list[Statement] = []
            for e in range(CHUNK):
                value = Load(self._staged, (_WARP, line, add(column, Extent(e))))
                stores.append(Store(part.target, (_ROW, add(column, Extent(at * LINE + e))), value))
            statements += [*places, When(there, tuple(stores))]
        return [], statements

    def _rotated(self, part: Heads, angles: tuple[Tensor, Tensor], at: int) -> tuple[list[Statement], list[Statement]]:
        """Loads of angles, 16 bytes for each thread, and a line of rotated results of each row from shared memory."""
        groups, middle = LINE // 2 // CHUNK, self.width // 2
        column, line = Name("column"), Name("line")
        places = [(half, e) for half in range(2) for e in range(CHUNK)]
        loads: list[Statement] = [Set(column.name, mul(remainder(LANE, groups), Extent(CHUNK)))]
        statements: list[Statement] = []

        def feature(half: int, e: int) -> Expr:
            return add(column, Extent(half * middle + at * LINE // 2 + e))

        for turn in range(WARP_ROWS * groups // LANES):
            own_line = divided(add(LANE, Extent(turn * LANES)), groups)
            loads.append(Set("token", clamped(self._row(own_line), self.tokens)))
            names: list[dict[tuple[int, int], Expr]] = []
            for number, table in enumerate(angles):
                names.append({})
                for half, e in places:
                    name = f"angle{at % 2}_{turn}_{number}_{half}_{e}"
                    loads.append(Set(name, Load(table, (Name("token"), feature(half, e)))))
                    names[-1][half, e] = Call("cast", (Name(name, table.dtype),), f32)
            own: dict[tuple[int, int], Expr] = {}
            statements.append(Set(line.name, own_line))
            for half, e in places:
                read = Load(self._staged, (_WARP, line, add(column, Extent(half * LINE // 2 + e))))
                statements.append(Set(f"feature{half}_{e}", Call("cast", (read,), f32)))
                own[half, e] = Name(f"feature{half}_{e}", f32)
            lines, there = self._to(part, line)
            stores: list[Statement] = []
            for half, e in places:
                turned = Call("mul", (own[1 - half, e], names[1][half, e]), f32)
                kept = Call("mul", (own[half, e], names[0][half, e]), f32)
                value = Call("cast", (Call("add" if half else "sub", (kept, turned), f32),), self.dtype)
                stores.append(Store(part.target, (_ROW, feature(half, e)), value))
            statements += [*lines, When(there, tuple(stores))]
        return loads, statements

    @property
    def _staged(self) -> Tensor:
        """The room of each warp for a line of its rows: warp, row, column."""
        item = self.dtype.itemsize
        strides = (self.producer.staged.strides[0], (LINE + CHUNK) * item, item)
        return Tensor(self.producer.staged.pointer, self.dtype, strides, space="shared")

    def _placed(self, appended: Appended) -> list[Statement]:
        """Where the cache has the row of each lane, under `place`; less than 0 where a later token has the same row.

        Tokens that go to rows in their order are all different: others are looked through one by one.
        """
        index, last = appended.index, self.tokens - 1
        row = self._row(remainder(LANE, WARP_ROWS))
        unordered: list[Expr] = [less(Load(index, (ZERO,)), ZERO)]
        for first in range(0, last, LANES):
            at = clamped(add(LANE, Extent(first)), last)
            pair = Load(index, (at,)), Load(index, (add(at, Extent(1)),))
            unordered.append(Call("greater_equal", pair, bool_))
        own, other = Name("own"), Name("other_place")
        later = both(less(own, Name("token")), Call("equal", (other, _PLACE), bool_))
        again = Set(_PLACE.name, Call("where", (Name("hit", bool_), _NOWHERE, _PLACE), i64))
        looked = (
            Set("hit", Number(False, bool_)),
            Loop(
                "token",
                Extent(self.tokens),
                (
                    *checked(other.name, Load(index, (Name("token"),)), appended.rows),
                    Set("hit", Call("bit_or", (Name("hit", bool_), later), bool_)),
                ),
            ),
            again,
        )
        beyond = less(Extent(last), row)
        return [
            Set(_PLACE.name, _NOWHERE),
            Set(own.name, clamped(row, self.tokens)),
            *guarded(
                (
                    *checked(_PLACE.name, Load(index, (own,)), appended.rows),
                    Set("unordered", reduce(lambda x, y: Call("bit_or", (x, y), bool_), unordered)),
                    Ballot("some", "unordered"),
                    When(Call("not_equal", (Name("some", u32), Number(0, u32)), bool_), looked),
                    Set(_PLACE.name, Call("where", (beyond, _NOWHERE, _PLACE), i64)),
                ),
                [appended.rows],
            ),
        ]


def _normed(part: Heads, total: Expr, half: int, column: int) -> Expr:
    """A feature, normed where heads are."""
    if part.gain is None:
        return total
    gain = Call("cast", (Load(part.gain, (_feature(column),)),), f32)
    return Call("mul", (Call("mul", (total, Name(_norm(half), f32)), f32), gain), f32)


def _feature(column: int) -> Expr:
    """A column of this lane in its tile."""
    return add(_PAIR, Extent(column))


def _norm(half: int) -> str:
    return f"head_scale{half}"


__all__ = ["STATUS", "Appended", "HeadResults", "Heads"]
