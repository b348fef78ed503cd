"""Products of one row whose weights bulk copies bring, without tensor cores: these would lower the clock."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, bf16, bool_, f32, i64, u16, u32, u64
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.gemm.fragments import LANE, LineTile, both, divided, in_pairs, less, plus, remainder
from dovetail.kernels.gpu.gemm.scaled_rows import exchanged
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.gemm.tiled import RowScale, Tiled
from dovetail.kernels.gpu.gemv.stream import RESIDENT, StreamTile
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllocBarriers,
    Call,
    Expr,
    Extent,
    FromLane,
    Load,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    mul,
)

__all__ = ["RowStream"]

SHARING = 8
"""Lanes that share a column: they read as many bytes at once as shared memory has banks for."""
FEW = 8
"""Columns up to which no two threads have the same k, so that each needs what it has received itself alone."""
MOST_WORDS = 96
"""Words of weights that a thread loads before it has the row: in a persistent kernel it has 232 registers."""
MOST_REGISTERS = 150
"""Registers of weights before a thread has the row. Words that leave some free are widened to f32 then."""
CHAINS = 4
"""Sums of a thread that do not wait for each other, at least: an FMA takes as many cycles."""
SQUARES = tuple([Name(f"squares{i}", f32) for i in range(2)])
"""The sums of the squares of a thread, which take turns."""


@dataclass(frozen=True, slots=True)
class RowProducts:
    """How the warps of a block multiply columns in shared memory by one row."""

    dtype: DType
    depth: int
    width: int
    """Columns of all streams."""
    warps: int
    gains: Tensor | None = None
    """What multiplies the row, in shared memory, where it is normed: its squares are added up on the way."""

    @property
    def fits(self) -> bool:
        """Whether several warps share k, with as many elements each, and others as many columns."""
        return self.deep > 1 and self.width % (self._groups * self._across) == 0

    @property
    def _is_alone(self) -> bool:
        """Whether all threads have k of their own."""
        step = FEW // 2 * LANES * self.warps
        return self.width <= FEW and self.warps in (2, 4, 8) and self.depth % step == 0

    @property
    def _sharing(self) -> int:
        """Lanes that share a column."""
        return LANES if self._is_alone else SHARING

    @property
    def _groups(self) -> int:
        """Groups of lanes with columns of their own."""
        return LANES // self._sharing

    @property
    def _piece(self) -> int:
        """Neighbours of k that a thread has: as many as it receives at once where it has k of its own."""
        return CHUNK // 2 if self._is_alone else CHUNK

    @property
    def _words(self) -> int:
        return self._piece // 2

    @property
    def deep(self) -> int:
        """Warps that share k; others have other columns."""
        step = self._sharing * self._piece
        return max([n for n in (1, 2, 4, 8) if n <= self.warps and self.depth % (step * n) == 0], default=0)

    @property
    def _across(self) -> int:
        return self.warps // self.deep

    @property
    def plane(self) -> Expr:
        """Which part of k a warp has."""
        return remainder(ThreadIndex("warp"), self.deep)

    @property
    def _step(self) -> int:
        """Chunks of k that the threads of a block have at once."""
        return self._sharing * self.deep

    @property
    def _turns(self) -> int:
        """Chunks of a thread in each of its columns."""
        return self.depth // (self._piece * self._step)

    @property
    def _own(self) -> int:
        """Columns of a thread."""
        return self.width // (self._groups * self._across)

    @property
    def _first(self) -> Expr:
        """The first column of a thread."""
        group = add(mul(divided(ThreadIndex("warp"), self.deep), Extent(self._groups)), divided(LANE, self._sharing))
        return mul(group, Extent(self._own))

    @property
    def _chains(self) -> int:
        """Sums of a column that take turns."""
        return max(1, CHAINS // self._own)

    def statements(self, weights: LineTile, row: Tensor, planes: Tensor) -> list[Statement]:
        """All products, whose sums go to shared memory, a plane for each part of k."""
        each = [(turn, column) for turn in range(self._turns) for column in range(self._own)]
        ahead = each[: MOST_WORDS // self._words]
        wide = ahead[: max(0, MOST_REGISTERS - self._words * len(ahead)) // (self._piece - self._words)]
        statements = [s for at in ahead for s in self._loaded(at, weights)]
        free = MOST_REGISTERS - self._words * len(ahead) - (self._piece - self._words) * len(wide)
        wide_gains = range(min(self._turns, free // (self._piece - self._words)))
        if self.gains is not None:
            statements += [s for turn in range(self._turns) for s in self._chunk(self.gains, turn, _gain(turn))]
            each_gain = [(turn, e) for turn in wide_gains for e in range(self._piece)]
            statements += [Set(_wide_gain(*at).name, self._element(_gain(at[0]), at[1])) for at in each_gain]
        statements += [Set(_wide(at, e).name, self._element(_word(at), e)) for at in wide for e in range(self._piece)]
        started: set[str] = set()
        for at in each:
            statements += self._row(at[0], row, started, is_wide=at[0] in wide_gains) if at[1] == 0 else []
            statements += [] if at in ahead else self._loaded(at, weights)
            for e in range(self._piece):
                w = _wide(at, e) if at in wide else self._element(_word(at), e)
                statements.append(_fma(_sum(at[1], e % self._chains), w, _x(e), started))
        statements += self._added(planes)
        if self.gains is not None:
            # All groups of lanes have the same.
            statements += [Set(SQUARES[0].name, reduce(plus, SQUARES)), *exchanged(SQUARES[0].name, self._sharing)]
        return statements

    def squares_stored(self, planes: Tensor) -> Statement:
        """The squares of a warp's part of the row, after its sums: other lanes and warps have the same."""
        store = Store(planes, (self.plane, ZERO, Extent(self.width)), SQUARES[0])
        is_first = less(ThreadIndex("warp"), Extent(self.deep))
        return When(both(Call("equal", (LANE, ZERO), bool_), is_first), (store,))

    def squares(self, planes: Tensor) -> Expr:
        """The sum of the squares of the row."""
        return in_pairs([Load(planes, (Extent(plane), ZERO, Extent(self.width))) for plane in range(self.deep)])

    def _chunk(self, tensor: Tensor, turn: int, prefix: str, line: Expr = ZERO, pitch: int = 0) -> list[Statement]:
        """Set names to the words of a thread's chunk of k."""
        nbytes = self._piece * self.dtype.itemsize
        words = Tensor(tensor.pointer, u32, (pitch, nbytes, nbytes, u32.itemsize), space="shared")
        own = add(mul(self.plane, Extent(self._sharing)), remainder(LANE, self._sharing))
        own = ThreadIndex("thread") if self._is_alone else own
        # What is the same for all threads comes last: loads have it in their instructions, and share one address.
        at = (line, own, Extent(turn * self._step))
        return [Set(f"{prefix}{i}", Load(words, (*at, Extent(i)))) for i in range(self._words)]

    def _pair(self, row: Tensor, turn: int) -> list[Statement]:
        """Both words of a thread's piece of the row as one: LLVM then finds what this thread has stored there."""
        nbytes = self._piece * self.dtype.itemsize
        both = Load(
            Tensor(row.pointer, u64, (nbytes, nbytes), space="shared"),
            (ThreadIndex("thread"), Extent(turn * self._step)),
        )
        high = Call("shift_right", (Name("row_pair", u64), Number(32, u64)), u64)
        words = (Name("row_pair", u64), high)
        return [Set("row_pair", both), *[Set(f"row_word{i}", cast_to(x, u32)) for i, x in enumerate(words)]]

    def _loaded(self, at: tuple[int, int], weights: LineTile) -> list[Statement]:
        """The words of a turn and a column."""
        turn, column = at
        tensor, _ = weights.place(ZERO, ZERO, ZERO)
        line = add(self._first, Extent(column))
        return self._chunk(tensor, turn, _word(at), line, weights.pitch * self.dtype.itemsize)

    def _element(self, prefix: str, e: int) -> Expr:
        """An element of a chunk as f32, from the word that it shares."""
        word = Name(f"{prefix}{e // 2}", u32)
        if self.dtype is bf16:
            # The upper half of an f32. A shift and a mask take turns in units that do not multiply.
            mask = Number(0xFFFF0000, u32)
            bits = Call("bit_and", (word, mask), u32) if e % 2 else Call("shift_left", (word, Number(16, u32)), u32)
            return Call("bitcast", (bits,), f32)
        half = Call("shift_right", (word, Number(16, u32)), u32) if e % 2 else word
        return cast_to(Call("bitcast", (cast_to(half, u16),), self.dtype), f32)

    def _row(self, turn: int, row: Tensor, started: set[str], *, is_wide: bool) -> list[Statement]:
        """The elements of the row of a turn, in registers, and their squares."""
        statements = self._pair(row, turn) if self._is_alone else self._chunk(row, turn, "row_word")
        statements += [Set(_x(e).name, self._element("row_word", e)) for e in range(self._piece)]
        for e in range(self._piece if self.gains is not None else 0):
            statements.append(_fma(SQUARES[e % 2], _x(e), _x(e), started))
            gain = _wide_gain(turn, e) if is_wide else self._element(_gain(turn), e)
            statements.append(Set(_x(e).name, Call("mul", (_x(e), gain), f32)))
        return statements

    def _added(self, planes: Tensor) -> list[Statement]:
        """Add up what the lanes of a column have. In each exchange a lane keeps half of its columns and gives the other
        half away; an odd column stays in both lanes, and one of them stores it."""
        statements: list[Statement] = []
        kept: list[list[Expr]] = [[] for _ in range(self._own)]
        sums, columns = [_sum(c, 0) for c in range(self._own)], list[Expr](map(Extent, range(self._own)))
        for column in range(self._own):
            total = reduce(plus, [_sum(column, chain) for chain in range(self._chains)])
            statements += [Set(sums[column].name, total)] if self._chains > 1 else []
        distance = self._sharing // 2
        while distance:
            half = len(sums) // 2
            is_upper = Call("equal", (remainder(divided(LANE, distance), 2), Extent(1)), bool_)
            partner = Call("bit_xor", (LANE, Extent(distance)), i64)
            for i in range(half):
                low, high = sums[i], sums[i + half]
                statements.append(Set("given", Call("where", (is_upper, low, high), f32)))
                statements.append(Set("kept", Call("where", (is_upper, high, low), f32)))
                statements.append(FromLane("other", "given", partner, f32))
                statements.append(Set(low.name, plus(Name("kept", f32), Name("other", f32))))
                columns[i] = Call("where", (is_upper, columns[i + half], columns[i]), i64)
                # Of a pair the upper one alone may remain from an exchange before.
                is_lower = Call("equal", (remainder(divided(LANE, distance), 2), ZERO), bool_)
                kept[i] = [Call("bit_or", (is_lower, both(*kept[i + half])), bool_)] if kept[i + half] else []
            for i, last in enumerate(sums[2 * half :], 2 * half):
                statements.append(FromLane("other", last.name, partner, f32))
                statements.append(Set(last.name, plus(last, Name("other", f32))))
                kept[i].append(Call("equal", (remainder(divided(LANE, distance), 2), ZERO), bool_))
            sums, columns = [*sums[:half], *sums[2 * half :]], [*columns[:half], *columns[2 * half :]]
            kept = [*kept[:half], *kept[2 * half :]]
            distance //= 2
        for x, column, one in zip(sums, columns, kept, strict=True):
            store = Store(planes, (self.plane, ZERO, add(self._first, column)), x)
            statements.append(When(both(*one), (store,)) if one else store)
        return statements


def _fma(total: Name, x: Expr, y: Expr, started: set[str]) -> Set:
    """Add a product to a sum, which starts with its first one."""
    if total.name in started:
        return Set(total.name, Call("fma", (x, y, total), f32))
    started.add(total.name)
    return Set(total.name, Call("mul", (x, y), f32))


def _x(e: int) -> Name:
    return Name(f"row_{e}", f32)


def _sum(column: int, chain: int) -> Name:
    return Name(f"sum{column}_{chain}", f32)


def _word(at: tuple[int, int]) -> str:
    return f"word{at[0]}_{at[1]}_"


def _wide(at: tuple[int, int], e: int) -> Name:
    return Name(f"wide{at[0]}_{at[1]}_{e}", f32)


def _wide_gain(turn: int, e: int) -> Name:
    return Name(f"wide_gain{turn}_{e}", f32)


def _gain(turn: int) -> str:
    return f"gain{turn}_"


@dataclass(frozen=True, slots=True)
class RowStream(StreamTile):
    """A tile of a stream whose threads multiply."""

    @staticmethod
    def from_tile(tile: StreamTile, device: GpuDevice) -> RowStream | None:
        """The same tile by threads; None where tensor cores lower no clock, or threads cannot share it."""
        if not 0 < device.tensor_hertz < device.hertz or tile.rows != 1 or not tile.bulk or not tile.sums_are_apart:
            return None
        stream = RowStream(**{name: getattr(tile, name) for name in tile.__dataclass_fields__})
        there_is_room = stream.sums_are_apart and RESIDENT * stream.shared_bytes <= device.shared_bytes
        return stream if stream.by_threads.fits and there_is_room else None

    @property
    def by_threads(self) -> RowProducts:
        gains = None if self.norm is None else self.norm.gains
        return RowProducts(self.dtype, self.depth, self.width, self.warps, gains)

    def tiled(self) -> Tiled:
        tiled, products, norm = StreamTile.tiled(self), self.by_threads, self.norm
        scale = None
        if norm is not None:
            squares = products.squares(self.planes)
            scale = RowScale(products.squares_stored(self.planes), lambda _: norm.scale(squares))
        # Sums are in the planes.
        return replace(tiled, elements=(), planes=products.deep, plane=products.plane, scale=scale)

    @property
    def planes(self) -> Tensor:
        """The sums of all parts of k are next to each other: a thread that adds them up loads four at once. A vector of
        padding spreads columns over banks."""
        return Tensor("planes", f32, (f32.itemsize, 0, self._apart * f32.itemsize), space="shared")

    @property
    def planes_bytes(self) -> int:
        """Those of all columns, and of squares, which are a column more."""
        return self._apart * (self.width + 1) * f32.itemsize

    @property
    def _apart(self) -> int:
        """Elements from the sums of one column to those of the next."""
        return self.by_threads.deep + 4

    def allocations(self) -> list[Alloc | AllocBarriers]:
        """Those in shared memory: threads have all else in names."""
        return [a for a in StreamTile.allocations(self) if isinstance(a, AllocBarriers) or a.space == "shared"]

    def body(self) -> list[Statement]:
        return [*self.left_loaded(), *self.steps.rounds()]

    def used(self, number: Expr, stage: Expr) -> list[Statement]:
        assert isinstance(self.weights, LineTile), "bulk copies fill it"
        return self.by_threads.statements(self.weights, self.left_rows, self.planes)
