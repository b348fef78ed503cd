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
    """The function for one number of rows."""

    def __init__(self, tile: Tile, rows: int) -> None:
        super().__init__(tile.lanes)
        self.tile = tile
        self.rows = rows

    def function(self) -> str:
        tile, aligned = self.tile, 4 * self.lanes
        self.label("entry")
        offsets = ["0", "%stride", self.let("shl i64 %stride, 1"), self.let("mul i64 %stride, 3")]
        bases = [
            self.at("%a", self.let(f"mul i64 %stride, {first}") if first else 0)
            for first in range(0, self.rows, _TOGETHER)
        ]
        pointers = [self._pointer(base) for base in bases]
        panel = self._pointer("%b")
        cells = [(i, j) for i in range(self.rows) for j in range(tile.vectors)]
        places = {(i, j): self.at("%sums", i * tile.row_bytes + j * aligned) for i, j in cells}
        sums = {cell: self.variable("zeroinitializer") for cell in cells}
        with self.when(self.let("xor i1 %fresh, true")):
            for cell in cells:
                self.put(self.load(places[cell], aligned), sums[cell])
        for count, steps in (("%turns", UNROLLED), ("%rest", 1)):
            with self.loop("0", count):
                self._steps(steps, offsets, pointers, panel, sums)
        for cell in cells:
            self.store(self.get(sums[cell]), places[cell], aligned)
        self("ret void")
        head = f"define internal void @{tile.name}.{self.rows}({_PARAMETERS}) noinline nounwind {{"
        entry, *lines = self.lines
        return "\n".join([head, entry, *self.slots, *lines, "}"])

    def _steps(
        self, steps: int, offsets: list[str], pointers: list[str], panel: str, sums: dict[tuple[int, int], str]
    ) -> None:
        """So many steps along k."""
        tile, aligned = self.tile, 4 * self.lanes
        b = self.let(f"load ptr, ptr {panel}")
        groups = [self.let(f"load ptr, ptr {p}") for p in pointers]
        places = [self.at(groups[i // _TOGETHER], offsets[i % _TOGETHER]) for i in range(self.rows)]
        held = {cell: self.get(slot) for cell, slot in sums.items()}
        by_lane = steps == self.lanes
        whole = [self.load(place) for place in places] if by_lane else []
        for k in range(steps):
            columns = [self.load(self.at(b, k * tile.row_bytes + j * aligned), aligned) for j in range(tile.vectors)]
            for i in range(self.rows):
                x = self.shuffle(whole[i], "poison", [k] * self.lanes) if by_lane else self._at_k(places[i], k)
                for j, column in enumerate(columns):
                    held[i, j] = self.intrinsic("fmuladd", x, column, held[i, j])
        for cell, slot in sums.items():
            self.put(held[cell], slot)
        for slot, pointer, bytes in (
            (panel, b, tile.row_bytes),
            *((s, p, 4) for s, p in zip(pointers, groups, strict=True)),
        ):
            self(f"store ptr {self.at(pointer, steps * bytes)}, ptr {slot}")

    def _at_k(self, place: str, k: int) -> str:
        return self.spread_from(self.at(place, 4 * k))

    def _pointer(self, start: str) -> str:
        slot = self.slot("ptr")
        self(f"store ptr {start}, ptr {slot}")
        return slot
