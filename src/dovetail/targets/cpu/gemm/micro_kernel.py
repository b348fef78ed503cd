"""The register tile of contractions: some rows times one panel of columns, summed up in registers.

A panel is [k][columns], dense and aligned. Rows are read where they lie. Every number of rows up to the tile's has a
function of its own, and sums always go through k from first to last, so that how rows are cut changes no bit.

Where a panel serves many tiles of rows one after the other, it is in the caches after the first of them. Such tiles
have a second function: it asks for nothing that it reads itself, and fetches a part of the next panel instead, a line
in each turn of its loop, and what will be written row by row, so that none of them waits for memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.codegen.llvm.simd import VectorText
from dovetail.kernels.device import CpuDevice

_BY_LANE = 4
"""Lanes of vectors that are multiplied lane by lane; wider ones spread a number over all lanes as they load it."""
_UNROLLED = 4
"""Four steps along k in a turn of the loop, or one where a step has work enough to hide the loop."""
AHEAD = 512
"""How far in front of what it reads the tile asks for bytes of the panel, for each lane of a vector."""
FEW, FEWEST = 8, 4
"""Rows up to which memory is the limit, so that what comes is asked for from several places at once; and from many."""
PACED = ".paced"
"""What the name of the functions ends in that fetch what is next."""
_MANY_REGISTERS = 32
_LINE = 64
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
    def by_lane(self) -> bool:
        """Whether rows are held in vectors and multiplied lane by lane."""
        return self.lanes == _BY_LANE

    @property
    def unrolled(self) -> bool:
        return self.lanes <= 8

    @property
    def paced(self) -> range:
        """The numbers of rows that have a function for panels that are near already."""
        return range(0) if self.unrolled else range(self.rows - 1, self.rows + 1)

    @property
    def many_rows(self) -> int:
        """From so many rows on, rows that are cut evenly make tiles that are all `paced`."""
        return (self.rows - 3) * self.rows + 2

    @property
    def row_bytes(self) -> int:
        return 4 * self.columns

    @property
    def name(self) -> str:
        return f"contract_{self.rows}x{self.vectors}x{self.lanes}"


def tile_of(vectors: CpuDevice, streams: int = 1) -> Tile:
    """The largest tile that leaves registers for what is multiplied; each stream has whole vectors of it."""
    if vectors.lanes == _BY_LANE:
        # A vector of each row is held for four steps, and multiplied lane by lane.
        wide = 3 if vectors.registers >= 32 else 2
        return Tile(vectors.lanes, (vectors.registers - wide - 2) // (wide + 1), wide)
    if vectors.registers < _MANY_REGISTERS or streams % 2 == 0:
        return Tile(vectors.lanes, 3 * vectors.registers // 8, 2)
    # Wider and lower: fewer instructions for each product, which counts where a core is shared.
    return Tile(vectors.lanes, (vectors.registers - 4) // 3, 3)


def tile_text(tile: Tile) -> str:
    """A module with `name(rows, a, stride of a, b, sums, depth, fresh)`, and with `name.paced`, which takes more.

    `depth` is not 0. Sums are [rows][columns], added to unless `fresh`. What is paced asks for lines of what is `next`,
    and for as many rows at `c`, which lie `target` bytes apart.
    """
    texts: list[str] = []
    used: dict[str, None] = {}
    forms = [_Rows(tile, rows) for rows in range(1, tile.rows + 1)] + [_Paced(tile, rows) for rows in tile.paced]
    for text in forms:
        texts.append(text.function())
        used |= text.used
    choices = [_choice(tile, range(1, tile.rows + 1), "")]
    if tile.paced:
        choices.append(_choice(tile, tile.paced, PACED))
    return "\n".join([*used, *texts, *choices])


_STRIDES = ("%stride1", "%stride2", "%stride3")


def _given(tile: Tile, form: str, *, declared: bool) -> str:
    """The parameters of a function for some rows, or what is passed for them.

    Pointers point behind the rows and k counts up to 0, so that no register has to hold the end. They and the strides
    come one by one, so that LLVM cannot derive one from the other and takes them as they are.
    """
    pointers = [f"%a{first}" for first in range(0, tile.rows, _TOGETHER)]
    kinds = ["ptr noalias readonly" if declared else "ptr"] * (len(pointers) + 1)
    names = [*zip(kinds, [*pointers, "%b"], strict=True), ("ptr noalias" if declared else "ptr", "%sums")]
    return ", ".join(
        f"{kind} {name}"
        for kind, name in (
            *names,
            *(("i64", s) for s in _STRIDES),
            ("i64", "%first"),
            ("i1", "%fresh"),
            *([("ptr", "%next"), ("ptr", "%c"), ("i64", "%target")] if form else []),
        )
    )


def _choice(tile: Tile, numbers: range, form: str) -> str:
    """The function that hands on to the one for a number of rows."""
    cases = " ".join(f"i64 {rows}, label %r{rows}" for rows in numbers)
    passed = _given(tile, form, declared=False)
    lines = [
        f"define internal void @{tile.name}{form}(i64 %rows, ptr %a, i64 %stride1, ptr %b, ptr %sums, i64 %depth, "
        f"i1 %fresh{', ptr %next, ptr %c, i64 %target' if form else ''}) nounwind {{",
        "  %stride2 = shl i64 %stride1, 1",
        "  %stride3 = mul i64 %stride1, 3",
        "  %first = sub i64 0, %depth",
        "  %a0 = getelementptr float, ptr %a, i64 %depth",
    ]
    for group in range(_TOGETHER, tile.rows, _TOGETHER):
        lines += [f"  %far{group} = mul i64 %stride1, {group}"]
        lines += [f"  %a{group} = getelementptr i8, ptr %a0, i64 %far{group}"]
    lines.append(f"  switch i64 %rows, label %none [ {cases} ]")
    for rows in numbers:
        lines += [f"r{rows}:", f"  call void @{tile.name}{form}.{rows}({passed})", "  ret void"]
    return "\n".join([*lines, "none:", "  ret void", "}"])


class _Rows(VectorText):
    """The function for one number of rows. What changes from turn to turn is written as phi nodes."""

    form = ""

    def __init__(self, tile: Tile, rows: int) -> None:
        super().__init__(tile.lanes)
        self.tile = tile
        self.rows = rows
        self.unrolled = tile.unrolled or rows <= FEWEST
        self.cells = [(i, j) for i in range(rows) for j in range(tile.vectors)]
        self.bases: list[str] = []
        """Where each row ends."""
        self.streams = 0
        """Parts of what comes behind that are asked for at once."""
        self.parts: list[str] = []
        """How far behind a pointer the parts are that it serves."""
        self.places: list[str] = ["%first", "%b"]
        """What moves beside the sums: k, the panel, and what else is asked for."""

    def function(self) -> str:
        tile, aligned = self.tile, 4 * self.lanes
        self.label("entry")
        places = [self.at("%sums", i * tile.row_bytes + j * aligned) for i, j in self.cells]
        kept = [self.load(place, aligned) for place in places]
        sums = [self.let(f"select i1 %fresh, {self.kind} zeroinitializer, {self.kind} {x}") for x in kept]
        offsets = ("0", *_STRIDES)
        self.bases = [self.at(f"%a{i - i % _TOGETHER}", offsets[i % _TOGETHER]) for i in range(self.rows)]
        if self.rows <= FEW and not self.tile.unrolled and not self.form:
            self._open_streams()
        for place, x in zip(places, self._walk(sums), strict=True):
            self.store(x, place, aligned)
        self("ret void")
        given = _given(tile, self.form, declared=True)
        head = f"define internal void @{tile.name}{self.form}.{self.rows}({given}) noinline nounwind {{"
        return "\n".join([head, *self.lines, "}"])

    def _walk(self, sums: list[str]) -> list[str]:
        """Go through k; the sums after that."""
        state = [*self.places, *sums]
        if self.unrolled:
            rest = self.let(f"srem i64 %first, {_UNROLLED}")
            state = self._guarded("main", rest, _UNROLLED, state)
            state = self._guarded("last", "0", 1, state)
        else:
            state = self._loop("main", "0", 1, state)
        return state[len(self.places) :]

    def _open_streams(self) -> None:
        """What comes behind the panel, in as many equal parts as a turn of the loop reads lines.

        A pointer serves three parts, which differ by what an address can add: more would not fit in registers.
        """
        count = (_UNROLLED if self.unrolled else 1) * self.tile.row_bytes // _LINE
        part = self.let(f"mul i64 {self.let('sub i64 0, %first')}, {self.tile.row_bytes // count}")
        self.parts = ["0", part, self.let(f"shl i64 {part}, 1")]
        for first in range(0, count, len(self.parts)):
            self.places.append(self.at("%b", self.let(f"mul i64 {part}, {count + first}")))
        self.streams = count

    def _guarded(self, name: str, end: str, steps: int, before: list[str]) -> list[str]:
        """A loop that may have nothing to do."""
        start = self.block
        some = self.let(f"icmp ne i64 {before[0]}, {end}")
        self(f"br i1 {some}, label %{name}.some, label %{name}.none")
        self.label(f"{name}.some")
        after = self._loop(name, end, steps, before)
        inside = self.block
        self(f"br label %{name}.none")
        self.label(f"{name}.none")
        return [
            self.let(f"phi {kind} [ {a}, %{start} ], [ {b}, %{inside} ]")
            for kind, a, b in zip(self._kinds(), before, after, strict=True)
        ]

    def _kinds(self) -> list[str]:
        return ["i64", *["ptr"] * (len(self.places) - 1), *[self.kind] * len(self.cells)]

    def _loop(self, name: str, end: str, steps: int, before: list[str]) -> list[str]:
        """So many steps along k in each turn. What it is given and what it gives: the places, the sums."""
        return self._repeated(name, end, before, lambda state: self._steps(steps, state))

    def _repeated(self, name: str, end: str, before: list[str], turn: Callable[[list[str]], list[str]]) -> list[str]:
        """Turn after turn, until k is at its end."""
        start = self.block
        self(f"br label %{name}")
        self.label(name)
        head = len(self.lines)
        inside = [self.fresh("%s") for _ in before]
        after = turn(inside)
        last = self.block
        more = self.let(f"icmp ne i64 {after[0]}, {end}")
        self(f"br i1 {more}, label %{name}, label %{name}.end")
        self.lines[head:head] = [
            f"  {x} = phi {kind} [ {a}, %{start} ], [ {b}, %{last} ]"
            for x, kind, a, b in zip(inside, self._kinds(), before, after, strict=True)
        ]
        self.label(f"{name}.end")
        return after

    def _steps(self, steps: int, state: list[str]) -> list[str]:
        tile, aligned = self.tile, 4 * self.lanes
        at, b, *further = state[: len(self.places)]
        held = dict(zip(self.cells, state[len(self.places) :], strict=True))
        places = self._rows_at(at, further)
        further = self._fetch(steps, at, b, further)
        whole = [self.load(place) for place in places] if tile.by_lane and steps > 1 else []
        for k in range(steps):
            columns = [self.load(self.at(b, k * tile.row_bytes + j * aligned), aligned) for j in range(tile.vectors)]
            for i, place in enumerate(places):
                sums = [held[i, j] for j in range(tile.vectors)]
                if whole:
                    sums = self._added(self.lane(whole[i], k), columns, sums)
                else:
                    sums = self._added_from(i, self.at(place, 4 * k), columns, sums)
                held |= {(i, j): x for j, x in enumerate(sums)}
        return [self.let(f"add i64 {at}, {steps}"), self.at(b, steps * tile.row_bytes), *further, *held.values()]

    def _rows_at(self, at: str, further: list[str]) -> list[str]:
        """Where each row has the k that the turn begins with."""
        return [self.let(f"getelementptr float, ptr {base}, i64 {at}") for base in self.bases]

    def _added(self, x: str, columns: list[str], sums: list[str]) -> list[str]:
        return [self.intrinsic("fmuladd", x, column, total) for column, total in zip(columns, sums, strict=True)]

    def _added_from(self, i: int, place: str, columns: list[str], sums: list[str]) -> list[str]:
        """The sums of row i with the products of the number at a place."""
        return self._added(self.spread_from(place), columns, sums)

    def _fetch(self, steps: int, at: str, b: str, further: list[str]) -> list[str]:
        """Ask for what a later turn reads; what else moves, after this turn."""
        if steps == 1 and self.unrolled:
            return further
        for stream in range(self.streams):
            self._ask(self.at(further[stream // len(self.parts)], self.parts[stream % len(self.parts)]))
        if not self.streams:
            for line in range(0, steps * self.tile.row_bytes, _LINE):
                self._ask(self.at(b, AHEAD * self.lanes + line))
        return [self._moved(place, _LINE) for place in further]

    def _moved(self, place: str, by: int) -> str:
        """A pointer that comes out of nothing: it is not made of a base and an index, which costs an instruction."""
        return self.let(f'call ptr asm "", "=r,0"(ptr {self.at(place, by)})')

    def _ask(self, place: str, cache: int = 1) -> None:
        self.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 {4 - cache}, i32 1)")


class _Paced(_Rows):
    """The function for rows whose panel is near already: it asks for a line of what is next in each turn, and for rows
    that will be written one by one: all at once, they would keep out what it reads itself.

    A core that is shared with others gets instructions slowly, so it does with few of them: every row has a pointer of
    its own, from which every second row is multiplied as it is loaded.
    """

    form = PACED

    def __init__(self, tile: Tile, rows: int) -> None:
        super().__init__(tile, rows)
        self.unrolled = True

    def _walk(self, sums: list[str]) -> list[str]:
        self.places += ["%next", "%c", *(self.let(f"getelementptr float, ptr {end}, i64 %first") for end in self.bases)]
        return super()._walk(sums)

    def _rows_at(self, at: str, further: list[str]) -> list[str]:
        return further[2:]

    def _loop(self, name: str, end: str, steps: int, before: list[str]) -> list[str]:
        """The turns in as many pieces as there are rows, or fewer."""
        inner = super()._loop
        if steps == 1:
            return inner(name, end, steps, before)
        c = self.places.index("%c")
        left, piece = self.let(f"sub i64 {end}, {before[0]}"), self.rows * steps
        each = self.let(f"sdiv i64 {self.let(f'add i64 {left}, {piece - 1}')}, {piece}")
        each = self.let(f"mul i64 {each}, {steps}")

        def turn(state: list[str]) -> list[str]:
            for line in range(0, self.tile.row_bytes, _LINE):
                self.prefetch(self.at(state[c], line), to_write=True)
            self.use("declare i64 @llvm.smin.i64(i64, i64)")
            further = self.let(f"add i64 {state[0]}, {each}")
            state = inner(name, self.let(f"call i64 @llvm.smin.i64(i64 {further}, i64 {end})"), steps, state)
            state[c] = self.at(state[c], "%target")
            return state

        return self._repeated(f"{name}.piece", end, before, turn)

    def _added_from(self, i: int, place: str, columns: list[str], sums: list[str]) -> list[str]:
        if not self.spreads_in_place or i % 2 == 0:
            return super()._added_from(i, place, columns, sums)
        return [self.fma_spread(x, place, total) for x, total in zip(columns, sums, strict=True)]

    def _fetch(self, steps: int, at: str, b: str, further: list[str]) -> list[str]:
        line, c, *rows = further
        if steps > 1:
            self._ask(line, cache=2)
            line = self.at(line, _LINE)
        # An index for each would cost an instruction, too.
        return [line, c, *(self.fixed(self.at(row, 4 * steps)) for row in rows)]
