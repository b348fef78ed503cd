"""The register tile of convolutions by a window of one pixel: a few places times a panel of filters, as LLVM's text.

It goes through many channels at once, and asks for what is wanted after it as it goes: weights of the next panel, and
lines where its results will go. Nothing waits for them, so that the loop does little but multiply.
"""

from __future__ import annotations

from dovetail.codegen.llvm.module import Written
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.broadcast_tile import write_sums
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.patch import BlockText

UNROLLED = 4
"""Channels in a turn of the loop."""
_LINE = 64
_FROM_MEMORY = 16
"""Lanes of vectors that are multiplied as they are loaded by the instruction that is written here: those of AVX-512."""


def forms_of(vectors: CpuDevice) -> tuple[tuple[int, int], ...]:
    """Register tiles: vectors of filters, and places."""
    # Other machines are not measured yet.
    return ((4, 7), (3, 9), (2, 14)) if vectors.lanes == _FROM_MEMORY else ()


def tile_name(square: Square, lines: int) -> str:
    """What the function is called: everything that its text depends on."""
    marks = square.epilogue.marks.replace(".relu", "")
    return f"@panel_tile.{square.vectors.lanes}.{square.filters}.{square.places}.{lines}{marks}"


def asked_rows(square: Square) -> int:
    """Filters whose results a register tile asks for: half of them where two tiles share a line."""
    return square.block if 8 * square.places > _LINE else square.block // 2


def tile_text(square: Square, lines: int) -> Written:
    """The function: sums over some channels, [place][filter]. The `first` of them begin with the bias and ask for a
    line where results go and where the residual lies, filter by filter; later ones are added to what is there. So many
    lines of what is `next` are asked for in each turn."""
    t = BlockText(square.vectors.lanes)
    wide = 4 * t.lanes
    starts = ["zeroinitializer"] * square.filters
    if square.epilogue.bias:
        given = [t.load(t.at("%bias", wide * i)) for i in range(square.filters)]
        starts = [t.let(f"select i1 %first, {t.kind} {x}, {t.kind} zeroinitializer") for x in given]
    sums = starts * square.places
    whole = t.times(t.quotient("%channels", UNROLLED), UNROLLED)
    early = t.chosen("%first", t.least(whole, UNROLLED * asked_rows(square)), 0)
    places = ["%w", "%x", "%next", "%y", *(["%r"] if square.epilogue.residual else [])]
    walk = _Walk(t, square, lines)
    places, sums = walk("early", "0", early, UNROLLED, places, sums)
    places, sums = walk("main", early, whole, UNROLLED, places[:3], sums)
    _, sums = walk("last", whole, "%channels", 1, places[:2], sums)
    write_sums(t, sums)
    header = (
        f"void {tile_name(square, lines)}(ptr noalias readonly %w, ptr noalias readonly %x, i64 %channels, "
        "ptr noalias readonly %bias, ptr noalias %sums, i1 %first, ptr %next, ptr %y, ptr %r, i64 %area) "
        "noinline nounwind"
    )
    return t.function(header), tuple(t.used)


class _Walk:
    """Loops over channels."""

    def __init__(self, t: BlockText, square: Square, lines: int) -> None:
        self.t, self.square, self.lines = t, square, lines

    def __call__(
        self, name: str, first: str, end: str, steps: int, places: list[str], sums: list[str]
    ) -> tuple[list[str], list[str]]:
        """So many channels in each turn. Pointers are to weights, places, and what is asked for; they move on."""
        t = self.t
        before = [*places, *sums]
        kinds = ["ptr"] * len(places) + [t.kind] * len(sums)
        start, head, after = t.block, f"{name}.turn", f"{name}.after"
        some = t.let(f"icmp slt i64 {first}, {end}")
        t(f"br i1 {some}, label %{head}, label %{after}")
        t.label(head)
        at = len(t.lines)
        c, following = t.fresh("%c"), t.fresh("%c.next")
        inside = [t.fresh("%held") for _ in before]
        (w, x, *asked), held = inside[: len(places)], inside[len(places) :]
        asked = self._ask(asked)
        wide, narrow = 4 * self.square.block, 4 * self.square.places
        for step in range(steps):
            held = self._summed(t.at(w, step * wide), t.at(x, step * narrow), held)
        found = [t.at(w, steps * wide), t.at(x, steps * narrow), *asked, *held]
        t(f"{following} = add nuw nsw i64 {c}, {steps}")
        more = t.let(f"icmp slt i64 {following}, {end}")
        t(f"br i1 {more}, label %{head}, label %{after}")
        t.lines[at:at] = [f"  {c} = phi i64 [ {first}, %{start} ], [ {following}, %{head} ]"] + [
            f"  {one} = phi {kind} [ {a}, %{start} ], [ {b}, %{head} ]"
            for one, kind, a, b in zip(inside, kinds, before, found, strict=True)
        ]
        t.label(after)
        joined = [
            t.let(f"phi {kind} [ {a}, %{start} ], [ {b}, %{head} ]")
            for kind, a, b in zip(kinds, before, found, strict=True)
        ]
        return joined[: len(places)], joined[len(places) :]

    def _ask(self, asked: list[str]) -> list[str]:
        """Ask for lines; what is asked for in the next turn."""
        t = self.t
        t.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        found: list[str] = []
        for place in asked[:1]:
            for line in range(self.lines):
                t(f"call void @llvm.prefetch.p0(ptr {t.at(place, line * _LINE)}, i32 0, i32 2, i32 1)")
            found.append(t.at(place, self.lines * _LINE))
        for writes, place in zip((1, 0), asked[1:], strict=False):
            t(f"call void @llvm.prefetch.p0(ptr {place}, i32 {writes}, i32 3, i32 1)")
            found.append(t.at(place, "%area"))
        return found

    def _summed(self, w: str, x: str, sums: list[str]) -> list[str]:
        """The sums with one channel more. Where registers are short, the last weights are read as they are used."""
        t, square = self.t, self.square
        wide, filters = 4 * t.lanes, square.filters
        short = t.lanes == _FROM_MEMORY and square.vectors.registers - square.places * filters <= filters
        weights = [t.load(t.at(w, wide * i)) for i in range(filters - short)]
        found: list[str] = []
        for place in range(square.places):
            seen = t.spread_from(t.at(x, 4 * place))
            own = sums[place * filters : (place + 1) * filters]
            found += [t.fma(weight, seen, total) for weight, total in zip(weights, own, strict=False)]
            if short:
                multiply = 'asm "vfmadd231ps $2, $1, $0", "=v,v,*m,0"'
                last = t.at(w, wide * (filters - 1))
                given = f"{t.kind} {seen}, ptr elementtype({t.kind}) {last}, {t.kind} {own[-1]}"
                found.append(t.let(f"call {t.kind} {multiply}({given})"))
        return found
