"""Attend: keys and values of a head laid out in the worker's memory, where they lie so that caches cannot hold them.

A cache has a few places for all lines of which the addresses are equal in their last bits. Rows that lie a multiple of
a large power of two apart meet in few places, and push each other out before they are read again. What is laid out
stays for the tiles behind that read the same head.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import TYPE_CHECKING

from dovetail.ir.dim import Size
from dovetail.targets.cpu.attention.parts import BLOCK, make_rows

if TYPE_CHECKING:
    from dovetail.targets.cpu.attention.driver import Attend, Tile

MOST = 1 << 20
"""Bytes of keys and values that are laid out; those behind are read where they lie."""
_ROOM = 4096
"""Lines as far apart as this meet in one place of the first cache, everywhere."""
_WAYS = 8
"""How many lines one place holds, at least."""
KEPT = 64
"""Bytes in front of a worker's memory that say what is laid out: the number of a head, and how many of its rows."""


def crowded(stride: Size, width: int) -> bool:
    """Whether rows of f32 that lie so far apart push each other out of the first cache, though a block would fit."""
    if not isinstance(stride, int) or stride == 4 * width:
        return False
    return _ROOM // gcd(_ROOM, stride) * _WAYS < BLOCK


def laid_out(asked: Attend) -> dict[str, int]:
    """Which of keys and values are laid out, and how wide their rows are."""
    if asked.is_few or asked.stored != "float" or (asked.blocks == 1 and asked.groups == 1):
        return {}
    # Keys that are rotated lie in the worker's memory already.
    widths = {"v": asked.dv} if asked.rotated is not None else {"k": asked.d, "v": asked.dv}
    strides = {n: asked.strides[n][-2:] for n in widths}
    return {n: w for n, w in widths.items() if strides[n][1] == 4 and crowded(strides[n][0], w)}


class Near:
    """The rows of one head that are laid out while a tile runs."""

    def __init__(self, t: Tile) -> None:
        self.t = t
        self.widths = laid_out(t.asked)
        each = 4 * sum(self.widths.values())
        keys = t.asked.keys
        self.most = 0
        if each:
            self.most = min(MOST // each, keys) if isinstance(keys, int) else MOST // each
        self.bytes = -(-self.most * each // 64) * 64
        self.places: dict[str, str] = {}
        self.rows = "0"

    def lay(self, head: str, at: Mapping[str, str], end: str) -> None:
        """The rows of a head up to `end`, or as many as there is room for, unless they are there."""
        if not self.widths:
            return
        t, strides = self.t, self.t.asked.strides
        start = t.asked.room
        for name, width in self.widths.items():
            self.places[name] = t.at("%scratch", start)
            start += self.most * 4 * width
        self.rows = t.smaller(end, str(self.most))
        counted = t.at("%scratch", 8)
        is_same = t.let(f"icmp eq i64 {t.let('load i64, ptr %scratch, align 8')}, {head}")
        count = t.let(f"load i64, ptr {counted}, align 8")
        done = t.let(f"select i1 {is_same}, i64 {count}, i64 0")
        with t.when(t.let(f"icmp slt i64 {done}, {self.rows}")):
            t(f"store i64 {head}, ptr %scratch, align 8")
            t(f"store i64 {self.rows}, ptr {counted}, align 8")
            missing = t.let(f"sub i64 {self.rows}, {done}")
            for name, width in self.widths.items():
                stride = strides[name][-2]
                x = t.at(at[name], t.times(done, stride))
                to = t.at(self.places[name], t.times(done, 4 * width))
                part = make_rows(t.asked.vectors, width)
                t.call(part, f"ptr {x}", f"i64 {t.size(stride)}", f"i64 {missing}", f"ptr {to}")

    def block(self, name: str, x: str, stride: str, first: str, count: str) -> tuple[str, str]:
        """Where a block of keys or values lies and how far apart its rows are: here, or else as it is said."""
        if name not in self.widths:
            return x, stride
        t, width = self.t, 4 * self.widths[name]
        is_here = t.let(f"icmp sle i64 {t.let(f'add i64 {first}, {count}')}, {self.rows}")
        here = t.at(self.places[name], t.times(first, width))
        place = t.let(f"select i1 {is_here}, ptr {here}, ptr {x}")
        return place, t.let(f"select i1 {is_here}, i64 {width}, i64 {stride}")


__all__ = ["KEPT", "Near", "crowded", "laid_out"]
