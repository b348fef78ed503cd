"""What a block of a sliding window's places sees of an image, laid out for vectors.

The block has zeros around the image, and one plane for each phase of the strides: then what a tap
of the window sees in successive columns lies in successive places, and rows follow each other at one pitch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dovetail.codegen.llvm.module import Written
from dovetail.codegen.llvm.simd import VectorText
from dovetail.kernels.device import CpuDevice

KERNEL = "void @kernel(ptr noalias readonly %arguments, i64 %begin, i64 %end, ptr noalias %scratch) nounwind optsize"
"""How a kernel begins. Its own instructions are few beside those of the functions that it calls: it is kept short."""

HEAD = 64
"""Bytes of scratch before what a kernel lays out: words there say for which block, -1 when a step begins."""

WINDOW = (
    "height", "width", "row_step", "column_step", "out_height", "out_width",
    "window_rows", "window_columns", "stride_rows", "stride_columns", "dilation_rows", "dilation_columns",
    "above", "before",
    "block_rows", "block_columns", "row_blocks", "column_blocks",
)  # fmt: skip
"""Sizes that say what a block is: of an image and its steps in bytes, of the result, of the window, of blocks."""


class BlockText(VectorText):
    """A function, with whole numbers and masked vectors."""

    def unpack(self, pointers: Sequence[str], sizes: Sequence[str]) -> None:
        """Read the arguments of a kernel, each under its name."""
        for index, name in enumerate((*pointers, *sizes)):
            kind = "ptr" if index < len(pointers) else "i64"
            self(f"%{name} = load {kind}, ptr {self.at('%arguments', 8 * index)}, align 8")

    def whole_number(self, operation: str, x: str | int, y: str | int) -> str:
        return self.let(f"{operation} i64 {x}, {y}")

    def plus(self, x: str | int, y: str | int) -> str:
        return self.whole_number("add", x, y)

    def minus(self, x: str | int, y: str | int) -> str:
        return self.whole_number("sub", x, y)

    def times(self, x: str | int, y: str | int) -> str:
        return self.whole_number("mul", x, y)

    def quotient(self, x: str | int, y: str | int) -> str:
        return self.whole_number("sdiv", x, y)

    def rest(self, x: str | int, y: str | int) -> str:
        return self.whole_number("srem", x, y)

    def rounded_up(self, x: str | int, y: str | int) -> str:
        """The quotient, rounded up."""
        return self.quotient(self.plus(x, self.minus(y, 1)), y)

    def least(self, x: str | int, y: str | int) -> str:
        self.use("declare i64 @llvm.smin.i64(i64, i64)")
        return self.let(f"call i64 @llvm.smin.i64(i64 {x}, i64 {y})")

    def most(self, x: str | int, y: str | int) -> str:
        self.use("declare i64 @llvm.smax.i64(i64, i64)")
        return self.let(f"call i64 @llvm.smax.i64(i64 {x}, i64 {y})")

    def chosen(self, condition: str, x: str | int, y: str | int) -> str:
        return self.let(f"select i1 {condition}, i64 {x}, i64 {y}")

    def lanes_within(self, first: str, count: str) -> str:
        """Where `first` plus the number of a lane is at least 0 and below `count`."""
        start = self.let(f"trunc i64 {first} to i32")
        one = self.let(f"insertelement {self.whole} poison, i32 {start}, i64 0")
        order = ", ".join(["i32 0"] * self.lanes)
        spread = self.let(f"shufflevector {self.whole} {one}, {self.whole} poison, <{self.lanes} x i32> <{order}>")
        numbers = ", ".join(f"i32 {i}" for i in range(self.lanes))
        at = self.let(f"add {self.whole} {spread}, <{numbers}>")
        end = self.let(f"trunc i64 {count} to i32")
        one = self.let(f"insertelement {self.whole} poison, i32 {end}, i64 0")
        ends = self.let(f"shufflevector {self.whole} {one}, {self.whole} poison, <{self.lanes} x i32> <{order}>")
        return self.let(f"icmp ult {self.whole} {at}, {ends}")

    def load_where(self, mask: str, pointer: str, otherwise: str = "zeroinitializer") -> str:
        """What lies at a pointer, something else where it is masked out and not read."""
        name = f"@llvm.masked.load.v{self.lanes}f32.p0"
        self.use(f"declare {self.kind} {name}(ptr, {self.truth}, {self.kind})")
        return self.let(f"call {self.kind} {name}(ptr align 4 {pointer}, {self.truth} {mask}, {self.kind} {otherwise})")

    def store_where(self, mask: str, x: str, pointer: str) -> None:
        name = f"@llvm.masked.store.v{self.lanes}f32.p0"
        self.use(f"declare void {name}({self.kind}, ptr, {self.truth})")
        self(f"call void {name}({self.kind} {x}, ptr align 4 {pointer}, {self.truth} {mask})")

    def gather_where(self, mask: str, pointer: str, step: str, otherwise: str) -> str:
        """Elements that lie `step` bytes apart."""
        wide = f"<{self.lanes} x i64>"
        one = self.let(f"insertelement {wide} poison, i64 {step}, i64 0")
        order = ", ".join(["i32 0"] * self.lanes)
        spread = self.let(f"shufflevector {wide} {one}, {wide} poison, <{self.lanes} x i32> <{order}>")
        numbers = ", ".join(f"i64 {i}" for i in range(self.lanes))
        offsets = self.let(f"mul {wide} {spread}, <{numbers}>")
        places = self.let(f"getelementptr i8, ptr {pointer}, {wide} {offsets}")
        name = f"@llvm.masked.gather.v{self.lanes}f32.v{self.lanes}p0"
        pointers = f"<{self.lanes} x ptr>"
        self.use(f"declare {self.kind} {name}({pointers}, {self.truth}, {self.kind})")
        return self.let(
            f"call {self.kind} {name}({pointers} align 4 {places}, {self.truth} {mask}, {self.kind} {otherwise})"
        )

    @contextmanager
    def otherwise(self, condition: str) -> Generator[None]:
        with self.when(self.let(f"xor i1 {condition}, true")):
            yield

    @contextmanager
    def cases(self, number: str, of: Iterable[int]) -> Generator[Iterable[int]]:
        """Instructions for each of the values that a whole number may have, one of which it has."""
        labels = {value: self.fresh("case") for value in of}
        after = self.fresh("after")
        listed = " ".join(f"i64 {value}, label %{label}" for value, label in labels.items())
        self(f"switch i64 {number}, label %{after} [ {listed} ]")

        def each() -> Generator[int]:
            for value, label in labels.items():
                self.label(label)
                yield value
                self(f"br label %{after}")

        yield each()
        self.label(after)

    def fetch(self, pointer: str, size: str, number: str, count: str) -> None:
        """Ask for one of `count` shares of what lies at a pointer, ahead of its use, by lines of 64 bytes: a few more
        than that, since they are asked for by fours."""
        self.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        lines = self.rounded_up(self.quotient(size, 64), count)
        start = self.at(pointer, self.times(self.times(number, lines), 64))
        with self.steps("0", lines, 4) as line:
            here = self.at(start, self.times(line, 64))
            for i in range(4):
                self(f"call void @llvm.prefetch.p0(ptr {self.at(here, 64 * i)}, i32 0, i32 2, i32 1)")

    def fetch_to_write(self, pointer: str) -> None:
        """Ask for the line that a pointer lies in, ahead of what is written there."""
        self.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 1, i32 3, i32 1)")

    def function(self, header: str) -> str:
        return "\n".join([f"define {header} {{", "entry:", *self.slots, *self.lines, "  ret void", "}"])


@dataclass(frozen=True, slots=True)
class Layout:
    """How a block lies in memory: names of whole numbers, in elements but for `channel`, which is bytes."""

    phases_down: str
    phases_across: str
    rows: str
    pitch: str
    plane: str
    channel: str
    taps: str
    run: str
    """From the first place of a block to its last, the columns between rows included."""


def write_layout(t: BlockText) -> Layout:
    """Instructions for the layout of a whole block."""
    reach_rows = t.times(t.minus("%window_rows", 1), "%dilation_rows")
    reach_columns = t.times(t.minus("%window_columns", 1), "%dilation_columns")
    phases_down = t.least("%stride_rows", t.plus(reach_rows, 1))
    phases_across = t.least("%stride_columns", t.plus(reach_columns, 1))
    rows = t.plus("%block_rows", t.quotient(reach_rows, "%stride_rows"))
    pitch = t.plus("%block_columns", t.quotient(reach_columns, "%stride_columns"))
    plane = t.times(rows, pitch)
    channel = t.times(t.times(phases_down, phases_across), t.times(plane, 4))
    taps = t.times("%window_rows", "%window_columns")
    run = t.plus(t.times(t.minus("%block_rows", 1), pitch), "%block_columns")
    return Layout(phases_down, phases_across, rows, pitch, plane, channel, taps, run)


def write_offsets(t: BlockText, of: Layout, onto: str) -> None:
    """Instructions that list how many bytes behind a place's own each tap sees."""
    with t.loop("0", "%window_rows") as i, t.loop("0", "%window_columns") as j:
        down, across = t.times(i, "%dilation_rows"), t.times(j, "%dilation_columns")
        phase = t.plus(t.times(t.rest(down, "%stride_rows"), of.phases_across), t.rest(across, "%stride_columns"))
        inside = t.plus(t.times(t.quotient(down, "%stride_rows"), of.pitch), t.quotient(across, "%stride_columns"))
        offset = t.times(t.plus(t.times(phase, of.plane), inside), 4)
        number = t.plus(t.times(i, "%window_columns"), j)
        t(f"store i64 {offset}, ptr {t.let(f'getelementptr i64, ptr {onto}, i64 {number}')}, align 8")


def write_gather(t: BlockText, of: Layout, source: str, onto: str, first_row: str, first_column: str) -> None:
    """Instructions that lay out what a block sees of one channel."""
    step = t.times("%column_step", "%stride_columns")
    with t.loop("0", of.phases_down) as i, t.loop("0", of.phases_across) as j:
        line = t.minus(t.plus(t.times(first_row, "%stride_rows"), i), "%above")
        column = t.minus(t.plus(t.times(first_column, "%stride_columns"), j), "%before")
        here = t.at(onto, t.times(t.plus(t.times(i, of.phases_across), j), t.times(of.plane, 4)))
        given = [
            "%height", "%width", "%row_step", "%column_step", step, "%stride_rows", "%stride_columns",
            line, column, of.rows, of.pitch, t.times(of.pitch, 4),
        ]  # fmt: skip
        t(f"call void {gather_name(t.lanes)}(ptr {source}, ptr {here}, {words(given)})")


def words(numbers: Sequence[str | int]) -> str:
    """Whole numbers as arguments."""
    return ", ".join(f"i64 {n}" for n in numbers)


def gather_name(lanes: int) -> str:
    """The function that lays out what is seen of an image with zeros around it."""
    return f"@gather.{lanes}"


def gather_text(vectors: CpuDevice) -> Written:
    """The function that lays out what a block sees of one phase of one channel."""
    t = BlockText(vectors.lanes)
    nothing = t.number(0.0)
    dense = t.let("icmp eq i64 %step, 4")
    packed = t.let("icmp eq i64 %element, 4")
    second = t.let(f"and i1 {t.let('icmp eq i64 %step, 8')}, {packed}")
    fourth = t.let(f"and i1 {t.let('icmp eq i64 %step, 16')}, {packed}")
    near = t.let(f"or i1 {t.let(f'or i1 {dense}, {second}')}, {fourth}")
    # Columns whose place in the image, first + column * stride, is inside it.
    low = t.most(0, t.rounded_up(t.minus(0, "%first_column"), "%column_stride"))
    high = t.rounded_up(t.minus("%width", "%first_column"), "%column_stride")
    inside_columns = t.most(0, t.minus(high, low))
    # Neighbours that are all inside the image are copied as they are, but for the end.
    reaches = t.let(f"icmp sle i64 {t.plus('%first_column', '%columns')}, %width")
    begins = t.let("icmp sge i64 %first_column, 0")
    whole = t.let(f"and i1 {dense}, {t.let(f'and i1 {reaches}, {begins}')}")
    with t.loop("0", "%rows") as row:
        line = t.plus("%first_row", t.times(row, "%row_stride"))
        inside = t.let(f"icmp ult i64 {line}, %height")
        count, width = t.chosen(inside, inside_columns, 0), t.chosen(inside, "%width", 0)
        source = t.at("%x", t.times(line, "%row_step"))
        target = t.at("%s", t.times(row, "%pitch"))
        plain = t.let(f"and i1 {whole}, {inside}")
        with t.when(plain):
            begin = t.at(source, t.times("%first_column", 4))
            with t.loop("0", t.quotient("%columns", vectors.lanes)) as vector:
                by = t.times(vector, 4 * vectors.lanes)
                t.store(t.load(t.at(begin, by)), t.at(target, by))
        done = t.times(t.quotient("%columns", vectors.lanes), vectors.lanes)
        with t.steps(t.chosen(plain, done, 0), "%columns", vectors.lanes) as column:
            mask = t.lanes_within(t.minus(column, low), count)
            start = t.plus("%first_column", t.times(column, "%column_stride"))
            place = t.at(source, t.times(start, "%element"))
            here = t.at(target, t.times(column, 4))
            with t.when(dense):
                t.store(t.load_where(mask, place, nothing), here)
            for stride, holds in ((2, second), (4, fourth)):
                with t.when(holds):
                    t.store(_every(t, stride, place, start, width, nothing), here)
            with t.otherwise(near):
                t.store(t.gather_where(mask, place, "%step", nothing), here)
    names = "height width row_step element step row_stride column_stride first_row first_column rows columns pitch"
    header = (
        f"void {gather_name(vectors.lanes)}(ptr noalias readonly %x, ptr noalias %s, "
        f"{', '.join(f'i64 %{n}' for n in names.split())}) noinline nounwind"
    )
    return t.function(header), tuple(t.used)


def _every(t: BlockText, stride: int, place: str, start: str, width: str, nothing: str) -> str:
    """Every second or fourth of neighbours: as many vectors of them, thinned out by twos."""
    lanes = t.lanes
    parts = [
        t.load_where(t.lanes_within(t.plus(start, i * lanes), width), t.at(place, 4 * i * lanes), nothing)
        for i in range(stride)
    ]
    while len(parts) > 1:
        parts = [t.shuffle(x, y, range(0, 2 * lanes, 2)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def spread_name(lanes: int) -> str:
    """The function that lays out an image with zeros between its pixels."""
    return f"@spread.{lanes}"


def write_spread(t: BlockText, of: Layout, source: str, onto: str, first_row: str, first_column: str) -> None:
    """Instructions that lay out what a block sees of one channel, for a window that steps by one."""
    given = [
        "%height", "%width", "%row_step", "%column_step", "%spread_rows", "%spread_columns",
        t.minus(first_row, "%above"), t.minus(first_column, "%before"), of.rows, of.pitch,
    ]  # fmt: skip
    t(f"call void {spread_name(t.lanes)}(ptr {source}, ptr {onto}, {words(given)})")


def spread_text(vectors: CpuDevice) -> Written:
    """The function that lays out what a block sees of one channel whose pixels lie apart."""
    t = BlockText(vectors.lanes)
    low = t.most(0, t.rounded_up("%first_column", "%spread_columns"))
    high = t.least("%width", t.rounded_up(t.plus("%first_column", "%columns"), "%spread_columns"))
    with t.loop("0", "%rows") as row:
        target = t.at("%s", t.times(t.times(row, "%columns"), 4))
        with t.steps("0", "%columns", vectors.lanes) as column:
            t.store("zeroinitializer", t.at(target, t.times(column, 4)))
        line = t.plus("%first_row", row)
        own = t.quotient(line, "%spread_rows")
        met = t.let(f"icmp eq i64 {t.rest(line, '%spread_rows')}, 0")
        inside = t.let(f"and i1 {met}, {t.let(f'icmp ult i64 {own}, %height')}")
        source = t.at("%x", t.times(own, "%row_step"))
        with t.when(inside), t.loop(low, high) as column:
            x = t.let(f"load float, ptr {t.at(source, t.times(column, '%element'))}, align 4")
            at = t.minus(t.times(column, "%spread_columns"), "%first_column")
            t(f"store float {x}, ptr {t.at(target, t.times(at, 4))}, align 4")
    names = "height width row_step element spread_rows spread_columns first_row first_column rows columns"
    header = (
        f"void {spread_name(vectors.lanes)}(ptr noalias readonly %x, ptr noalias %s, "
        f"{', '.join(f'i64 %{n}' for n in names.split())}) noinline nounwind optsize"
    )
    return t.function(header), tuple(t.used)
