"""Convolution as LLVM's text: one code for every size, stride, dilation and padding.

A tile is some output channels of a block of rows and columns of one image. What the block sees of the image is laid out
once, so that all rows of a block are one long run of columns; the few between two rows are computed and left out when
results are copied to their places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail.codegen.llvm.module import Code, Written, one_of
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.epilogue import Epilogue, activated, finish_text
from dovetail.targets.cpu.conv.patch import (
    HEAD,
    KERNEL,
    WINDOW,
    BlockText,
    gather_text,
    spread_text,
    write_gather,
    write_layout,
    write_offsets,
    write_spread,
)

SIZES = (*WINDOW, "groups", "channels", "filters", "image_step", "group_step", "channel_step", "parts", "part")
"""The sizes that the code is given, in their order. Steps are bytes; channels and filters are those of one group, which
`parts` tiles share, `part` register tiles each."""
PIECE, POINT_PIECE = 8, 32
"""Channels that are summed by themselves before they are added to the rest: a short sum rounds less than a long one."""
RESIDUAL = ("r_image", "r_channel", "r_row", "r_column")
"""Sizes that come behind where there is a residual: its steps in bytes."""
SPREAD = ("spread_rows", "spread_columns")
"""Sizes that come behind where pixels lie apart: the distance of two of them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the text depends on: vectors, filters of a register tile, vectors of columns, what is done to a result."""

    vectors: CpuDevice
    rows: int
    columns: int
    epilogue: Epilogue
    point: bool
    """Whether the window has one tap."""
    spread: bool = False
    """Whether there are zeros between the pixels, as the transpose of a convolution has them."""

    @staticmethod
    def of(vectors: CpuDevice, filters: int, epilogue: Epilogue, point: bool = False, spread: bool = False) -> Shape:
        """As many accumulators as registers hold beside what they are made of."""
        room = vectors.registers - (4 if vectors.registers > 16 else 3)
        rows = min(8 if vectors.registers > 16 else 4, filters)
        columns = max(1, min(8, (room - 1) // rows))
        return Shape(vectors, rows, columns, epilogue, point, spread)


def conv_text(shape: Shape) -> Code:
    """The kernel."""
    seen = spread_text(shape.vectors) if shape.spread else gather_text(shape.vectors)
    shared = [finish_text(shape.vectors.lanes, shape.epilogue), seen, _tiles_text(_summing(shape))]
    return Code.of("conv", [_kernel(shape)], shared)


def _summing(shape: Shape) -> Shape:
    """The register tiles, which leave the residual and what comes behind it to where results lie."""
    return replace(shape, epilogue=shape.epilogue.before_residual)


def _tiles_text(shape: Shape) -> Written:
    """Register tiles of every width, behind one function that is told which."""
    return one_of(_name(shape), {columns: tile_text(shape, columns) for columns in range(1, shape.columns + 1)})


def _name(shape: Shape) -> str:
    """What the function is called: everything that its text depends on."""
    marks = f"{shape.epilogue.marks}{'.point' if shape.point else ''}"
    return f"@tile.{shape.vectors.lanes}.{shape.rows}.{shape.columns}{marks}"


def tile_text(shape: Shape, columns: int) -> Written:
    """The function of a register tile: some filters by some vectors of columns, summed over channels and taps."""
    t = BlockText(shape.vectors.lanes)
    spots = [(i, j) for i in range(shape.rows) for j in range(columns)]
    if shape.epilogue.bias:
        starts = [t.spread_from(t.at("%bias", 4 * i)) for i in range(shape.rows)]
    else:
        starts = ["zeroinitializer"] * shape.rows
    outer = {spot: f"%outer{spot[0]}.{spot[1]}" for spot in spots}
    inner = outer if shape.point else {spot: f"%inner{spot[0]}.{spot[1]}" for spot in spots}
    t("br label %piece")
    t.label("piece")
    t("%p = phi i64 [ 0, %entry ], [ %c.next, %more ]")
    t("%w.piece = phi ptr [ %w, %entry ], [ %w.next, %more ]")
    t("%x.piece = phi ptr [ %x, %entry ], [ %x.next, %more ]")
    first = t.let("icmp eq i64 %p, 0")
    stop = t.least("%channels", t.plus("%p", POINT_PIECE if shape.point else PIECE))
    starts = [t.let(f"select i1 {first}, {t.kind} {start}, {t.kind} zeroinitializer") for start in starts]
    t("br label %channel")
    t.label("channel")
    end = "channel" if shape.point else "channel.end"
    t(f"%c = phi i64 [ %p, %piece ], [ %c.next, %{end} ]")
    t(f"%w.outer = phi ptr [ %w.piece, %piece ], [ %w.next, %{end} ]")
    t(f"%x.here = phi ptr [ %x.piece, %piece ], [ %x.next, %{end} ]")
    at = len(t.lines)
    if shape.point:
        sums = _summed(t, shape, columns, "%x.here", "%w.outer", inner)
    else:
        t("br label %tap")
        t.label("tap")
        t("%k = phi i64 [ 0, %channel ], [ %k.next, %tap ]")
        t("%w.here = phi ptr [ %w.outer, %channel ], [ %w.next, %tap ]")
        middle = len(t.lines)
        offset = t.let(f"load i64, ptr {t.let('getelementptr i64, ptr %offsets, i64 %k')}, align 8")
        sums = _summed(t, shape, columns, t.at("%x.here", offset), "%w.here", inner)
        t("%k.next = add nuw nsw i64 %k, 1")
        t("%k.more = icmp slt i64 %k.next, %taps")
        t("br i1 %k.more, label %tap, label %channel.end")
        t.label("channel.end")
        t.lines[middle:middle] = [
            f"  {inner[s]} = phi {t.kind} [ {outer[s]}, %channel ], [ {sums[s]}, %tap ]" for s in spots
        ]
    t("%x.next = getelementptr i8, ptr %x.here, i64 %plane")
    t("%c.next = add nuw nsw i64 %c, 1")
    t(f"%c.more = icmp slt i64 %c.next, {stop}")
    t("br i1 %c.more, label %channel, label %end")
    t.label("end")
    t.lines[at:at] = [f"  {outer[s]} = phi {t.kind} [ {starts[s[0]]}, %piece ], [ {sums[s]}, %{end} ]" for s in spots]
    last = t.let("icmp sge i64 %c.next, %channels")
    for i in range(shape.rows):
        row = t.at("%y", t.times("%pitch", i))
        for j in range(columns):
            place = t.at(row, 4 * t.lanes * j)
            before = t.let(f"fadd {t.kind} {t.load(place)}, {sums[i, j]}")
            total = t.let(f"select i1 {first}, {t.kind} {sums[i, j]}, {t.kind} {before}")
            done = activated(t, shape.epilogue.in_registers, total)
            t.store(total if done == total else t.let(f"select i1 {last}, {t.kind} {done}, {t.kind} {total}"), place)
    t("br label %more")
    t.label("more")
    t(f"br i1 {last}, label %done, label %piece")
    t.label("done")
    header = (
        f"internal void {_name(shape)}.{columns}(ptr noalias readonly %w, ptr noalias readonly %x, i64 %plane, "
        "ptr noalias readonly %offsets, i64 %taps, i64 %channels, ptr noalias %y, i64 %pitch, "
        "ptr noalias readonly %bias) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _summed(
    t: BlockText, shape: Shape, columns: int, x: str, w: str, sums: dict[tuple[int, int], str]
) -> dict[tuple[int, int], str]:
    """The sums with one tap of one channel more."""
    seen = [t.load(t.at(x, 4 * t.lanes * j)) for j in range(columns)]
    found: dict[tuple[int, int], str] = {}
    for i in range(shape.rows):
        weight = t.spread_from(t.at(w, 4 * i))
        for j in range(columns):
            found[i, j] = t.fma(weight, seen[j], sums[i, j])
    t(f"%w.next = getelementptr i8, ptr {w}, i64 {4 * shape.rows}")
    return found


def _kernel(shape: Shape) -> Written:
    """The tiles from `begin` to before `end`."""
    t = BlockText(shape.vectors.lanes)
    lanes, epilogue = t.lanes, shape.epilogue
    t.unpack(epilogue.pointers, (*SIZES, *(SPREAD if shape.spread else ()), *epilogue.sizes(RESIDUAL)))
    t(f"%room = getelementptr i8, ptr %scratch, i64 {HEAD}")
    # Scratch holds the offsets of taps, the results of one register tile, and what a block sees.
    of = write_layout(t)
    pitch, taps, channel_plane = of.pitch, of.taps, of.channel
    results = t.at("%room", t.times(t.rounded_up(taps, 8), 64))
    run_step = t.times(t.rounded_up(of.run, lanes), 4 * lanes)
    seen = t.at(results, t.times(run_step, shape.rows))
    write_offsets(t, of, "%room")
    lies = t.times(t.times("%column_step", "%stride_columns"), t.plus("%before", 1))
    t(f"%lies = add i64 {lies}, 0")
    register_tiles = t.rounded_up("%filters", shape.rows)
    with t.loop("%begin", "%end") as tile:
        part, block = t.rest(tile, "%parts"), t.quotient(tile, "%parts")
        column_block, left = t.rest(block, "%column_blocks"), t.quotient(block, "%column_blocks")
        row_block, left = t.rest(left, "%row_blocks"), t.quotient(left, "%row_blocks")
        group, image = t.rest(left, "%groups"), t.quotient(left, "%groups")
        first_row, first_column = t.times(row_block, "%block_rows"), t.times(column_block, "%block_columns")
        source = t.at(t.at("%x", t.times(image, "%image_step")), t.times(group, "%group_step"))
        own_rows = t.least("%block_rows", t.minus("%out_height", first_row))
        own_columns = t.least("%block_columns", t.minus("%out_width", first_column))
        length = t.plus(t.times(t.minus(own_rows, 1), pitch), own_columns)
        full = t.let(f"icmp eq i64 {t.rest(length, lanes)}, 0")
        fresh = t.let(f"icmp ne i64 {block}, {t.let('load i64, ptr %scratch, align 8')}")
        x, plane = seen, channel_plane
        if shape.point and not shape.spread:
            # One row of whole vectors is read where it lies.
            alone = t.let(f"and i1 {full}, {t.let('icmp eq i64 %out_height, 1')}")
            there = t.let(f"and i1 {alone}, {t.let('icmp eq i64 %lies, 4')}")
            x = t.let(f"select i1 {there}, ptr {t.at(source, t.times(first_column, 4))}, ptr {seen}")
            plane = t.chosen(there, "%channel_step", channel_plane)
            fresh = t.let(f"and i1 {fresh}, {t.let(f'xor i1 {there}, true')}")
        t(f"store i64 {block}, ptr %scratch, align 8")
        with t.when(fresh), t.loop("0", "%channels") as channel:
            onto = t.at(seen, t.times(channel, channel_plane))
            here = t.at(source, t.times(channel, "%channel_step"))
            if not shape.spread:
                # The next channel lies far from this one: nobody else asks for it ahead.
                skipped = t.times(t.times(first_row, "%stride_rows"), "%row_step")
                skipped = t.plus(skipped, t.times(t.times(first_column, "%stride_columns"), "%column_step"))
                area = t.times(t.times(of.rows, "%stride_rows"), t.times(of.pitch, "%stride_columns"))
                t.fetch(t.at(t.at(here, "%channel_step"), skipped), t.times(area, 4), "0", "1")
            write = write_spread if shape.spread else write_gather
            write(t, of, here, onto, first_row, first_column)
        # Without columns between rows a block is one run in the result too, if it has all columns of it.
        alone = t.let(f"icmp eq i64 {own_rows}, 1")
        whole = t.let(
            f"and i1 {t.let(f'icmp eq i64 {pitch}, {own_columns}')}, {t.let('icmp eq i64 %column_blocks, 1')}"
        )
        run_on = t.let(f"or i1 {alone}, {whole}")
        if epilogue.residual:
            level = t.let(f"icmp eq i64 %r_row, {t.times('%out_width', '%r_column')}")
            run_on = t.let(f"and i1 {run_on}, {t.let(f'or i1 {alone}, {level}')}")
            # Sums may not lie where the residual still does.
            run_on = t.let(f"and i1 {run_on}, {t.let('icmp ne ptr %r, %y')}")
        in_place = t.let(f"and i1 {run_on}, {full}")
        area = t.times("%out_height", "%out_width")
        stop = t.least(register_tiles, t.times(t.plus(part, 1), "%part"))
        with t.loop(t.times(part, "%part"), stop) as filter_tile:
            first = t.times(filter_tile, shape.rows)
            count = t.least(shape.rows, t.minus("%filters", first))
            channel = t.plus(t.times(t.plus(t.times(image, "%groups"), group), "%filters"), first)
            corner = t.plus(t.times(first_row, "%out_width"), first_column)
            target = t.at("%y", t.times(t.plus(t.times(channel, area), corner), 4))
            direct = t.let(f"and i1 {in_place}, {t.let(f'icmp eq i64 {count}, {shape.rows}')}")
            onto = t.let(f"select i1 {direct}, ptr {target}, ptr {results}")
            step = t.chosen(direct, t.times(area, 4), run_step)
            packed = t.plus(t.times(group, register_tiles), filter_tile)
            size = t.times(t.times("%channels", taps), 4 * shape.rows)
            weights = t.at("%w", t.times(packed, size))
            bias = t.at("%b", t.times(packed, 4 * shape.rows)) if epilogue.bias else "%w"
            sums = f"i64 {plane}, ptr %room, i64 {taps}, i64 %channels"
            write_columns(t, _summing(shape), weights, size, x, sums, onto, f"i64 {step}, ptr {bias}", length)
            beside = ""
            if epilogue.residual:
                own = t.times(t.plus(t.times(group, "%filters"), first), "%r_channel")
                corner = t.plus(t.times(first_row, "%r_row"), t.times(first_column, "%r_column"))
                beside = t.at(t.at("%r", t.times(image, "%r_image")), t.plus(own, corner))
                with t.when(direct), t.loop("0", count) as row:
                    given = f"ptr {t.at(onto, t.times(row, step))}, ptr {t.at(beside, t.times(row, '%r_channel'))}"
                    t(f"call void @kernel.finish({given}, i64 %r_column, i64 {length})")
            elif epilogue.finishes:
                with t.loop("0", count) as row:
                    t(f"call void @kernel.finish(ptr {t.at(onto, t.times(row, step))}, i64 {length})")
            with t.otherwise(direct), t.loop("0", count) as row, t.loop("0", own_rows) as line:
                here = t.at(results, t.plus(t.times(row, run_step), t.times(line, t.times(pitch, 4))))
                there = t.at(target, t.times(t.plus(t.times(row, area), t.times(line, "%out_width")), 4))
                if epilogue.residual:
                    at = t.at(beside, t.plus(t.times(row, "%r_channel"), t.times(line, "%r_row")))
                    t(f"call void @kernel.finish(ptr {here}, ptr {at}, i64 %r_column, i64 {own_columns})")
                with t.steps("0", own_columns, lanes) as column:
                    by = t.times(column, 4)
                    t.store_where(t.lanes_within(column, own_columns), t.load(t.at(here, by)), t.at(there, by))
    return t.function(KERNEL), tuple(t.used)


def write_columns(
    t: BlockText, shape: Shape, weights: str, size: str, seen: str, sums: str, onto: str, rest: str, length: str
) -> None:
    """The register tiles along a run of columns, as equal in width as they can be; the weights of the next are asked
    for meanwhile."""
    vectors = t.rounded_up(length, t.lanes)
    count = t.rounded_up(vectors, shape.columns)
    narrow, wider = t.quotient(vectors, count), t.rest(vectors, count)
    with t.loop("0", count) as number:
        width = t.plus(narrow, t.let(f"zext i1 {t.let(f'icmp slt i64 {number}, {wider}')} to i64"))
        start = t.plus(t.times(number, narrow), t.least(number, wider))
        offset = t.times(start, 4 * t.lanes)
        x, y = t.at(seen, offset), t.at(onto, offset)
        t.fetch(t.at(weights, size), size, number, count)
        t(f"call void {_name(shape)}(ptr {weights}, ptr {x}, {sums}, ptr {y}, {rest}, i64 {width})")
