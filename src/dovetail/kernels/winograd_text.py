"""Convolution of 3 by 3 by Winograd's scheme, as LLVM's text: 36 multiplications for 4 by 4 results instead of 144.

Patches of 6 by 6 pixels, 4 apart, are transformed to 36 numbers each; for each of the 36 there is one product of
matrices, filters by channels by patches; what it gives is transformed back. Vectors run along patches in all of it.
The polynomials behind it are taken at 0, ±3/4, ±3/2 and infinity, which loses least in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.conv_block import (
    HEAD,
    KERNEL,
    WINDOW,
    BlockText,
    Code,
    Written,
    gather_text,
    write_layout,
    write_offsets,
)
from dovetail.kernels.conv_dealt import dealt_text, write_dealt
from dovetail.kernels.conv_epilogue import AT_ONCE, Epilogue, activated_wholly, finish_text
from dovetail.kernels.conv_text import Shape, tile_texts, write_columns

NEAR, FAR = 0.75, 1.5
"""The points of the scheme beside 0 and infinity, each with both signs."""
OUT, PATCH = 4, 6
"""Results of a patch along an axis, and pixels that they see."""
SPOTS = PATCH * PATCH
SIZES = (
    *WINDOW, "channels", "filters", "image_step", "channel_step", "parts", "part", "result_height", "result_width",
)  # fmt: skip
"""The sizes that the code is given, in their order. The window is a patch, its places are patches."""


def transformed_weights(w: Array, points: Sequence[float] = (0.0, NEAR, -NEAR, FAR, -FAR)) -> Array:
    """[m, c, 3, 3] as [m, c, 36]; with other points than these and infinity, the square of how many there are."""
    rows = [[p**j / np.prod([p - q for q in points if q != p]) for j in range(3)] for p in points]
    g = np.array([*rows, [0.0, 0.0, 1.0]])
    return np.einsum("ij,mcjk,lk->mcil", g, w.astype(np.float64), g).reshape((*w.shape[:2], len(g) ** 2))


def _into(t: BlockText, d: Sequence[str]) -> list[str]:
    """Six pixels along an axis, transformed."""
    near, far = NEAR**2, FAR**2
    whole, middle = t.number(near * far), t.number(-near - far)
    found = [t.fma(whole, d[0], t.fma(middle, d[2], d[4]))]
    for point, other in ((NEAR, far), (FAR, near)):
        even = t.fma(t.number(-other), d[2], d[4])
        odd = t.fma(t.number(-other), d[1], d[3])
        found += [t.fma(t.number(point), odd, even), t.fma(t.number(-point), odd, even)]
    return [*found, t.fma(whole, d[1], t.fma(middle, d[3], d[5]))]


def _back(t: BlockText, m: Sequence[str]) -> list[str]:
    """Six sums along an axis, transformed to four results."""
    even = [t.add(m[1], m[2]), t.add(m[3], m[4])]
    odd = [t.sub(m[1], m[2]), t.sub(m[3], m[4])]
    found = [t.add(m[0], t.add(even[0], even[1]))]
    for power in (1, 2, 3):
        near, far = odd if power % 2 else even
        found.append(t.fma(t.number(NEAR**power), near, t.mul(t.number(FAR**power), far)))
    return [*found[:3], t.add(found[3], m[5])]


Transform: TypeAlias = Callable[[BlockText, Sequence[str]], list[str]]
"""Numbers along an axis to other numbers along it."""


def along_both(t: BlockText, transform: Transform, values: Sequence[Sequence[str]]) -> list[str]:
    """A transform of a square along one axis, then along the other; row by row."""
    columns = [transform(t, column) for column in zip(*values, strict=True)]
    return [x for row in zip(*columns, strict=True) for x in transform(t, row)]


def winograd_text(shape: Shape) -> Code:
    """The kernel; `shape` says what is done to results."""
    own = [
        finish_text(shape.vectors.lanes, Epilogue(shape.epilogue.act)),
        _enter(shape),
        _leave(shape),
        _place(shape),
        _kernel(shape),
    ]
    return Code.of(
        "winograd", own, [gather_text(shape.vectors), dealt_text(shape.vectors, OUT), *tile_texts(_plain(shape))]
    )


def _plain(shape: Shape) -> Shape:
    """The register tiles, which leave bias and activation to the transform back."""
    return Shape(shape.vectors, shape.rows, shape.columns, Epilogue(), True)


def _enter(shape: Shape) -> Written:
    """Transform the patches of one channel, row by row; each writes a whole vector, and the next one over its end."""
    t = BlockText(shape.vectors.lanes)
    with t.loop("0", "%rows") as row, t.steps("0", "%columns", t.lanes) as column:
        here = t.at("%seen", t.times(t.plus(t.times(row, "%pitch"), column), 4))
        there = t.at("%onto", t.times(t.plus(t.times(row, "%columns"), column), 4))
        pixels: list[list[str]] = []
        for i in range(PATCH):
            offsets = [t.let(f"load i64, ptr {t.at('%offsets', 8 * (PATCH * i + j))}, align 8") for j in range(PATCH)]
            pixels.append([t.load(t.at(here, offset)) for offset in offsets])
        for spot, x in enumerate(along_both(t, _into, pixels)):
            t.store(x, t.at(there, t.times("%spot_step", spot)))
    header = (
        "internal void @kernel.enter(ptr noalias readonly %seen, ptr noalias readonly %offsets, ptr noalias %onto, "
        "i64 %spot_step, i64 %rows, i64 %columns, i64 %pitch) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _leave(shape: Shape) -> Written:
    """Transform the sums of one filter back, a vector of patches at a time."""
    t = BlockText(shape.vectors.lanes)
    epilogue = shape.epilogue.before_residual
    bias = t.spread_from("%bias") if epilogue.bias else ""
    with t.steps("0", "%count", t.lanes) as patch:
        by = t.times(patch, 4)
        sums = [
            [t.load(t.at("%sums", t.plus(t.times("%spot_step", PATCH * i + j), by))) for j in range(PATCH)]
            for i in range(PATCH)
        ]
        for spot, x in enumerate(along_both(t, _back, sums)):
            whole = activated_wholly(t, epilogue.act, t.add(x, bias) if epilogue.bias else x)
            t.store(whole, t.at("%onto", t.plus(t.times("%result_step", spot), by)))
    header = (
        "internal void @kernel.leave(ptr noalias readonly %sums, i64 %spot_step, ptr noalias %onto, i64 %result_step, "
        "ptr noalias readonly %bias, i64 %count) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _place(shape: Shape) -> Written:
    """Put one row of results into its place: what four vectors have of each patch comes side by side."""
    t = BlockText(shape.vectors.lanes)
    lanes = t.lanes
    low = [i // 2 + (lanes if i % 2 else 0) for i in range(lanes)]
    high = [i + lanes // 2 for i in low]
    with t.steps("0", "%count", OUT * lanes) as column:
        patch = t.quotient(column, OUT)
        parts = [t.load(t.at("%from", t.plus(t.times("%result_step", j), t.times(patch, 4)))) for j in range(OUT)]
        even = [t.shuffle(parts[0], parts[2], order) for order in (low, high)]
        odd = [t.shuffle(parts[1], parts[3], order) for order in (low, high)]
        merged = [t.shuffle(x, y, order) for x, y in zip(even, odd, strict=True) for order in (low, high)]
        for i, x in enumerate(merged):
            at = t.plus(column, i * lanes)
            some = t.let(f"icmp slt i64 {at}, %count")
            with t.when(some):
                mask, by = t.lanes_within(at, "%count"), t.times(at, 4)
                if shape.epilogue.residual:
                    x = t.add(x, t.load_where(mask, t.at("%r", by)))
                    x = activated_wholly(t, shape.epilogue.act, x)
                t.store_where(mask, x, t.at("%onto", by))
    header = (
        "internal void @kernel.place(ptr noalias readonly %from, i64 %result_step, ptr noalias readonly %r, "
        "ptr noalias %onto, i64 %count) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _kernel(shape: Shape) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(shape.vectors.lanes)
    lanes = t.lanes
    epilogue = shape.epilogue
    t.unpack(epilogue.pointers, (*SIZES, *epilogue.sizes(("r_image",))))
    t(f"%room = getelementptr i8, ptr %scratch, i64 {HEAD}")
    # Scratch holds offsets, what is seen of one channel, patches of all channels, sums and results of some filters.
    of = write_layout(t)
    most = t.times("%block_rows", "%block_columns")
    # A vector that begins inside may end behind.
    step = t.times(t.plus(t.rounded_up(most, lanes), 1), 4 * lanes)
    patches = t.at("%room", -(-8 * SPOTS // 64) * 64)
    # One vector more, so that what a patch becomes does not fall on one set of the first cache.
    spot_step = t.plus(t.times(step, "%channels"), 4 * lanes)
    sums = t.at(patches, t.times(spot_step, SPOTS))
    sums_step = t.times(step, shape.rows)
    results = t.at(sums, t.times(sums_step, SPOTS))
    seen = t.at(results, t.times(step, OUT * OUT))
    write_offsets(t, of, "%room")
    filter_tiles = t.rounded_up("%filters", shape.rows)
    area = t.times(t.times("%result_height", "%result_width"), 4)
    with t.loop("%begin", "%end") as tile:
        part, block = t.rest(tile, "%parts"), t.quotient(tile, "%parts")
        column_block, left = t.rest(block, "%column_blocks"), t.quotient(block, "%column_blocks")
        row_block, image = t.rest(left, "%row_blocks"), t.quotient(left, "%row_blocks")
        first_row, first_column = t.times(row_block, "%block_rows"), t.times(column_block, "%block_columns")
        rows = t.least("%block_rows", t.minus("%out_height", first_row))
        columns = t.least("%block_columns", t.minus("%out_width", first_column))
        count = t.times(rows, columns)
        fresh = t.let(f"icmp ne i64 {block}, {t.let('load i64, ptr %scratch, align 8')}")
        t(f"store i64 {block}, ptr %scratch, align 8")
        with t.when(fresh), t.loop("0", "%channels") as channel:
            source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(channel, "%channel_step"))
            write_dealt(t, of, OUT, source, seen, first_row, first_column)
            onto = t.at(patches, t.times(channel, step))
            t(f"call void @kernel.enter(ptr {seen}, ptr %room, ptr {onto}, i64 {spot_step}, i64 {rows}, "
              f"i64 {columns}, i64 {of.pitch})")  # fmt: skip
        stop = t.least(filter_tiles, t.times(t.plus(part, 1), "%part"))
        with t.loop(t.times(part, "%part"), stop) as filter_tile:
            with t.loop("0", str(SPOTS)) as spot:
                number = t.plus(t.times(filter_tile, SPOTS), spot)
                size = t.times("%channels", 4 * shape.rows)
                weights = t.at("%w", t.times(number, size))
                x, y = t.at(patches, t.times(spot, spot_step)), t.at(sums, t.times(spot, sums_step))
                given = f"i64 {step}, ptr %room, i64 1, i64 %channels"
                write_columns(t, _plain(shape), weights, size, x, given, y, f"i64 {step}, ptr %w", count)
            first = t.times(filter_tile, shape.rows)
            with t.loop("0", t.least(shape.rows, t.minus("%filters", first))) as row:
                number = t.plus(first, row)
                bias = t.at("%b", t.times(number, 4)) if epilogue.bias else "%w"
                t(f"call void @kernel.leave(ptr {t.at(sums, t.times(row, step))}, i64 {sums_step}, ptr {results}, "
                  f"i64 {step}, ptr {bias}, i64 {count})")  # fmt: skip
                if epilogue.act not in AT_ONCE and not epilogue.residual:
                    t(f"call void @kernel.finish(ptr {results}, i64 {t.times(t.quotient(step, 4), OUT * OUT)})")
                target = t.at("%y", t.times(t.plus(t.times(image, "%filters"), number), area))
                top, from_left = t.times(first_row, OUT), t.times(first_column, OUT)
                lines = t.least(t.times(rows, OUT), t.minus("%result_height", top))
                length = t.least(t.times(columns, OUT), t.minus("%result_width", from_left))
                with t.loop("0", lines) as line:
                    spots = t.times(t.times(t.rest(line, OUT), OUT), step)
                    here = t.at(results, t.plus(spots, t.times(t.times(t.quotient(line, OUT), columns), 4)))
                    corner = t.plus(t.times(t.plus(top, line), "%result_width"), from_left)
                    there = t.at(target, t.times(corner, 4))
                    beside = "%w"
                    if epilogue.residual:
                        own = t.plus(t.times(number, area), t.times(corner, 4))
                        beside = t.at(t.at("%r", t.times(image, "%r_image")), own)
                    t(f"call void @kernel.place(ptr {here}, i64 {step}, ptr {beside}, ptr {there}, i64 {length})")
                    if epilogue.act not in AT_ONCE and epilogue.residual:
                        t(f"call void @kernel.finish(ptr {there}, i64 {length})")
    return t.function(KERNEL), tuple(t.used)
