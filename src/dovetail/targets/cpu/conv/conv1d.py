"""Convolution along one axis by im2col: what each output pixel sees becomes a row, and rows are multiplied with panels.

A cell is one panel of filters for one block of pixels; pixels are numbered through all images.

It stays apart from the other nests: panels, micro-kernel and epilogue are those of a matrix product, and pixels of
several images share a register tile.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.codegen.llvm.arguments import NamedArguments, store_words
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, assemble_with, inner_name
from dovetail.codegen.llvm.once import HEAD, once_for
from dovetail.dataclass import dataclass
from dovetail.declare.cost import kernel_cost
from dovetail.ir.dim import Size, smallest, symbol
from dovetail.ir.dtype import DType, f32, i64
from dovetail.ir.graph import Subgraph
from dovetail.ir.inline import inline
from dovetail.ir.literal import Array
from dovetail.ir.type import TupleType
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.map import elementwise
from dovetail.kernels.loops.body import Body, is_compiled, is_number, reads
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Set,
    Store,
    Tensor,
    add,
    sizes_in,
    stretched,
)
from dovetail.kernels.spec import Job, Packed, TensorLocations, Tiles
from dovetail.ops.convolution import conv
from dovetail.ops.region import anchor_of, region
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.gemm.driver import LIVE, words_bytes
from dovetail.targets.cpu.gemm.f32.block import block_function
from dovetail.targets.cpu.gemm.f32.pack import Panels
from dovetail.targets.cpu.gemm.tile import Tile, tile_of

FIRST = symbol("first_pixel")
"""The first pixel of a block, as the epilogue names it."""


@dataclass(frozen=True, slots=True)
class Conv1d:
    """What the code depends on; everything else is an argument, named in `sizes`."""

    tile: Tile
    channels: int
    taps: int
    stride: int
    dilation: int
    filters: int
    dense: str
    """The axis of x along which elements are contiguous: `step` or `channel`, if any."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads in addition to the sums."""
    pointers: tuple[str, ...]
    sizes: tuple[str, ...]

    @property
    def deep(self) -> int:
        return self.channels * self.taps

    @property
    def along_channels(self) -> bool:
        """Whether channels are innermost in a row, and not taps: whatever there is more of."""
        return self.channels >= self.taps

    @property
    def panels(self) -> int:
        return -(-self.filters // self.tile.columns)

    @property
    def pitch(self) -> int:
        """Bytes between rows."""
        return 4 * self.deep + 64

    @property
    def pieces(self) -> int:
        """The short sums that one sum is split into."""
        return -(-self.deep // BLOCKS.conv1d.piece)

    def totals(self, epilogue: Kernel) -> int:
        """Offset of the sums of all pieces from the end of the workspace's head."""
        return words_bytes(epilogue) + words_bytes(_added(self.tile))


def conv1d_code(shape: Conv1d, epilogue: Kernel) -> KernelCode:
    """The kernel with its epilogue."""
    driver = _Driver(shape, epilogue)
    part, block = block_function(shape.tile)
    code = assemble_with("conv1d", [driver.function(DRIVER, attributes="nounwind")], [epilogue, driver.added])
    return KernelCode(code.name, code.text, (*code.uses, block.declaration), (part,))


def _added(tile: Tile) -> Kernel:
    """Adds the sums of a piece to those of the pieces before."""
    at = (Name("row"), Name("column"))
    sums, totals = (Tensor(name, f32, (tile.row_bytes, f32.itemsize)) for name in ("sums", "totals"))
    store = Store(totals, at, Call("add", (Load(totals, at), Load(sums, at)), f32))
    body = (Loop("column", Extent(tile.columns), (store,), lanes=tile.lanes),)
    return Kernel("add", ("sums", "totals"), ("totals",), "row", body)


class _Driver(Builder):
    """The function that goes through cells."""

    def __init__(self, shape: Conv1d, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.added = _added(shape.tile)
        self.arguments = NamedArguments.load(self, WORDS, shape.pointers, shape.sizes)
        self.room = self.ptr_add(SCRATCH, HEAD)
        with self.loop(BEGIN, END) as cell:
            self._cell(cell)

    def size(self, name: str) -> Int:
        return f32.itemsize if name == self.shape.dense else self.arguments.sizes[name]

    def _cell(self, cell: I64) -> None:
        shape, tile = self.shape, self.shape.tile
        panel, block = self.urem(cell, shape.panels), self.udiv(cell, shape.panels)
        pixels, blocks = self.size("pixels"), self.size("blocks")
        height = self.udiv(self.sub(self.add(pixels, blocks), 1), blocks)
        first = self.mul(block, height)
        count = self.smin(height, self.sub(pixels, first))
        totals = self.ptr_add(self.room, shape.totals(self.epilogue))
        sums = self.ptr_add(SCRATCH, self.size("sums"))
        rows = self.ptr_add(SCRATCH, self.size("copy"))
        with self.when(once_for(self, SCRATCH, 0, block)), self.loop(0, count) as row:
            self._row(self.add(first, row), self.ptr_add(rows, self.mul(row, shape.pitch)))
        column = self.mul(panel, tile.columns)
        columns = self.smin(tile.columns, self.sub(shape.filters, column))
        self._epilogue_words(totals, first, column, columns)
        self._clear(totals, 0, self.mul(count, tile.columns))
        self._multiply(rows, sums, totals, panel, count)
        self.emit(f"call void @{inner_name(self.epilogue)}(ptr {self.room}, i64 0, i64 {count}, ptr null)")

    def _multiply(self, rows: Ptr, sums: Ptr, totals: Ptr, panel: I64, count: I64) -> None:
        """Multiply the rows of a block with a panel of filters, piece by piece."""
        shape, tile = self.shape, self.shape.tile
        words = self.ptr_add(self.room, words_bytes(self.epilogue))
        store_words(self, [sums, totals], words)
        panels = self.ptr_add(self.arguments.pointers["w"], self.mul(panel, shape.deep * tile.row_bytes))
        added = Ptr(f"@{inner_name(self.added)}")
        _, block = block_function(tile)
        with self.loop(0, shape.pieces) as piece:
            start = self.mul(piece, BLOCKS.conv1d.piece)
            steps = self.smin(BLOCKS.conv1d.piece, self.sub(shape.deep, start))
            a, b = self.ptr_add(rows, self.mul(start, 4)), self.ptr_add(panels, self.mul(start, tile.row_bytes))
            # A width of 0: results are far apart, and are not prefetched.
            self.call(block, a, shape.pitch, b, count, steps, sums, sums, 0, 0, added, words)

    def _row(self, pixel: I64, target: Ptr) -> None:
        """What one pixel sees, zeros beyond the ends."""
        shape = self.shape
        image, along = self.udiv(pixel, self.size("positions")), self.urem(pixel, self.size("positions"))
        source = self.ptr_add(self.arguments.pointers["x"], self.size("x_offset"))
        source = self.ptr_add(source, self.mul(image, self.size("image")))
        start = self.sub(self.mul(along, shape.stride), self.size("before"))
        if shape.along_channels:
            self._row_by_taps(source, start, target)
        else:
            self._row_by_channels(source, start, target)

    def _row_by_taps(self, source: Ptr, start: I64, target: Ptr) -> None:
        shape = self.shape
        with self.loop(0, shape.taps) as tap:
            at = self.add(start, self.mul(tap, shape.dilation))
            onto = self.ptr_add(target, self.mul(tap, 4 * shape.channels))
            inside = self.icmp("ult", at, self.size("length"))
            with self.when(inside):
                here = self.ptr_add(source, self.mul(at, self.size("step")))
                self._copy(here, self.size("channel"), onto, 0, shape.channels)
            with self.unless(inside):
                self._clear(onto, 0, shape.channels)

    def _row_by_channels(self, source: Ptr, start: I64, target: Ptr) -> None:
        shape, step = self.shape, self.size("step")
        low, high = self._taps_before(0, start), self._taps_before(self.size("length"), start)
        with self.loop(0, shape.channels) as channel:
            onto = self.ptr_add(target, self.mul(channel, 4 * shape.taps))
            here = self.ptr_add(source, self.mul(channel, self.size("channel")))
            here = self.ptr_add(here, self.mul(start, step))
            self._clear(onto, 0, low)
            self._copy(here, self.mul(step, shape.dilation), onto, low, high)
            self._clear(onto, high, shape.taps)

    def _taps_before(self, end: Int, start: I64) -> I64:
        """How many taps are before an element, the first one at `start`."""
        dilation = self.shape.dilation
        distance = self.smax(self.sub(end, start), 0)
        return self.smin(self.udiv(self.add(distance, dilation - 1), dilation), self.shape.taps)

    def _copy(self, source: Ptr, step: Int, target: Ptr, first: Int, end: Int) -> None:
        with self.loop(first, end) as i:
            element = self.load_f32(self.ptr_add(source, self.mul(i, step)))
            self.store_f32(element, self.element(target, "float", i))

    def _clear(self, target: Ptr, first: Int, end: Int) -> None:
        with self.loop(first, end) as i:
            self.emit(f"store float 0.0, ptr {self.element(target, 'float', i)}, align 4")

    def _epilogue_words(self, totals: Ptr, first: I64, column: I64, columns: I64) -> None:
        """The words of the epilogue for this cell."""
        words: list[Ptr | I64] = [totals]
        for name in (*self.shape.operands, "y"):
            words.append(self.ptr_add(self.arguments.pointers[name], self.mul(column, self.size(f"{name}_filter"))))
        known = {LIVE: columns, FIRST: first}
        words += [known[size] if size in known else self.arguments.sizes[str(size)] for size in self.epilogue.sizes]
        store_words(self, words, self.room)


@dataclass(frozen=True, slots=True)
class LinePanels:
    """Filters [m, c, taps] as panels of columns, taps or channels innermost in a row."""

    columns: int
    along_channels: bool

    @property
    def layout(self) -> str:
        """Equal for equal layouts."""
        return f"line {self.columns} {self.along_channels}"

    def __call__(self, of: Array) -> Array:
        order = (2, 1, 0) if self.along_channels else (1, 2, 0)
        matrix = of.transpose(order).reshape(-1, of.shape[0])
        return Panels(self.columns, ((0, 0),), of.shape[0])(matrix)


def offer_conv1d(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a convolution along one axis, with filters that are known when parameters are bound."""
    value, locations, device = of.value, of.locations, of.device
    call = anchor_of(value.attrs["body"]) if value.op is region else value
    if call is None or isinstance(value.type, TupleType) or value.rank != 3 or call.attrs["groups"] != 1:
        return Refused("one_spatial_axis_and_group", str(value.type))
    if isinstance(value.shape[2], int) and value.shape[2] > BLOCKS.conv1d.few * device.lanes:
        return Refused("pixels_are_few", str(value.shape[2]), f"at most {BLOCKS.conv1d.few * device.lanes}")
    body = of.body
    convs = [v for v in body.order if v.op is conv]
    others = [v for v in body.order if v.op is not conv]
    if len(convs) != 1 or any(v.dtype is not f32 for v in (convs[0], *convs[0].operands)):
        return Refused("convolution_is_f32", value.dtype.name)
    x, w = convs[0].operands
    known = {*body.order, *body.views}
    if x not in body.views or w not in body.arguments or not locations.is_bound(body.arguments[w]):
        return Refused("weights_are_bound", "weights of a run")
    if not all(is_compiled(v, body.scalars) for v in others):
        return Refused("epilogue_is_compiled", ", ".join(v.op.name for v in others))
    if any(v not in known and not is_number(v) for other in others for v in other.operands):
        return Refused("epilogue_reads_operands", "an array of constants")
    filters = w.shape[0]
    if not isinstance(filters, int) or 0 in w.shape:
        return Refused("filters_are_known", str(filters))
    # With few filters most of a panel is empty, which pays where channels are contiguous already.
    if filters < device.lanes and body.views[x].strides[1] != f32.itemsize:
        return Refused("filters_fill_a_vector", str(filters), f"at least {device.lanes}, or contiguous channels")
    return Offer(
        lambda: _Writer(value, body, convs[0], locations, tile_of(device)).job(),
        lambda: kernel_cost(_without_steps(value, call)),
        name="conv1d",
    )


def _without_steps(value: Value, call: Value) -> Value:
    """The convolution alone, for an estimate: those of the other kernels leave out the steps of a region too."""
    if value is call:
        return value
    return inline(Subgraph(value.attrs["body"].arguments, (call,)), value.operands)[0]


class _Writer:
    """The job of one convolution while it is put together."""

    def __init__(self, value: Value, body: Body, call: Value, locations: TensorLocations, tile: Tile) -> None:
        self.value, self.body, self.call, self.locations, self.tile = value, body, call, locations, tile
        x, w = call.operands
        others = {v for other in body.order if other is not call for v in other.operands}
        self.operands = {v: f"e{i}" for i, v in enumerate(v for v in reads(body) if v in others)}
        self.w = body.arguments[w]
        at = body.views[x]
        count = value.shape[0] * value.shape[2]
        self.sizes: dict[str, Size] = {
            "pixels": count,
            "positions": value.shape[2],
            "length": x.shape[2],
            "before": call.attrs["padding"][0],
            "image": at.strides[0],
            "channel": at.strides[1],
            "step": at.strides[2],
            "x_offset": at.offset,
        }
        self.x = body.arguments[at.root]
        block = BLOCKS.conv1d.high * tile.rows
        self.block = smallest(count, block)
        self.sizes["blocks"] = (count + (block - 1)) // block

    def job(self) -> Job:
        bindings: dict[str, Value | Packed] = {"x": self.x}
        strides = {"y": self.locations(self.value).strides}
        for view, name in self.operands.items():
            at = self.body.views[view]
            strides[name] = stretched(at.strides, view.shape, self.value.shape)
            bindings[name] = self.body.arguments[at.root]
            self.sizes[f"{name}_offset"] = at.offset
        for name, (image, of_filter, step) in strides.items():
            self.sizes |= {f"{name}_image": image, f"{name}_filter": of_filter, f"{name}_step": step}
        epilogue = self._epilogue()
        line = self._line(("x", "w", *self.operands.values(), "y"))
        pack = LinePanels(self.tile.columns, line.along_channels)
        bindings |= {"w": Packed(self.w, pack.layout, pack), "y": self.value}
        sums = HEAD + line.totals(epilogue) + self.block * self.tile.row_bytes
        start = sums + self.block * self.tile.row_bytes
        self.sizes |= {"sums": sums, "copy": start}
        line = self._line(line.pointers)
        scratch = start + self.block * line.pitch
        template = conv1d_code(line, epilogue).template(line.pointers, tuple(self.sizes.values()), scratch)
        template = replace(template, variant="conv1d")
        work = self.block * line.deep * self.tile.columns
        return Job(template, bindings, Tiles(self.sizes["blocks"] * line.panels, work))

    def _line(self, pointers: tuple[str, ...]) -> Conv1d:
        filters, channels, taps = (n for n in self.w.shape if isinstance(n, int))
        attrs = self.call.attrs
        dense = next((axis for axis in ("step", "channel") if self.sizes[axis] == f32.itemsize), "")
        return Conv1d(
            self.tile, channels, taps, attrs["strides"][0], attrs["dilations"][0], filters, dense,
            tuple(self.operands.values()), pointers, tuple(self.sizes),
        )  # fmt: skip

    def _epilogue(self) -> Kernel:
        """The elementwise work on the sums of one panel, pixel by pixel."""
        at: tuple[Expr, ...] = (Name("image"), Name("column"), Name("along"))
        sums = Load(Tensor("sums", f32, (self.tile.row_bytes, f32.itemsize)), (Name("row"), Name("column")))
        leaves: dict[Value, Expr] = {self.call: sums}
        leaves |= {view: Load(self._tensor(name, view.dtype), at) for view, name in self.operands.items()}
        positions = Extent(symbol("positions"))
        (result,) = elementwise([self.body.results[0]], leaves)
        # A panel is too narrow for what LLVM would choose; a scalar loop takes the filters after full vectors.
        store = Store(self._tensor("y", result.dtype), at, result)
        filters = Loop("column", Extent(LIVE), (store,), lanes=self.tile.lanes)
        body = (
            Set("pixel", add(Name("row"), Extent(FIRST))),
            Set("image", Call("div", (Name("pixel"), positions), i64)),
            Set("along", Call("rem", (Name("pixel"), positions), i64)),
            filters,
        )
        pointers = ("sums", *self.operands.values(), "y")
        return Kernel("epilogue", pointers, ("y",), "row", body, sizes=sizes_in(body))

    def _tensor(self, name: str, dtype: DType) -> Tensor:
        """A tensor that is read or written at an image, a filter and a pixel; `name` points to the first filter."""
        words = [f"{name}_image", f"{name}_filter", f"{name}_step"]
        strides = tuple(size if isinstance(size := self.sizes[w], int) else symbol(w) for w in words)
        offset = self.sizes.get(f"{name}_offset", 0)
        return Tensor(name, dtype, strides, offset if isinstance(offset, int) else symbol(f"{name}_offset"))
