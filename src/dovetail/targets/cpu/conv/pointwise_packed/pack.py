"""Packing of what some pixels see for register tiles of a few pixels: channel by channel, pixels side by side."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Int, Mask, Ptr, Vec
from dovetail.codegen.llvm.kernel import one_of
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.register_tile import RegisterTile

CONTIGUOUS, SECOND, STRIDED = 0, 1, 2
"""How pixels are in memory: contiguous, every second one of a row, or anywhere."""
_X, _ONTO, _WHERE, _NEXT = Ptr("%x"), Ptr("%onto"), Ptr("%where"), Ptr("%next")
_STEP, _CHANNELS, _COUNT = I64("%channel_step"), I64("%channels"), I64("%count")


def tile_step(t: VectorBuilder, tile: RegisterTile, channels: I64) -> I64:
    """Bytes from what one register tile sees to the next: no power of two, so that they do not evict each other."""
    return t.add(t.mul(t.ceil_div(t.mul(channels, tile.pixels), 16), 64), BLOCKS.packed.apart)


def packed_bytes(tile: RegisterTile, channels: int) -> int:
    """The same, where channels are known."""
    return -(-channels * tile.pixels // 16) * 64 + BLOCKS.packed.apart


def pack_signature(tile: RegisterTile, form: str = "") -> Signature:
    """The function for one form, or the one that is told which by its last argument."""
    name = f"panel_pack.{tile.device.lanes}.{tile.pixels}"
    which = () if form else (Parameter("i64", "which"),)
    return Signature(
        f"{name}.{form}" if form else name,
        (
            Parameter("ptr", "x", "noalias readonly"), Parameter("ptr", "onto", "noalias"),
            Parameter("i64", "channel_step"), Parameter("i64", "channels"), Parameter("i64", "count"),
            Parameter("ptr", "where", "noalias readonly"), Parameter("ptr", "next"), *which,
        ),
    )  # fmt: skip


def pack_pixels(tile: RegisterTile) -> Function:
    """Pack what some pixels see, in one of the forms."""
    forms = {CONTIGUOUS: _contiguous(tile), SECOND: _second(tile), STRIDED: _strided(tile)}
    return one_of(pack_signature(tile).name, forms)


def _at_pixel(t: VectorBuilder, pixel: Int) -> Ptr:
    """Where a pixel sees the first channel."""
    return t.ptr_add(_X, t.load_i64(t.element(_WHERE, "i64", pixel)))


def _contiguous(tile: RegisterTile) -> Function:
    t = VectorBuilder(tile.device)
    size, step = 4 * tile.pixels, tile_step(t, tile, _CHANNELS)
    whole = t.sdiv(t.sdiv(_COUNT, tile.pixels), BLOCKS.packed.packed_together)
    with t.loop(0, whole) as number:
        first = t.mul(number, BLOCKS.packed.packed_together)
        source, target = _at_pixel(t, t.mul(first, tile.pixels)), t.ptr_add(_ONTO, t.mul(first, step))
        with t.loop(0, _CHANNELS) as channel:
            row, onto = t.ptr_add(source, t.mul(channel, _STEP)), t.ptr_add(target, t.mul(channel, size))
            _prefetch_row(t, row, BLOCKS.packed.packed_together * size)
            _prefetch_weights(t, number, channel, 2)
            for i in range(BLOCKS.packed.packed_together):
                _copy(t, tile.pixels, t.ptr_add(row, i * size), t.ptr_add(onto, t.mul(step, i)), None)
    with t.loop(t.mul(whole, BLOCKS.packed.packed_together), t.ceil_div(_COUNT, tile.pixels)) as number:
        begin = t.mul(number, tile.pixels)
        source, target = _at_pixel(t, begin), t.ptr_add(_ONTO, t.mul(number, step))
        left = t.sub(_COUNT, begin)
        masks = [t.lanes_within(first, left) for first in range(0, tile.pixels, t.lanes)]
        with t.loop(0, _CHANNELS) as channel:
            row, onto = t.ptr_add(source, t.mul(channel, _STEP)), t.ptr_add(target, t.mul(channel, size))
            _prefetch_row(t, row, size)
            _prefetch_weights(t, number, channel, 1)
            _copy(t, tile.pixels, row, onto, masks)
    return t.function(pack_signature(tile, "near"), linkage="internal")


def _second(tile: RegisterTile) -> Function:
    """Each register tile is in one row of pixels."""
    t = VectorBuilder(tile.device)
    lanes, size, step = t.lanes, 4 * tile.pixels, tile_step(t, tile, _CHANNELS)
    with t.loop(0, t.sdiv(_COUNT, tile.pixels)) as number:
        source, target = _at_pixel(t, t.mul(number, tile.pixels)), t.ptr_add(_ONTO, t.mul(number, step))
        with t.loop(0, _CHANNELS) as channel:
            row, onto = t.ptr_add(source, t.mul(channel, _STEP)), t.ptr_add(target, t.mul(channel, size))
            _prefetch_row(t, row, 2 * size - 4)
            _prefetch_weights(t, number, channel, 1)
            for first in range(0, tile.pixels, lanes):
                some = min(lanes, tile.pixels - first)
                counts = [min(lanes, 2 * some - 1), max(0, 2 * some - 1 - lanes)]
                low, high = (
                    t.load_masked(t.first_lanes(n), t.ptr_add(row, 4 * (2 * first + i * lanes))) if n else Vec("poison")
                    for i, n in enumerate(counts)
                )
                found = t.shuffle(low, high, range(0, 2 * lanes, 2))
                t.store_masked(t.first_lanes(some), found, t.ptr_add(onto, 4 * first))
    return t.function(pack_signature(tile, "second"), linkage="internal")


def _strided(tile: RegisterTile) -> Function:
    t = VectorBuilder(tile.device)
    size, step = 4 * tile.pixels, tile_step(t, tile, _CHANNELS)
    with t.loop(0, _COUNT) as pixel:
        source = _at_pixel(t, pixel)
        number, own = t.sdiv(pixel, tile.pixels), t.srem(pixel, tile.pixels)
        target = t.ptr_add(_ONTO, t.add(t.mul(number, step), t.mul(own, 4)))
        with t.loop(0, _CHANNELS) as channel:
            seen = t.load_f32(t.ptr_add(source, t.mul(channel, _STEP)))
            t.store_f32(seen, t.ptr_add(target, t.mul(channel, size)))
    return t.function(pack_signature(tile, "apart"), linkage="internal")


def _prefetch_row(t: VectorBuilder, row: Ptr, size: int) -> None:
    """Prefetch some bytes of a row some channels on."""
    ahead = t.ptr_add(row, t.mul(_STEP, BLOCKS.packed.ahead))
    for line in range(0, size, t.device.caches.line):
        t.prefetch(t.ptr_add(ahead, line))


def _prefetch_weights(t: VectorBuilder, number: I64, channel: I64, lines: int) -> None:
    """Prefetch some lines of the weights that come first."""
    at = t.ptr_add(_NEXT, t.mul(t.add(t.mul(number, _CHANNELS), channel), lines * t.device.caches.line))
    for line in range(lines):
        t.prefetch(t.ptr_add(at, line * t.device.caches.line), level=2)


def _copy(t: VectorBuilder, pixels: int, source: Ptr, target: Ptr, masks: Sequence[Mask] | None) -> None:
    """The pixels of a register tile, or those of masks and zeros."""
    for i, first in enumerate(range(0, pixels, t.lanes)):
        own = t.first_lanes(min(t.lanes, pixels - first))
        some = own if masks is None else t.mask_and(masks[i], own)
        t.store_masked(own, t.load_masked(some, t.ptr_add(source, 4 * first)), t.ptr_add(target, 4 * first))
