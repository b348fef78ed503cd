"""The register tile of contractions: some rows times one panel of columns, summed up in registers.

A panel is [k][columns], dense and aligned. Rows are read where they lie. Every number of rows up to the tile's has a
function of its own, and sums always go through k from first to last, so that how rows are cut changes no bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.kernels.vector import Vectors, VectorText

UNROLLED = 4
"""Steps along k in one turn of the loop."""
_TOGETHER = 4
"""Rows that share a pointer: a register holds the stride, and addresses are made of both."""


@dataclass(frozen=True, slots=True)
class Tile:
    """So many rows by so many vectors, kept in registers while k is gone through."""

    lanes: int
    rows: int
    vectors: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def row_bytes(self) -> int:
        return 4 * self.columns

    @property
    def name(self) -> str:
        return f"contract_{self.rows}x{self.vectors}x{self.lanes}"


def tile_of(vectors: Vectors) -> Tile:
    """The largest tile that leaves registers for what is multiplied."""
    if vectors.lanes == UNROLLED:
        # A vector of each row is held for four steps, and multiplied lane by lane.
        wide = 3 if vectors.registers >= 32 else 2
        return Tile(vectors.lanes, max(1, (vectors.registers - wide - 2) // (wide + 1)), wide)
    return Tile(vectors.lanes, max(1, (vectors.registers - 3) // 2), 2)


def tile_text(tile: Tile) -> tuple[str, tuple[str, ...]]:
    """`name(rows, a, stride of a, b, sums, turns, rest, fresh)` and the functions behind it; and what they declare.

    `turns` times four steps and `rest` more are gone through. Sums are [rows][columns], added to unless `fresh`.
    """
    texts: list[str] = []
    used: dict[str, None] = {}
    for rows in range(1, tile.rows + 1):
        text = _Rows(tile, rows)
        texts.append(text.function())
        used |= text.used
    return "\n".join([*texts, _choice(tile)]), tuple(used)


_PARAMETERS = (
    "ptr noalias readonly %a, i64 %stride, ptr noalias readonly %b, ptr noalias %sums, i64 %turns, i64 %rest, i1 %fresh"
)
_PASSED = "ptr %a, i64 %stride, ptr %b, ptr %sums, i64 %turns, i64 %rest, i1 %fresh"


def _choice(tile: Tile) -> str:
    cases = " ".join(f"i64 {rows}, label %r{rows}" for rows in range(1, tile.rows + 1))
    calls = [f"r{rows}:\n  call void @{tile.name}.{rows}({_PASSED})\n  ret void" for rows in range(1, tile.rows + 1)]
    return "\n".join(
        [
            f"define internal void @{tile.name}(i64 %rows, {_PARAMETERS}) alwaysinline nounwind {{",
            f"  switch i64 %rows, label %none [ {cases} ]",
            *calls,
            "none:",
            "  ret void",
            "}",
        ]
    )


class _Rows(VectorText):
    """The function for one number of rows. What changes from turn to turn is written as phi nodes."""

    def __init__(self, tile: Tile, rows: int) -> None:
        super().__init__(tile.lanes)
        self.tile = tile
        self.rows = rows
        self.cells = [(i, j) for i in range(rows) for j in range(tile.vectors)]

    def function(self) -> str:
        tile, aligned = self.tile, 4 * self.lanes
        self.label("entry")
        offsets = ["0", "%stride", self.let("shl i64 %stride, 1"), self.let("mul i64 %stride, 3")]
        groups = range(0, self.rows, _TOGETHER)
        pointers = [self.at("%a", self.let(f"mul i64 %stride, {first}") if first else 0) for first in groups]
        places = [self.at("%sums", i * tile.row_bytes + j * aligned) for i, j in self.cells]
        self("br i1 %fresh, label %ready, label %kept")
        self.label("kept")
        kept = [self.load(place, aligned) for place in places]
        self("br label %ready")
        self.label("ready")
        sums = [self.let(f"phi {self.kind} [ zeroinitializer, %entry ], [ {x}, %kept ]") for x in kept]
        state = ["%b", *pointers, *sums]
        for name, count, steps in (("main", "%turns", UNROLLED), ("last", "%rest", 1)):
            state = self._loop(name, count, steps, offsets, state)
        for place, x in zip(places, state[1 + len(pointers) :], strict=True):
            self.store(x, place, aligned)
        self("ret void")
        head = f"define internal void @{tile.name}.{self.rows}({_PARAMETERS}) noinline nounwind {{"
        return "\n".join([head, *self.lines, "}"])

    def _loop(self, name: str, count: str, steps: int, offsets: list[str], before: list[str]) -> list[str]:
        """So many steps along k in each turn: the panel, the pointers to rows and the sums behind it."""
        start = self.block
        some = self.let(f"icmp ne i64 {count}, 0")
        self(f"br i1 {some}, label %{name}, label %{name}.end")
        self.label(name)
        head = len(self.lines)
        kinds = ["ptr" if i <= len(before) - 1 - len(self.cells) else self.kind for i in range(len(before))]
        inside = [self.fresh("%s") for _ in before]
        after = self._steps(steps, offsets, inside)
        left, less = self.fresh("%left"), self.fresh("%less")
        self(f"{less} = add i64 {left}, -1")
        more = self.let(f"icmp ne i64 {less}, 0")
        self(f"br i1 {more}, label %{name}, label %{name}.end")
        self.lines[head:head] = [
            f"  {x} = phi {kind} [ {a}, %{start} ], [ {b}, %{name} ]"
            for x, kind, a, b in zip([*inside, left], [*kinds, "i64"], [*before, count], [*after, less], strict=True)
        ]
        self.label(f"{name}.end")
        return [
            self.let(f"phi {kind} [ {a}, %{start} ], [ {b}, %{name} ]")
            for kind, a, b in zip(kinds, before, after, strict=True)
        ]

    def _steps(self, steps: int, offsets: list[str], state: list[str]) -> list[str]:
        tile, aligned = self.tile, 4 * self.lanes
        groups = len(state) - 1 - len(self.cells)
        b, pointers, held = state[0], state[1 : 1 + groups], dict(zip(self.cells, state[1 + groups :], strict=True))
        places = [self.at(pointers[i // _TOGETHER], offsets[i % _TOGETHER]) for i in range(self.rows)]
        by_lane = steps == self.lanes
        whole = [self.load(place) for place in places] if by_lane else []
        for k in range(steps):
            columns = [self.load(self.at(b, k * tile.row_bytes + j * aligned), aligned) for j in range(tile.vectors)]
            for i, place in enumerate(places):
                spread = [k] * self.lanes
                x = self.shuffle(whole[i], "poison", spread) if by_lane else self.spread_from(self.at(place, 4 * k))
                for j, column in enumerate(columns):
                    held[i, j] = self.intrinsic("fmuladd", x, column, held[i, j])
        return [self.at(b, steps * tile.row_bytes), *(self.at(p, 4 * steps) for p in pointers), *held.values()]
