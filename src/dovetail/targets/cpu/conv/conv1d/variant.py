"""Convolution along one axis with few output pixels: im2col rows times packed panels of filters.

Code with pixels in the lanes of a vector leaves most lanes empty when a result is four pixels long, and a size that is
not known may be one of those.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.codegen.llvm.once import HEAD
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
from dovetail.targets.cpu.conv.conv1d.kernel import FIRST, Conv1d, conv1d_code
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.gemm.driver import LIVE
from dovetail.targets.cpu.gemm.f32.pack import Panels
from dovetail.targets.cpu.gemm.tile import Tile, tile_of


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
    found = [v for v in body.order if v.op is conv]
    others = [v for v in body.order if v.op is not conv]
    if len(found) != 1 or any(v.dtype is not f32 for v in (found[0], *found[0].operands)):
        return Refused("convolution_is_f32", value.dtype.name)
    x, w = found[0].operands
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
        lambda: _Writer(value, body, found[0], locations, tile_of(device)).job(),
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

    def __init__(self, value: Value, body: Body, found: Value, locations: TensorLocations, tile: Tile) -> None:
        self.value, self.body, self.found, self.locations, self.tile = value, body, found, locations, tile
        x, w = found.operands
        others = {v for other in body.order if other is not found for v in other.operands}
        self.operands = {v: f"e{i}" for i, v in enumerate(v for v in reads(body) if v in others)}
        self.w = body.arguments[w]
        at = body.views[x]
        count = value.shape[0] * value.shape[2]
        self.sizes: dict[str, Size] = {
            "pixels": count,
            "positions": value.shape[2],
            "length": x.shape[2],
            "before": found.attrs["padding"][0],
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
        attrs = self.found.attrs
        dense = next((axis for axis in ("step", "channel") if self.sizes[axis] == f32.itemsize), "")
        return Conv1d(
            self.tile, channels, taps, attrs["strides"][0], attrs["dilations"][0], filters, dense,
            tuple(self.operands.values()), pointers, tuple(self.sizes),
        )  # fmt: skip

    def _epilogue(self) -> Kernel:
        """The elementwise work on the sums of one panel, pixel by pixel."""
        at: tuple[Expr, ...] = (Name("image"), Name("column"), Name("along"))
        sums = Load(Tensor("sums", f32, (self.tile.row_bytes, f32.itemsize)), (Name("row"), Name("column")))
        leaves: dict[Value, Expr] = {self.found: sums}
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
