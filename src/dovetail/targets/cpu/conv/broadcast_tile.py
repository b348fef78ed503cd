"""The register tile of places that lie side by side: some vectors of filters and a few places, as LLVM's text.

A step has one pointer for all places; half of what they see is spread by the products that load it. Places may be the
patches of Winograd's scheme, whose channels lie equally far apart, or see the taps of a window, which are listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.codegen.llvm.module import Written, one_of
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.epilogue import Epilogue
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.patch import BlockText


def square_of(vectors: CpuDevice, filters: int, epilogue: Epilogue, point: bool) -> Square:
    """The register tile that wastes least lanes; `point` says whether steps lie equally far apart."""
    forms = ((2, 6),)
    if vectors.registers > 16:
        forms = ((2, 14), (3, 9)) if vectors.lanes == 16 else ((4, 6), (2, 12))
    squares = [Square(vectors, *form, epilogue, point) for form in forms]
    return min(squares, key=lambda square: -(-filters // square.block) * square.block)


def tiles_text(square: Square) -> Written:
    """Register tiles of every number of places, behind one function that is told how many."""
    return one_of(_name(square), {places: tile_text(square, places) for places in range(1, square.places + 1)})


def _name(square: Square) -> str:
    """What the function is called: everything that its text depends on."""
    return f"@places_tile.{square.vectors.lanes}.{square.filters}{'' if square.point else '.listed'}"


def tile_text(square: Square, places: int) -> Written:
    """The register tile: adds so many steps to sums that lie at `sums`, or to nothing. `%apart` is how far from each
    other steps lie, or where that is listed. In each step it asks for what is `next`, which comes without haste so."""
    t = BlockText(square.vectors.lanes)
    wide, filters = 4 * t.lanes, square.filters
    spots = range(filters * places)
    t("br label %step")
    t.label("step")
    t("%left = phi i64 [ %steps, %entry ], [ %less, %step ]")
    t("%w.here = phi ptr [ %w, %entry ], [ %w.next, %step ]")
    t("%x.here = phi ptr [ %x, %entry ], [ %x.next, %step ]")
    if not square.point:
        t("%moves = phi ptr [ %apart, %entry ], [ %moves.next, %step ]")
    t("%asked = phi ptr [ %next, %entry ], [ %asked.next, %step ]")
    at = len(t.lines)
    t.prefetch("%asked")
    weights = [t.load(t.at("%w.here", wide * i)) for i in range(filters)]
    sums: list[str] = []
    for j in range(places):
        place, own = t.at("%x.here", 4 * j), [f"%sum{filters * j + i}" for i in range(filters)]
        if j % 2 and t.spreads_in_place:
            sums += [t.fma_spread(w, place, total) for w, total in zip(weights, own, strict=True)]
        else:
            number = t.spread_from(place)
            sums += [t.fma(w, number, total) for w, total in zip(weights, own, strict=True)]
    t(f"%w.next = getelementptr i8, ptr %w.here, i64 {wide * filters}")
    if square.point:
        t("%x.next = getelementptr i8, ptr %x.here, i64 %apart")
    else:
        moved = t.at("%x.here", t.let("load i64, ptr %moves, align 8"))
        t(f"%x.next = getelementptr i8, ptr {t.fixed(moved) if t.spreads_in_place else moved}, i64 0")
        t("%moves.next = getelementptr i8, ptr %moves, i64 8")
    t("%asked.next = getelementptr i8, ptr %asked, i64 %pace")
    t("%less = add nsw i64 %left, -1")
    t(f"br i1 {t.let('icmp ne i64 %less, 0')}, label %step, label %end")
    t.lines[at:at] = [f"  %sum{i} = phi {t.kind} [ zeroinitializer, %entry ], [ {sums[i]}, %step ]" for i in spots]
    t.label("end")
    write_sums(t, sums)
    header = (
        f"internal void {_name(square)}.{places}(ptr noalias readonly %w, ptr noalias readonly %x, "
        f"{'i64' if square.point else 'ptr noalias readonly'} %apart, i64 %steps, ptr noalias %sums, i1 %first, "
        "ptr %next, i64 %pace) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def write_sums(t: BlockText, sums: Sequence[str]) -> None:
    """Instructions that store vectors at `sums` if they are the `first`, or else add them to what is there.

    A piece is summed by itself and then added: short sums that are added round less than a long one.
    """
    places = [t.at("%sums", 4 * t.lanes * i) for i in range(len(sums))]
    with t.when("%first"):
        for place, total in zip(places, sums, strict=True):
            t.store(total, place)
    with t.otherwise("%first"):
        for place, total in zip(places, sums, strict=True):
            t.store(t.add(t.load(place), total), place)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How places are cut into register tiles, as equal as they can be: how many, and how many places they have."""

    count: str
    narrow: str
    wider: str


def write_tiles(t: BlockText, square: Square, places: str) -> Tiles:
    """Instructions that cut so many places."""
    count = t.rounded_up(places, square.places)
    return Tiles(count, t.quotient(places, count), t.rest(places, count))


def write_begin(t: BlockText, of: Tiles, number: str) -> str:
    """The first place of a register tile."""
    return t.plus(t.times(number, of.narrow), t.least(number, of.wider))


def write_tile(
    t: BlockText, square: Square, of: Tiles, number: str, w: str, x: str, sums: str, given: str, first: str, size: str
) -> None:
    """Instructions of one register tile, whose places, and their sums, lie behind those of the ones before. Meanwhile
    it asks for its share of what lies so many bytes behind its weights, which is as large."""
    places = t.plus(of.narrow, t.let(f"zext i1 {t.let(f'icmp slt i64 {number}, {of.wider}')} to i64"))
    begin = write_begin(t, of, number)
    seen, onto = t.at(x, t.times(begin, 4)), t.at(sums, t.times(begin, 4 * square.block))
    pace = t.quotient(4 * square.block, of.count)
    share = t.at(t.at(w, size), t.times(t.quotient(size, of.count), number))
    rest = f"ptr {onto}, i1 {first}, ptr {share}, i64 {pace}, i64 {places}"
    t(f"call void {_name(square)}(ptr {w}, ptr {seen}, {given}, {rest})")
