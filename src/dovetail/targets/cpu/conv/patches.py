"""The patch of an image that a block of output pixels sees, packed for vectors (im2col by phases).

A patch has zeros around the image, and one plane for each phase of the strides. What one tap of the window sees in
successive columns is then contiguous, and rows follow each other at one pitch.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Carried, Int, Mask, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice


@dataclass(frozen=True, slots=True)
class WindowArgs:
    """Sizes of an image and its strides in bytes, of the result, of the window, and of blocks of output pixels."""

    height: I64
    width: I64
    row_step: I64
    column_step: I64
    out_height: I64
    out_width: I64
    window_rows: I64
    window_columns: I64
    stride_rows: I64
    stride_columns: I64
    dilation_rows: I64
    dilation_columns: I64
    above: I64
    before: I64
    block_rows: I64
    block_columns: I64
    row_blocks: I64
    column_blocks: I64


@dataclass(frozen=True, slots=True)
class FewPixelsWindow(WindowArgs):
    """The tensors and sizes of kernels that cut the pixels of an image into parts and its sums into pieces."""

    x: Ptr
    w: Ptr
    b: Ptr
    r: Ptr
    y: Ptr
    channels: I64
    filters: I64
    groups: I64
    image_step: I64
    group_step: I64
    channel_step: I64
    pixels: I64
    parts: I64
    part: I64
    piece: I64


@dataclass(frozen=True, slots=True)
class PatchLayout:
    """How a patch is packed: in elements, but for `channel`, which is bytes."""

    phases_down: I64
    phases_across: I64
    rows: I64
    pitch: I64
    plane: I64
    channel: I64
    taps: I64
    run: I64
    """From the first pixel of a block to its last, the columns between rows included."""


def patch_layout(t: VectorBuilder, a: WindowArgs) -> PatchLayout:
    """The layout of a full block's patch."""
    reach_rows = t.mul(t.sub(a.window_rows, 1), a.dilation_rows)
    reach_columns = t.mul(t.sub(a.window_columns, 1), a.dilation_columns)
    phases_down = t.smin(a.stride_rows, t.add(reach_rows, 1))
    phases_across = t.smin(a.stride_columns, t.add(reach_columns, 1))
    rows = t.add(a.block_rows, t.sdiv(reach_rows, a.stride_rows))
    pitch = t.add(a.block_columns, t.sdiv(reach_columns, a.stride_columns))
    plane = t.mul(rows, pitch)
    channel = t.mul(t.mul(phases_down, phases_across), t.mul(plane, 4))
    taps = t.mul(a.window_rows, a.window_columns)
    run = t.add(t.mul(t.sub(a.block_rows, 1), pitch), a.block_columns)
    return PatchLayout(phases_down, phases_across, rows, pitch, plane, channel, taps, run)


def write_tap_offsets(t: VectorBuilder, a: WindowArgs, of: PatchLayout, onto: Ptr) -> None:
    """List, for each tap, how many bytes after a pixel's own position the tap reads."""
    with t.loop(0, a.window_rows) as i, t.loop(0, a.window_columns) as j:
        down, across = t.mul(i, a.dilation_rows), t.mul(j, a.dilation_columns)
        phase = t.add(t.mul(t.srem(down, a.stride_rows), of.phases_across), t.srem(across, a.stride_columns))
        inside = t.add(t.mul(t.sdiv(down, a.stride_rows), of.pitch), t.sdiv(across, a.stride_columns))
        offset = t.mul(t.add(t.mul(phase, of.plane), inside), 4)
        t.store_i64(offset, t.element(onto, "i64", t.add(t.mul(i, a.window_columns), j)))


def write_patch(
    t: VectorBuilder, a: WindowArgs, of: PatchLayout, source: Ptr, onto: Ptr, first_row: I64, first_column: I64
) -> None:
    """Pack what a block sees of one channel."""
    step = t.mul(a.column_step, a.stride_columns)
    with t.loop(0, of.phases_down) as i, t.loop(0, of.phases_across) as j:
        line = t.sub(t.add(t.mul(first_row, a.stride_rows), i), a.above)
        column = t.sub(t.add(t.mul(first_column, a.stride_columns), j), a.before)
        here = t.ptr_add(onto, t.mul(t.add(t.mul(i, of.phases_across), j), t.mul(of.plane, 4)))
        t.call(
            pack_phase_signature(t.lanes), source, here, a.height, a.width, a.row_step, a.column_step, step,
            a.stride_rows, a.stride_columns, line, column, of.rows, of.pitch, t.mul(of.pitch, 4),
        )  # fmt: skip


_IMAGE = (Parameter("ptr", "x", "noalias readonly"), Parameter("ptr", "s", "noalias"))


def _integers(names: str) -> tuple[Parameter, ...]:
    return tuple([Parameter("i64", name) for name in names.split()])


def pack_phase_signature(lanes: int) -> Signature:
    """The function that packs one phase of one channel, with zeros around the image."""
    names = "height width row_step element step row_stride column_stride first_row first_column rows columns pitch"
    return Signature(f"gather.{lanes}", (*_IMAGE, *_integers(names)))


def pack_phase(device: CpuDevice) -> Function:
    """Pack what a block sees of one phase of one channel."""
    t = VectorBuilder(device)
    lanes = t.lanes
    x, s = Ptr("%x"), Ptr("%s")
    height, width, row_step, element, step = (
        I64("%height"),
        I64("%width"),
        I64("%row_step"),
        I64("%element"),
        I64("%step"),
    )
    row_stride, column_stride = I64("%row_stride"), I64("%column_stride")
    first_row, first_column = I64("%first_row"), I64("%first_column")
    rows, columns, pitch = I64("%rows"), I64("%columns"), I64("%pitch")
    nothing = t.constant(0.0)
    dense = t.icmp("eq", step, 4)
    packed = t.icmp("eq", element, 4)
    second = t.and_(t.icmp("eq", step, 8), packed)
    fourth = t.and_(t.icmp("eq", step, 16), packed)
    strided_by_shuffles = t.or_(t.or_(dense, second), fourth)
    # Columns whose position in the image, first + column * stride, is inside it.
    low = t.smax(0, t.ceil_div(t.sub(0, first_column), column_stride))
    high = t.ceil_div(t.sub(width, first_column), column_stride)
    inside_columns = t.smax(0, t.sub(high, low))
    # With masked loads, contiguous columns that are all inside the image are copied as they are, but for the tail.
    reaches = t.icmp("sle", t.add(first_column, columns), width)
    begins = t.icmp("sge", first_column, 0)
    whole = t.and_(dense, t.and_(reaches, begins))
    with t.loop(0, rows) as row:
        line = t.add(first_row, t.mul(row, row_stride))
        inside = t.icmp("ult", line, height)
        count, limit = t.select_int(inside, inside_columns, 0), t.select_int(inside, width, 0)
        source = t.ptr_add(x, t.mul(line, row_step))
        target = t.ptr_add(s, t.mul(row, pitch))
        if device.has("masked_memory"):
            copied = t.and_(whole, inside)
            with t.when(copied):
                begin = t.ptr_add(source, t.mul(first_column, 4))
                with t.loop(0, t.sdiv(columns, lanes)) as vector:
                    by = t.mul(vector, t.bytes)
                    t.store(t.load(t.ptr_add(begin, by)), t.ptr_add(target, by))
            done = t.select_int(copied, t.mul(t.sdiv(columns, lanes), lanes), 0)
        else:
            own = t.select_int(inside, t.smax(0, t.sub(t.smin(high, columns), low)), 0)
            copied = t.and_(dense, t.or_(t.icmp("eq", own, 0), t.icmp("sge", own, lanes)))
            with t.when(copied):
                _copy_row(t, source, target, t.add(first_column, low), low, own, columns)
            done = t.select_int(copied, columns, 0)
        with t.steps(done, columns, lanes) as column:
            mask = t.lanes_within(t.sub(column, low), count)
            start = t.add(first_column, t.mul(column, column_stride))
            pixel = t.ptr_add(source, t.mul(start, element))
            here = t.ptr_add(target, t.mul(column, 4))
            with t.when(dense):
                t.store(t.load_masked(mask, pixel, nothing), here)
            for stride, holds in ((2, second), (4, fourth)):
                with t.when(holds):
                    t.store(_every(t, stride, pixel, start, limit, nothing), here)
            with t.unless(strided_by_shuffles):
                t.store(t.gather(mask, pixel, step, nothing), here)
    return t.function(pack_phase_signature(lanes))


def _copy_row(t: VectorBuilder, source: Ptr, target: Ptr, first: I64, low: I64, own: I64, columns: I64) -> None:
    """Copy `own` contiguous elements to `low`, with zeros around: none, or at least as many as a vector has.

    Vectors overlap where masks would be needed. The last may reach into the row below, which is packed after it.
    """
    lanes, some = t.lanes, t.icmp("ne", own, 0)
    with t.steps(0, t.select_int(some, low, columns), lanes) as column:
        t.store(ZERO, t.element(target, "float", column))
    with t.when(some):
        begin, onto = t.element(source, "float", first), t.element(target, "float", low)
        last = t.sub(own, lanes)
        with t.steps(0, last, lanes) as column:
            t.store(t.load(t.element(begin, "float", column)), t.element(onto, "float", column))
        t.store(t.load(t.element(begin, "float", last)), t.element(onto, "float", last))
        with t.steps(t.add(low, own), columns, lanes) as column:
            t.store(ZERO, t.element(target, "float", column))


def _every(t: VectorBuilder, stride: int, pixel: Ptr, start: I64, width: I64, nothing: Vec) -> Vec:
    """Every second or fourth of contiguous elements: `stride` vectors, deinterleaved by twos."""
    lanes = t.lanes
    parts = [
        t.load_masked(t.lanes_within(t.add(start, i * lanes), width), t.ptr_add(pixel, i * t.bytes), nothing)
        for i in range(stride)
    ]
    while len(parts) > 1:
        parts = [t.shuffle(x, y, range(0, 2 * lanes, 2)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def write_zero_stuffed(
    t: VectorBuilder,
    a: WindowArgs,
    of: PatchLayout,
    source: Ptr,
    onto: Ptr,
    first_row: I64,
    first_column: I64,
    spread_rows: I64,
    spread_columns: I64,
) -> None:
    """Pack what a block sees of one channel with zeros between its pixels, for a window that steps by one."""
    t.call(
        zero_stuff_signature(t.lanes), source, onto, a.height, a.width, a.row_step, a.column_step, spread_rows,
        spread_columns, t.sub(first_row, a.above), t.sub(first_column, a.before), of.rows, of.pitch,
    )  # fmt: skip


def zero_stuff_signature(lanes: int) -> Signature:
    """The function that packs one channel with zeros between its pixels."""
    names = "height width row_step element spread_rows spread_columns first_row first_column rows columns"
    return Signature(f"spread.{lanes}", (*_IMAGE, *_integers(names)))


def zero_stuff(device: CpuDevice) -> Function:
    """Pack what a block sees of one channel with zeros between its pixels, as a transposed convolution reads it."""
    t = VectorBuilder(device)
    x, s = Ptr("%x"), Ptr("%s")
    spread_rows, spread_columns = I64("%spread_rows"), I64("%spread_columns")
    first_row, first_column, columns = I64("%first_row"), I64("%first_column"), I64("%columns")
    low = t.smax(0, t.ceil_div(first_column, spread_columns))
    high = t.smin(I64("%width"), t.ceil_div(t.add(first_column, columns), spread_columns))
    with t.loop(0, I64("%rows")) as row:
        target = t.ptr_add(s, t.mul(t.mul(row, columns), 4))
        with t.steps(0, columns, t.lanes) as column:
            t.store(ZERO, t.ptr_add(target, t.mul(column, 4)))
        line = t.add(first_row, row)
        own = t.sdiv(line, spread_rows)
        met = t.icmp("eq", t.srem(line, spread_rows), 0)
        inside = t.and_(met, t.icmp("ult", own, I64("%height")))
        source = t.ptr_add(x, t.mul(own, I64("%row_step")))
        with t.when(inside), t.loop(low, high) as column:
            pixel = t.load_f32(t.ptr_add(source, t.mul(column, I64("%element"))))
            at = t.sub(t.mul(column, spread_columns), first_column)
            t.store_f32(pixel, t.ptr_add(target, t.mul(at, 4)))
    return t.function(zero_stuff_signature(t.lanes), attributes="noinline nounwind optsize")


def prefetch_share(t: VectorBuilder, pointer: Ptr, size: Int, number: Int, count: Int) -> None:
    """Prefetch one of `count` shares of `size` bytes into L2, four cache lines at a time, rounded up."""
    bytes_of_line = t.device.caches.line
    lines = t.ceil_div(t.sdiv(size, bytes_of_line), count)
    start = t.ptr_add(pointer, t.mul(t.mul(number, lines), bytes_of_line))
    with t.steps(0, lines, 4) as line:
        here = t.ptr_add(start, t.mul(line, bytes_of_line))
        for i in range(4):
            t.prefetch(t.ptr_add(here, bytes_of_line * i), level=2)


@dataclass(frozen=True, slots=True)
class Columns:
    """The layout of a block of rows; `plane` and `channel` are bytes."""

    phases: I64
    rows: I64
    plane: I64
    channel: I64

    @staticmethod
    def of(t: VectorBuilder, a: WindowArgs) -> Columns:
        reach = t.mul(t.sub(a.window_rows, 1), a.dilation_rows)
        phases = t.smin(a.stride_rows, t.add(reach, 1))
        rows = t.add(a.block_rows, t.sdiv(reach, a.stride_rows))
        plane = t.mul(t.mul(rows, a.out_width), 4)
        return Columns(phases, rows, plane, t.mul(t.mul(phases, a.window_columns), plane))

    def offset(self, t: VectorBuilder, a: WindowArgs, tap: I64) -> I64:
        """Bytes from a pixel's own position to what a tap reads."""
        i, j = t.sdiv(tap, a.window_columns), t.srem(tap, a.window_columns)
        down = t.mul(i, a.dilation_rows)
        plane = t.add(t.mul(j, self.phases), t.srem(down, a.stride_rows))
        row = t.mul(t.sdiv(down, a.stride_rows), t.mul(a.out_width, 4))
        return t.add(t.mul(plane, self.plane), row)

    def pack(self, t: VectorBuilder, a: WindowArgs, source: Ptr, onto: Ptr, first_row: I64) -> None:
        """Pack what the rows of a block see of one channel."""
        t.call(
            _signature(t.lanes), source, onto, a.height, a.width, a.row_step, a.column_step, a.stride_rows,
            a.stride_columns, a.dilation_columns, t.sub(t.mul(first_row, a.stride_rows), a.above),
            t.sub(0, a.before), a.window_columns, self.phases, self.rows, a.out_width,
        )  # fmt: skip


def _signature(lanes: int) -> Signature:
    names = "height width row_step element row_stride column_stride dilation first_row first_column taps phases"
    integers = [Parameter("i64", name) for name in (*names.split(), "rows", "columns")]
    return Signature(
        f"columns.{lanes}", (Parameter("ptr", "x", "noalias readonly"), Parameter("ptr", "s", "noalias"), *integers)
    )


def pack_columns(device: CpuDevice) -> Function:
    """Pack what the rows of a block see of one channel."""
    t = VectorBuilder(device)
    lanes, width, columns = t.lanes, I64("%width"), I64("%columns")
    element, stride = I64("%element"), I64("%column_stride")
    packed = t.icmp("eq", element, 4)
    near = [(n, t.and_(packed, t.icmp("eq", stride, n))) for n in (1, 2)]
    far = t.not_(t.or_(near[0][1], near[1][1]))
    step = t.mul(stride, element)
    with t.loop(0, I64("%taps")) as tap, t.steps(0, columns, lanes) as column:
        start = t.add(t.add(I64("%first_column"), t.mul(tap, I64("%dilation"))), t.mul(column, stride))
        own = t.lanes_within(column, columns)
        plane = t.mul(t.mul(t.mul(tap, I64("%phases")), I64("%rows")), columns)
        onto = t.ptr_add(Ptr("%s"), t.mul(t.add(plane, column), 4))
        from_column = t.ptr_add(Ptr("%x"), t.mul(start, element))
        for apart, holds in near:
            masks = [t.lanes_within(t.add(start, i * lanes), width) for i in range(apart)]

            def read(pixel: Ptr, apart: int = apart, masks: list[Mask] = masks) -> Vec:
                parts = [t.load_masked(mask, t.ptr_add(pixel, t.bytes * i)) for i, mask in enumerate(masks)]
                return parts[0] if apart == 1 else t.shuffle(parts[0], parts[1], range(0, 2 * lanes, 2))

            with t.when(holds):
                _rows(t, from_column, onto, own, read)
        with t.when(far):
            # Columns whose position in the image, first + column * stride, is inside it.
            low = t.ceil_div(t.smax(0, t.sub(0, start)), stride)
            high = t.ceil_div(t.smax(0, t.sub(width, start)), stride)
            mask = t.lanes_within(t.sub(0, low), t.sub(high, low))
            _rows(t, from_column, onto, own, lambda pixel: t.gather(mask, pixel, step, ZERO))
    return t.function(_signature(lanes))


def _rows(t: VectorBuilder, source: Ptr, onto: Ptr, own: Mask, read: Callable[[Ptr], Vec]) -> None:
    """The rows of every phase, at one vector of columns."""
    rows, pitch = I64("%rows"), t.mul(I64("%columns"), 4)
    with t.loop(0, I64("%phases")) as phase:
        there = t.ptr_add(onto, t.mul(t.mul(phase, rows), pitch))
        first = t.add(I64("%first_row"), phase)
        with t.loop(0, rows) as row:
            line = t.add(first, t.mul(row, I64("%row_stride")))
            inside = t.icmp("ult", line, I64("%height"))
            target = t.ptr_add(there, t.mul(row, pitch))
            with t.when(inside):
                t.store_masked(own, read(t.ptr_add(source, t.mul(line, I64("%row_step")))), target)
            with t.unless(inside):
                t.store_masked(own, ZERO, target)


def each_tap(t: VectorBuilder, state: Carried, accumulate: Callable[[Carried, Ptr], None], *, once: bool) -> None:
    """Accumulate every tap of one channel, or the only one; pointers of `state` are into weights and image.

    Offsets of the taps from the image are at `%offsets`, and `%taps` is how many there are.
    """
    w, x = state.pointers
    if once:
        accumulate(state, x)
        return
    with t.repeat([0], [w], state.vectors) as taps:
        offset = t.load_i64(t.element(Ptr("%offsets"), "i64", taps.integers[0]))
        accumulate(taps, t.ptr_add(x, offset))
        taps.integers[0] = t.following(taps.integers[0])
        taps.again = t.icmp("slt", taps.integers[0], I64("%taps"))
    state.pointers[0] = taps.pointers[0]
    state.vectors[:] = taps.vectors
