"""Contract: products of one left operand with one or more right ones, with elementwise work on them in the epilogue."""

from __future__ import annotations

from dataclasses import replace

from dovetail import library, ops
from dovetail.ir.dim import Size, product, smallest, symbol
from dovetail.ir.dtype import f32
from dovetail.ir.type import TupleType
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.body import Body, cast_to, lying_beneath
from dovetail.kernels.loops.ir import (
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Store,
    Tensor,
    collapsed,
    sizes_in,
    stretched,
)
from dovetail.kernels.problems.contraction import Contraction, epilogue_of, find_contraction
from dovetail.kernels.spec import Job, Packed, TensorLocations, Tiles
from dovetail.ops.region import region
from dovetail.plan.plan import Step
from dovetail.targets.cpu.gemm.driver import LIVE, Shape, Source, gemm_code, words_bytes
from dovetail.targets.cpu.gemm.micro_kernel import Tile, tile_of
from dovetail.targets.cpu.gemm.pack import Panels
from dovetail.targets.cpu.gemm.policy import GEMM
from dovetail.targets.runtime.aligned import ALIGNMENT

SERVED = (ops.matmul, library.linear, library.matmul_add, library.swiglu, library.wide_swiglu)


def offer_gemm(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a contraction of floats that are summed in f32, and of any declared op that is one."""
    op = of.value.op
    if op not in SERVED and op is not region and isinstance(of.value.type, TupleType):
        return Refused("declared_op_has_one_result", str(of.value.type))
    found = of.once(find_contraction)
    if isinstance(found, Refused):
        return found
    tile = tile_of(of.device, len(found.streams))
    return Offer(lambda: _Writer(of.step, found, of.locations, tile).job())


class _Writer:
    """The job of one contraction while it is put together."""

    def __init__(self, step: Step, found: Contraction, locations: TensorLocations, tile: Tile) -> None:
        self.step, self.found, self.locations, self.tile = step, found, locations, tile
        self.body = found.body
        beneath = lying_beneath(step, locations)
        self.beneath = {v for v in found.operands if found.operand(v) in beneath}
        self.beside = tuple(v for v in found.operands if v not in self.beneath)
        self.width = tile.columns // len(found.streams)
        columns = found.result.shape[-1]
        self.panels = (columns + (self.width - 1)) // self.width
        # Both sides say how deep a product is; a number is worth more than a symbol that has to equal it.
        depths = (found.left.shape[-1], *(right.shape[-2] for right in found.rights))
        self.deep = next((size for size in depths if isinstance(size, int)), depths[0])
        self.bindings: dict[str, Value | Packed] = {}
        self.fronts: dict[str, tuple[Size, ...]] = {}
        """Strides of each pointer along the axes of the result but the last."""
        self.sizes: dict[str, Size] = {"columns": columns, "deep": self.deep, "panels": self.panels}

    def job(self) -> Job:
        rows = self._rows()
        panels = self._panels()
        operands = self._operands()
        first, *more = self.step.results
        self._point("c", first, self.locations(first).strides, first.shape)
        for name, also in zip(self._others(), more, strict=True):
            self._point(name, also, self.locations(also).strides, also.shape)
        count, batch = self._fold()
        block = self._block()
        blocks = (count + (block - 1)) // block
        self.sizes |= {"rows": count, "blocks": blocks}
        epilogue = self._epilogue("epilogue", self._live())
        whole = None if self._live() != LIVE else replace(self._epilogue("whole", self.width), sizes=epilogue.sizes)
        scratch = self._scratch(words_bytes(epilogue), smallest(count, block), rows, panels)
        shape = Shape(
            self.tile,
            len(self.found.streams),
            rows,
            panels,
            (*operands, *self._others()),
            len(batch),
            tuple(self.bindings),
            tuple(self.sizes),
            self._fetched(operands),
        )
        code = gemm_code(shape, epilogue, whole)
        template = code.template(self.bindings, tuple(self.sizes.values()), scratch)
        tiles = product(batch) * blocks * self.panels
        return Job(template, self.bindings, Tiles(tiles, count * self.deep * self.tile.columns))

    def _point(self, name: str, of: Value, strides: tuple[Size, ...], shape: tuple[Size, ...]) -> None:
        """A tensor that is read or written at rows and columns of the result."""
        spread = stretched(strides, shape, self.found.result.shape)
        self.bindings[name] = of
        self.fronts[name] = spread[:-1]
        self.sizes[f"{name}_column"] = spread[-1]

    def _rows(self) -> Source | None:
        """The left operand; where it is not dense f32 along k, rows are copied."""
        left = self.found.left
        strides = self.body.views[left].strides
        self.bindings["a"] = self.found.operand(left)
        self.fronts["a"] = stretched(strides[:-1], left.shape[:-1], self.found.result.shape[:-1])
        if left.dtype is f32 and (strides[-1] == f32.itemsize or self.deep == 1):
            return None
        self.sizes["a_k"] = strides[-1]
        return Source("a", left.dtype)

    def _panels(self) -> tuple[Source, ...]:
        """The right operands: packed before the run where they are known, else as each cell comes to them."""
        found, views = self.found, self.body.views
        rights = found.rights
        of = [found.operand(r) for r in rights]
        front = found.result.shape[:-2]
        turned = {_is_turned(right, self.body) for right in rights}
        if all(map(self.locations.is_bound, of)) and len(turned) == 1 and None not in turned:
            streams = tuple((i, _whole(first)) for i, first in found.streams)
            pack = Panels(self.tile.columns, streams, _whole(self.sizes["columns"]), True in turned)
            self.bindings["b0"] = Packed(of[0], pack.layout, pack, tuple(of[1:]))
            own = rights[0].shape[:-2]
            self.fronts["b0"] = (
                *stretched(_steps(own, _whole(self.panels * self.deep) * self.tile.row_bytes), own, front),
                0,
            )
            return ()
        for i, right in enumerate(rights):
            strides = views[right].strides
            self.bindings[f"b{i}"] = of[i]
            self.fronts[f"b{i}"] = (*stretched(strides[:-2], right.shape[:-2], front), 0)
            self.sizes |= {f"b{i}_k": strides[-2], f"b{i}_column": strides[-1]}
        for stream, (i, first) in enumerate(found.streams):
            self.sizes[f"stream{stream}"] = first * views[rights[i]].strides[-1]
        return tuple(
            Source(
                f"b{i}", rights[i].dtype, dense=(rights[i].dtype, views[rights[i]].strides[-1]) == (f32, f32.itemsize)
            )
            for i, _ in found.streams
        )

    def _operands(self) -> tuple[str, ...]:
        """What the epilogue reads, each view by a pointer of its own."""
        names: list[str] = []
        for i, view in enumerate(self.beside):
            at = self.body.views[view]
            shape = view.shape
            wide = self.found.parts > 1 and shape and shape[-1] == self.found.products[0].shape[-1]
            # Each part of the columns is read at an offset of its own.
            narrow = (*shape[:-1], self.found.result.shape[-1]) if wide else shape
            self._point(f"e{i}", self.found.operand(view), at.strides, narrow)
            step = self.found.result.shape[-1] * at.strides[-1] if wide else 0
            self.sizes |= {f"e{i}_part{n}": at.offset + n * step for n in range(self.found.parts if wide else 1)}
            names.append(f"e{i}")
        return tuple(names)

    def _others(self) -> tuple[str, ...]:
        """The pointers of all results but the first."""
        return tuple([f"d{i}" for i in range(len(self.body.results) - 1)])

    def _fetched(self, operands: tuple[str, ...]) -> tuple[str, ...]:
        """The operands with rows of their own."""
        return tuple([name for name in operands if self.sizes[f"{name}_row"] != 0])

    def _fold(self) -> tuple[Size, tuple[Size, ...]]:
        """Axes in front become rows where everything lies so; how many rows there are, and the axes that are left."""
        shape, fronts = collapsed(self.found.result.shape[:-1], list(self.fronts.values()))
        shared = bool(shape) and all(f[-1] == 0 for name, f in zip(self.fronts, fronts, strict=True) if name[0] == "b")
        count, batch = (shape[-1], shape[:-1]) if shared else (1, shape)
        for name, front in zip(self.fronts, fronts, strict=True):
            self.sizes[f"{name}_row"] = front[-1] if shared else 0
            self.sizes |= {f"{name}_batch{i}": front[i] for i in range(len(batch))}
        self.sizes |= {f"batch{i}": n for i, n in enumerate(batch)}
        return count, batch

    def _block(self) -> int:
        """Rows that one cell goes through."""
        if not isinstance(self.deep, int):
            return 8 * self.tile.rows
        above, below = GEMM.a_share
        room = self.tile.device.caches.l2 * above // below
        tiles = room // max(1, f32.itemsize * self.deep * self.tile.rows)
        # Where there are few columns, threads share the rows.
        most = GEMM.few_tiles if isinstance(self.panels, int) and self.panels <= GEMM.few_panels else GEMM.most_tiles
        return self.tile.rows * min(most, max(1, tiles))

    def _scratch(self, start: int, block: Size, rows: Source | None, panels: tuple[Source, ...]) -> Size:
        """Words of the epilogue, sums, and copies; how many bytes they take."""
        end: Size = start + block * self.tile.row_bytes
        if panels:
            self.sizes["b_copy"] = end
            end = end + self.deep * self.tile.row_bytes
        if rows is not None:
            pitch = self.deep * f32.itemsize + ALIGNMENT
            self.sizes |= {"a_copy": end, "a_pitch": pitch}
            end = end + pitch * block
        return end

    def _epilogue(self, kernel: str, live: Size) -> Kernel:
        """The elementwise work on the sums of one panel, of which some columns are live, row by row."""
        at = (Name("row"), Name("column"))
        found: dict[Value, list[Expr]] = {}
        product = 0
        for value in self.found.products:
            sums = [
                Tensor("sums", f32, (self.tile.row_bytes, f32.itemsize), (product + i) * self.width * f32.itemsize)
                for i in range(self.found.parts)
            ]
            product += self.found.parts
            found[value] = [cast_to(Load(t, at), value.dtype) for t in sums]
        result = self.found.result
        target = Tensor("c", result.dtype, (symbol("c_row"), result.dtype.itemsize))
        for view in self.beneath:
            found[view] = [Load(replace(target, dtype=view.dtype), at)]
        for i, view in enumerate(self.beside):
            found[view] = [Load(t, at) for t in self._read(f"e{i}", view)]
        first, *more = epilogue_of(self.found, found)
        # A panel is too narrow for what LLVM would choose; a scalar loop takes the columns behind whole vectors.
        stores = [Store(target, at, first)]
        for name, also, value in zip(self._others(), self.body.results[1:], more, strict=True):
            written = Tensor(name, also.dtype, (symbol(f"{name}_row"), also.dtype.itemsize))
            stores.append(Store(written, at, value))
        body = (Loop("column", Extent(live), tuple(stores), lanes=self.tile.lanes),)
        pointers = ("sums", *(f"e{i}" for i in range(len(self.beside))), *self._others(), "c")
        return Kernel(kernel, pointers, (*self._others(), "c"), "row", body, sizes=tuple(sizes_in(body)))

    def _live(self) -> Size:
        """How many columns of a panel there are: a number where all panels are full."""
        columns = self.sizes["columns"]
        return self.width if isinstance(columns, int) and columns % self.width == 0 else LIVE

    def _read(self, name: str, view: Value) -> list[Tensor]:
        """An operand of the epilogue, once for each part of the columns."""
        column = self.sizes[f"{name}_column"]
        strides = (symbol(f"{name}_row"), column if isinstance(column, int) else symbol(f"{name}_column"))
        offsets = [(word, size) for word, size in self.sizes.items() if word.startswith(f"{name}_part")]
        return [Tensor(name, view.dtype, strides, 0 if size == 0 else symbol(word)) for word, size in offsets]


def _is_turned(right: Value, body: Body) -> bool | None:
    """Whether an operand is read with columns for rows; None where it is seen in another way."""
    if right in body.arguments:
        return False
    return True if right.op is ops.permute and right.operands[0] in body.arguments and right.rank == 2 else None


def _steps(shape: tuple[Size, ...], size: int) -> tuple[Size, ...]:
    """How far apart pieces of a size lie along each axis."""
    steps: list[Size] = []
    for n in reversed(shape):
        steps.append(size)
        size = size * _whole(n)
    return tuple(reversed(steps))


def _whole(size: Size) -> int:
    assert isinstance(size, int), "what is known before a run has known sizes"
    return size
