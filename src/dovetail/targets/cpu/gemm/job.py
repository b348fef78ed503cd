"""The job of a GEMM: operands, folded axes, and the epilogue on the accumulators of a panel."""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.dim import Size, smallest, symbol
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.loops.body import cast_to, overwritten_operands
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
from dovetail.kernels.problems.contraction import Contraction, epilogue_of
from dovetail.kernels.spec import Packed, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cpu.gemm.driver import LIVE, Shape
from dovetail.targets.cpu.gemm.groups import Groups, group_count
from dovetail.targets.cpu.gemm.tile import Tile


class GemmJob:
    """The job of one contraction while it is put together."""

    def __init__(self, step: Step, contraction: Contraction, locations: TensorLocations, tile: Tile) -> None:
        self.step, self.contraction, self.locations, self.tile = step, contraction, locations, tile
        self.body = contraction.body
        overwritten = overwritten_operands(step, locations)
        self.overwritten = {v for v in contraction.operands if contraction.operand(v) in overwritten}
        self.beside = tuple(v for v in contraction.operands if v not in self.overwritten)
        self.width = tile.columns // len(contraction.streams)
        columns = contraction.result.shape[-1]
        self.panels = (columns + (self.width - 1)) // self.width
        # Both sides say how deep a product is; a number is worth more than a symbol that has to equal it.
        depths = (contraction.left.shape[-1], *(right.shape[-2] for right in contraction.rights))
        self.deep = next((size for size in depths if isinstance(size, int)), depths[0])
        self.bindings: dict[str, Value | Packed] = {}
        self.fronts: dict[str, tuple[Size, ...]] = {}
        """Strides of each pointer along the axes of the result but the last."""
        self.sizes: dict[str, Size] = {"columns": columns, "deep": self.deep, "panels": self.panels}

    def shape(self, operands: tuple[str, ...], batch: tuple[Size, ...]) -> Shape:
        """What the code depends on, after all operands have their sizes."""
        return Shape(
            self.tile,
            len(self.contraction.streams),
            (*operands, *self.others()),
            len(batch),
            tuple(self.bindings),
            tuple(self.sizes),
            self.fetched(operands),
            self.groups(),
        )

    rows = 0
    """Of a block of rows, at most; it is set before `shape` and `blocks` read it."""

    def groups(self) -> Groups | None:
        """The groups of rows, where each has a matrix of its own."""
        ends = self.contraction.ends
        return None if ends is None else Groups(group_count(ends), ends.dtype, self.rows)

    def blocks(self, count: Size) -> Size:
        """Blocks of rows, at most."""
        if self.contraction.ends is None:
            return (count + (self.rows - 1)) // self.rows
        # Each group that has rows has a block that is not full, and so have those after the last group.
        return smallest(group_count(self.contraction.ends) + 1, count) + count // self.rows

    def block_rows(self, count: Size) -> Size:
        """About how many rows a block has."""
        groups = 1 if self.contraction.ends is None else group_count(self.contraction.ends)
        return (count + (groups - 1)) // groups

    def point_weights(self, packed: Packed, front: tuple[Size, ...]) -> None:
        """Bind the packed weights by their strides along all axes of the result but the last, and ends of groups."""
        self.bindings["b0"] = packed
        ends = self.contraction.ends
        self.fronts["b0"] = front if ends is None else (0,) * (self.contraction.result.rank - 1)
        if ends is not None:
            self.bindings["ends"] = self.contraction.operand(ends)
            self.sizes["ends_step"] = self.body.views[ends].strides[-1]

    def point_left(self) -> Size:
        """The left operand at rows of the result; its stride along k."""
        left = self.contraction.left
        strides = self.body.views[left].strides
        self.bindings["a"] = self.contraction.operand(left)
        self.fronts["a"] = stretched(strides[:-1], left.shape[:-1], self.contraction.result.shape[:-1])
        return strides[-1]

    def point_results(self) -> None:
        """The results of the step, at rows and columns."""
        first, *more = self.step.results
        self.point("c", first, self.locations(first).strides, first.shape)
        for name, also in zip(self.others(), more, strict=True):
            self.point(name, also, self.locations(also).strides, also.shape)

    def point(self, name: str, of: Value, strides: tuple[Size, ...], shape: tuple[Size, ...]) -> None:
        """A tensor that is read or written at rows and columns of the result."""
        spread = stretched(strides, shape, self.contraction.result.shape)
        self.bindings[name] = of
        self.fronts[name] = spread[:-1]
        self.sizes[f"{name}_column"] = spread[-1]

    def operands(self) -> tuple[str, ...]:
        """Bind the operands of the epilogue, each view by a pointer of its own."""
        names: list[str] = []
        for i, view in enumerate(self.beside):
            at = self.body.views[view]
            shape = view.shape
            wide = self.contraction.parts > 1 and shape and shape[-1] == self.contraction.products[0].shape[-1]
            # Each part of the columns is read at an offset of its own.
            narrow = (*shape[:-1], self.contraction.result.shape[-1]) if wide else shape
            self.point(f"e{i}", self.contraction.operand(view), at.strides, narrow)
            step = self.contraction.result.shape[-1] * at.strides[-1] if wide else 0
            self.sizes |= {f"e{i}_part{n}": at.offset + n * step for n in range(self.contraction.parts if wide else 1)}
            names.append(f"e{i}")
        return tuple(names)

    def others(self) -> tuple[str, ...]:
        """The pointers of all results but the first."""
        return tuple([f"d{i}" for i in range(len(self.body.results) - 1)])

    def fetched(self, operands: tuple[str, ...]) -> tuple[str, ...]:
        """The operands with rows of their own."""
        return tuple([name for name in operands if self.sizes[f"{name}_row"] != 0])

    def fold(self) -> tuple[Size, tuple[Size, ...]]:
        """Leading axes become rows where all strides allow it: the number of rows, and the axes that are left."""
        shape, fronts = collapsed(self.contraction.result.shape[:-1], list(self.fronts.values()))
        shared = bool(shape) and all(f[-1] == 0 for name, f in zip(self.fronts, fronts, strict=True) if name[0] == "b")
        count, batch = (shape[-1], shape[:-1]) if shared else (1, shape)
        for name, front in zip(self.fronts, fronts, strict=True):
            self.sizes[f"{name}_row"] = front[-1] if shared else 0
            self.sizes |= {f"{name}_batch{i}": front[i] for i in range(len(batch))}
        self.sizes |= {f"batch{i}": n for i, n in enumerate(batch)}
        return count, batch

    def epilogues(self) -> list[Kernel]:
        """The epilogue, and the same for full panels where some are partial; both have the same words."""
        live = self._live()
        first = self._epilogue("epilogue", live)
        return [first, *([replace(self._epilogue("whole", self.width), sizes=first.sizes)] if live == LIVE else [])]

    def _epilogue(self, kernel: str, live: Size) -> Kernel:
        """The elementwise work on the sums of one panel, of which some columns are live, row by row."""
        at = (Name("row"), Name("column"))
        exprs: dict[Value, list[Expr]] = {}
        product = 0
        for value in self.contraction.products:
            sums = [
                Tensor("sums", f32, (self.tile.row_bytes, f32.itemsize), (product + i) * self.width * f32.itemsize)
                for i in range(self.contraction.parts)
            ]
            product += self.contraction.parts
            exprs[value] = [cast_to(Load(t, at), value.dtype) for t in sums]
        result = self.contraction.result
        target = Tensor("c", result.dtype, (symbol("c_row"), result.dtype.itemsize))
        for view in self.overwritten:
            exprs[view] = [Load(replace(target, dtype=view.dtype), at)]
        for i, view in enumerate(self.beside):
            exprs[view] = [Load(t, at) for t in self._read(f"e{i}", view)]
        first, *more = epilogue_of(self.contraction, exprs)
        # A panel is too narrow for what LLVM would choose; a scalar loop takes the columns after full vectors.
        stores = [Store(target, at, first)]
        for name, also, value in zip(self.others(), self.body.results[1:], more, strict=True):
            written = Tensor(name, also.dtype, (symbol(f"{name}_row"), also.dtype.itemsize))
            stores.append(Store(written, at, value))
        body = (Loop("column", Extent(live), tuple(stores), lanes=self.tile.lanes),)
        pointers = ("sums", *(f"e{i}" for i in range(len(self.beside))), *self.others(), "c")
        return Kernel(kernel, pointers, (*self.others(), "c"), "row", body, sizes=tuple(sizes_in(body)))

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
