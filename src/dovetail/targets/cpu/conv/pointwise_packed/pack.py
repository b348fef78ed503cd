"""What some places of an image see, laid out for register tiles of a few places: channel by channel, as LLVM's text."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.module import Written, one_of
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.patch import BlockText

TOGETHER = 7
"""Register tiles whose places are laid out in one turn."""
AHEAD = 6
"""How many channels before it is copied a row is asked for."""
APART = 192
"""Bytes between what two register tiles see."""
FORMS = {"near": 0, "second": 1, "apart": 2}
"""How places lie: side by side, every second one of a row, or anywhere."""
_LINE = 64


def tile_step(t: BlockText, square: Square) -> str:
    """Bytes from what one register tile sees to the next: no power of two, so that they do not drive each other out."""
    return t.plus(t.times(t.rounded_up(t.times("%channels", square.places), 16), 64), APART)


def packed_bytes(square: Square, channels: int) -> int:
    """The same, where channels are known."""
    return -(-channels * square.places // 16) * 64 + APART


def pack_name(square: Square) -> str:
    """What the function is called: everything that its text depends on. It is told the form behind all else."""
    return f"@panel_pack.{square.vectors.lanes}.{square.places}"


def pack_text(square: Square) -> Written:
    """The function."""
    forms = zip(FORMS.values(), (_near(square), _second(square), _apart(square)), strict=True)
    return one_of(pack_name(square), dict(forms))


def _function(t: BlockText, square: Square, form: str) -> Written:
    header = (
        f"internal void {pack_name(square)}.{form}(ptr noalias readonly %x, ptr noalias %onto, i64 %channel_step, "
        "i64 %channels, i64 %count, ptr noalias readonly %where, ptr %next) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _at_place(t: BlockText, place: str) -> str:
    """Where a place sees the first channel."""
    return t.at("%x", t.let(f"load i64, ptr {t.let(f'getelementptr i64, ptr %where, i64 {place}')}, align 8"))


def _near(square: Square) -> Written:
    t = BlockText(square.vectors.lanes)
    size, step = 4 * square.places, tile_step(t, square)
    whole = t.quotient(t.quotient("%count", square.places), TOGETHER)
    with t.loop("0", whole) as number:
        first = t.times(number, TOGETHER)
        source, target = _at_place(t, t.times(first, square.places)), t.at("%onto", t.times(first, step))
        with t.loop("0", "%channels") as channel:
            row, onto = t.at(source, t.times(channel, "%channel_step")), t.at(target, t.times(channel, size))
            _ask(t, row, TOGETHER * size)
            _ask_next(t, number, channel, 2)
            for i in range(TOGETHER):
                _copy(t, square.places, t.at(row, i * size), t.at(onto, t.times(step, i)), None)
    with t.loop(t.times(whole, TOGETHER), t.rounded_up("%count", square.places)) as tile:
        begin = t.times(tile, square.places)
        source, target = _at_place(t, begin), t.at("%onto", t.times(tile, step))
        masks = _masks(t, square.places, t.minus("%count", begin))
        with t.loop("0", "%channels") as channel:
            row, onto = t.at(source, t.times(channel, "%channel_step")), t.at(target, t.times(channel, size))
            _ask(t, row, size)
            _ask_next(t, tile, channel, 1)
            _copy(t, square.places, row, onto, masks)
    return _function(t, square, "near")


def _second(square: Square) -> Written:
    """Each register tile lies in one row of places."""
    t = BlockText(square.vectors.lanes)
    lanes, size, step = t.lanes, 4 * square.places, tile_step(t, square)
    with t.loop("0", t.quotient("%count", square.places)) as tile:
        source, target = _at_place(t, t.times(tile, square.places)), t.at("%onto", t.times(tile, step))
        with t.loop("0", "%channels") as channel:
            row, onto = t.at(source, t.times(channel, "%channel_step")), t.at(target, t.times(channel, size))
            _ask(t, row, 2 * size - 4)
            _ask_next(t, tile, channel, 1)
            for first in range(0, square.places, lanes):
                some = min(lanes, square.places - first)
                wide = [min(lanes, 2 * some - 1), max(0, 2 * some - 1 - lanes)]
                low, high = (
                    t.load_where(t.first_lanes(n), t.at(row, 4 * (2 * first + i * lanes))) if n else "poison"
                    for i, n in enumerate(wide)
                )
                found = t.shuffle(low, high, range(0, 2 * lanes, 2))
                t.store_where(t.first_lanes(some), found, t.at(onto, 4 * first))
    return _function(t, square, "second")


def _apart(square: Square) -> Written:
    t = BlockText(square.vectors.lanes)
    size, step = 4 * square.places, tile_step(t, square)
    with t.loop("0", "%count") as place:
        source = _at_place(t, place)
        tile, own = t.quotient(place, square.places), t.rest(place, square.places)
        target = t.at("%onto", t.plus(t.times(tile, step), t.times(own, 4)))
        with t.loop("0", "%channels") as channel:
            seen = t.let(f"load float, ptr {t.at(source, t.times(channel, '%channel_step'))}, align 4")
            t(f"store float {seen}, ptr {t.at(target, t.times(channel, size))}, align 4")
    return _function(t, square, "apart")


def _ask(t: BlockText, row: str, size: int) -> None:
    """Ask for so many bytes of a row some channels on."""
    far = t.at(row, t.times("%channel_step", AHEAD))
    for line in range(0, size, _LINE):
        t.prefetch(t.at(far, line))


def _ask_next(t: BlockText, number: str, channel: str, lines: int) -> None:
    """Ask for some lines of the weights that come first."""
    at = t.at("%next", t.times(t.plus(t.times(number, "%channels"), channel), lines * _LINE))
    for line in range(lines):
        t(f"call void @llvm.prefetch.p0(ptr {t.at(at, line * _LINE)}, i32 0, i32 2, i32 1)")


def _masks(t: BlockText, places: int, count: str) -> list[str]:
    """Which lanes of a register tile's vectors have a place, where there are so many."""
    return [t.lanes_within(str(first), count) for first in range(0, places, t.lanes)]


def _copy(t: BlockText, places: int, source: str, target: str, masks: Sequence[str] | None) -> None:
    """The places of a register tile, or those of masks and zeros."""
    for i, first in enumerate(range(0, places, t.lanes)):
        own = t.first_lanes(min(t.lanes, places - first))
        some = own if masks is None else t.let(f"and {t.truth} {masks[i]}, {own}")
        t.store_where(own, t.load_where(some, t.at(source, 4 * first)), t.at(target, 4 * first))
