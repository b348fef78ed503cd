"""Contract: products of one left operand with one or more right ones, with elementwise work on them in the epilogue.

A block computes a tile of the result. Tensor cores multiply 16-bit floats, with copies to shared memory in flight for
the stages to come; other dtypes are multiplied one by one, with sums in registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, f64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.fma import FmaTile
from dovetail.kernels.gpu.fragments import (
    Factor,
    both,
    divided,
    is_multiple,
    less,
    remainder,
    spread,
)
from dovetail.kernels.gpu.tensor_core_tile import TensorCoreTile
from dovetail.kernels.gpu.tile import CHUNK, H200, LANES, tile_of
from dovetail.kernels.gpu.tiled import Element, Tiled
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.body import cast_to, lying_beneath
from dovetail.kernels.loops.ir import (
    ZERO,
    Barrier,
    Call,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    add,
    collapsed,
    indices,
    mul,
    sizes_in,
    stretched,
)
from dovetail.kernels.problems.contraction import Contraction, epilogue_of, find_products
from dovetail.kernels.spec import ALIGNMENT, Job, TensorLocations, Tiles
from dovetail.plan.plan import Step

FEW = 16
"""Sums of a thread up to which it writes its results where they are."""
STATIC_BYTES = 48 << 10
"""Shared memory that a kernel may have without a setting."""
_LEFT, _RIGHT = "left", "right"


def offer_contract(of: StepProblem[GpuDevice | None]) -> Offer | Refused:
    """The kernel of a contraction."""
    found = of.once(find_products)
    if isinstance(found, Refused):
        return found
    dtypes = {v.dtype for v in (found.left, *found.rights)}
    odd = [d.name for d in dtypes if not found.body.scalars.has_dtype(d) or d is bool_]
    if odd:
        return Refused("factors_are_numbers", ", ".join(odd))
    return Offer(lambda: Writer(of.step, found, of.locations, of.device or H200).job())


class Writer:
    """The job of one contraction while it is put together."""

    def __init__(self, step: Step, found: Contraction, locations: TensorLocations, device: GpuDevice) -> None:
        self.step, self.found, self.locations, self.device = step, found, locations, device
        self.streams = len(found.streams)
        operands = list(dict.fromkeys(found.operand(v) for v in (found.left, *found.rights, *found.operands)))
        beneath = lying_beneath(step, locations)
        self.names = {v: f"x{i}" for i, v in enumerate(v for v in operands if v not in beneath)}
        self.bindings = {name: v for v, name in self.names.items()} | {f"y{i}": v for i, v in enumerate(step.results)}
        self.names |= dict.fromkeys(beneath, "y0")
        depths = (found.left.shape[-1], *(right.shape[-2] for right in found.rights))
        self.depth = next((size for size in depths if isinstance(size, int)), depths[0])
        self.columns = found.result.shape[-1]
        self.rows, self.batch, self.fronts = self._folded()
        self.lead = tuple(Name(f"b{i}") for i in range(len(self.batch)))

    def _folded(self) -> tuple[Size, tuple[Size, ...], dict[str, tuple[Size, ...]]]:
        """Rows, the axes before them, and the strides of tensors along these; axes that are dense become rows."""
        found, views = self.found, self.found.body.views
        shape = found.result.shape[:-1]
        fronts: dict[str, tuple[Size, ...]] = {
            _LEFT: stretched(views[found.left].strides[:-1], found.left.shape[:-1], shape)
        }
        for i, right in enumerate(found.rights):
            fronts[f"{_RIGHT}{i}"] = (*stretched(views[right].strides[:-2], right.shape[:-2], shape[:-1]), 0)
        for i, view in enumerate(found.operands):
            fronts[f"e{i}"] = stretched(views[view].strides, view.shape, found.result.shape)[:-1]
        for i, result in enumerate(self.step.results):
            fronts[f"y{i}"] = self.locations(result).strides[:-1]
        axes, strides = collapsed(shape, list(fronts.values()))
        whole = dict(zip(fronts, strides, strict=True))
        shared = bool(axes) and all(s[-1] == 0 for name, s in whole.items() if name.startswith(_RIGHT))
        if shared:
            return axes[-1], axes[:-1], whole
        return 1, axes, {name: (*s, 0) for name, s in whole.items()}

    def left(self) -> Factor:
        view = self.found.left
        at = self.found.body.views[view]
        tensor = Tensor(self._name(view), view.dtype, (*self.fronts[_LEFT], at.strides[-1]), at.offset)
        return Factor(tensor, self.lead, self.rows, self.depth)

    def rights(self) -> list[Factor]:
        """The right factor of each stream; their rows are columns of the result."""
        found: list[Factor] = []
        for i, first in self.found.streams:
            view = self.found.rights[i]
            at = self.found.body.views[view]
            strides = (*self.fronts[f"{_RIGHT}{i}"][:-1], at.strides[-1], at.strides[-2])
            tensor = Tensor(self._name(view), view.dtype, strides, at.offset + first * at.strides[-1])
            found.append(Factor(tensor, self.lead, self.columns, self.depth))
        return found

    def _name(self, view: Value) -> str:
        return self.names[self.found.operand(view)]

    def alignment(self, factor: Factor) -> int:
        """The bytes that the start of a factor's operand is a multiple of."""
        name = factor.tensor.pointer
        return self.locations.alignment({name: self.bindings[name]})[name]

    def job(self) -> Job:
        dtypes = {v.dtype for v in (self.found.left, *self.found.rights)}
        if len(dtypes) == 1 and dtypes <= {f16, bf16}:
            return self._finished(self._by_tensor_cores(dtypes.pop()))
        return self._finished(self._by_fma())

    def _by_tensor_cores(self, dtype: DType) -> Tiled:
        tile = tile_of(product(self.batch), self.rows, self.columns, self.streams, self.device)
        left, rights = self.left(), self.rights()
        axis = left.dense_axis(self.alignment(left))
        axes = [right.dense_axis(self.alignment(right)) for right in rights]
        # All streams share a tile of shared memory, which has lines along one axis.
        other = axes[0] if len(set(axes)) == 1 else ""
        engine = TensorCoreTile(tile, dtype, left, rights, axis if other else "", other if axis else "", self.depth)
        return Tiled(
            tile.rows,
            tile.columns // self.streams,
            tile.threads,
            engine.body(),
            engine.elements(),
            engine.allocations(),
            tile.by_warpgroup,
            tile.resident(self.device),
            engine.staged(),
            tile.warps_deep,
            engine.deep,
        )

    def _by_fma(self) -> Tiled:
        dtype = self.found.products[0].dtype
        total = f32 if dtype.is_float and dtype is not f64 else dtype
        engine = FmaTile.of(self.rows, self.columns, self.streams, product(self.batch), self.device, total)
        return Tiled(
            engine.rows,
            engine.columns,
            engine.threads,
            engine.body(self.left(), self.rights(), self.depth),
            [Element(row, column, sums) for row, column, sums in engine.elements()],
            engine.allocations(),
        )

    def _finished(self, tiled: Tiled) -> Job:
        down = floordiv(self.rows + (tiled.rows - 1), tiled.rows)
        across = floordiv(self.columns + (tiled.columns - 1), tiled.columns)
        *front, block, strip = indices((*self.batch, across, down), Name("tile"))
        statements = (
            *tiled.allocations,
            Loop(
                "tile",
                Extent(product(self.batch) * down * across),
                (
                    *(Set(name.name, index) for name, index in zip(self.lead, front, strict=True)),
                    Set("side", mul(block, Extent(tiled.columns))),
                    Set("top", mul(strip, Extent(tiled.rows))),
                    *tiled.body,
                    *self._epilogue(tiled),
                ),
                kind="block",
            ),
        )
        shared = shared_bytes(tiled.allocations)
        tiles = product(self.batch) * down * across
        dynamic = shared if shared > STATIC_BYTES or tiled.is_aligned else 0
        launch = Launch(tiles, tiled.threads, dynamic, tiled.resident)
        written = tuple(f"y{i}" for i in range(len(self.step.results)))
        kernel = Kernel(
            "contract", tuple(self.bindings), written, "tile", statements, sizes=sizes_in(statements), launch=launch
        )
        return Job(kernel, self.bindings, Tiles(tiles, tiled.rows * tiled.columns))

    def _epilogue(self, tiled: Tiled) -> list[Statement]:
        """The results: element by element where a thread has few, else through shared memory, in vectors."""
        if tiled.staged is None or (len(tiled.elements) <= FEW and tiled.planes == 1):
            return [statement for element in tiled.elements for statement in self._placed(tiled, element)]
        row, own = divided(Name("own"), tiled.columns // CHUNK), remainder(Name("own"), tiled.columns // CHUNK)
        groups = [self._group(tiled, Name("row"), own, row)]
        if not is_multiple(self.columns, CHUNK):
            groups = [
                [
                    Loop(
                        "e",
                        Extent(CHUNK),
                        tuple(self._placed(tiled, self._staged(tiled, row, own, Name("e")))),
                        kind="unrolled",
                    )
                ]
            ]
        count = tiled.rows * tiled.columns // CHUNK
        return [
            *self._to_shared(tiled),
            Barrier(),
            Loop("own", Extent(count), tuple(groups[0]), kind="thread", rolled=True),
            Barrier(),
        ]

    def _to_shared(self, tiled: Tiled) -> list[Statement]:
        """All sums of the block in shared memory, which the factors need no more."""
        assert tiled.staged is not None, "there is room for them"
        found: list[Statement] = []
        for element in tiled.elements:
            for s, value in enumerate(element.sums):
                at = (tiled.plane, element.row, spread(element.column, s, self.streams))
                found.append(Store(tiled.staged, at, value))
        return found

    def _staged(self, tiled: Tiled, row: Expr, group: Expr, e: Expr) -> Element:
        """A sum in shared memory, by its row and its place in a group of eight columns."""
        assert tiled.staged is not None, "there is room for them"
        sums: list[Expr] = []
        for s in range(self.streams):
            block = add(mul(group, Extent(self.streams)), Extent(s))
            at = (row, add(mul(block, Extent(CHUNK)), e))
            total: Expr = Load(tiled.staged, (ZERO, *at))
            for plane in range(1, tiled.planes):
                total = Call("add", (total, Load(tiled.staged, (Extent(plane), *at))), f32)
            sums.append(total)
        return Element(row, add(mul(group, Extent(CHUNK)), e), tuple(sums))

    def _inside(self, row: Expr, column: Expr, tiled: Tiled) -> Expr:
        """Whether an element of a tile is one of the result; tiles may fit so that all are."""
        found = [] if is_multiple(self.rows, tiled.rows) else [less(row, Extent(self.rows))]
        found += [] if is_multiple(self.columns, tiled.columns) else [less(column, Extent(self.columns))]
        return both(*found) if found else Number(True, bool_)

    def _group(self, tiled: Tiled, at_row: Name, group: Expr, row: Expr) -> list[Statement]:
        """Eight columns, which are all inside or all outside."""
        column = add(Name("side"), mul(group, Extent(CHUNK)))
        inside = self._inside(at_row, Name("first"), tiled)
        each = self._stores(self._staged(tiled, row, group, Name("e")), (*self.lead, at_row, Name("column")))
        body = Loop("e", Extent(CHUNK), (Set("column", add(Name("first"), Name("e"))), *each), kind="unrolled")
        return [Set(at_row.name, add(Name("top"), row)), Set("first", column), When(inside, (body,))]

    def _placed(self, tiled: Tiled, element: Element) -> Iterator[Statement]:
        """The results of one element, if it is inside."""
        row, column = Name("row"), Name("column")
        yield Set("row", add(Name("top"), element.row))
        yield Set("column", add(Name("side"), element.column))
        inside = self._inside(row, column, tiled)
        yield When(inside, tuple(self._stores(element, (*self.lead, row, column))))

    def _stores(self, element: Element, at: tuple[Expr, ...]) -> Iterator[Store]:
        found, views = self.found, self.found.body.views
        known: dict[Value, list[Expr]] = {}
        for i, value in enumerate(found.products):
            sums = element.sums[i * found.parts : (i + 1) * found.parts]
            known[value] = [cast_to(x, value.dtype) for x in sums]
        for i, view in enumerate(found.operands):
            place = views[view]
            stride = stretched(place.strides, view.shape, found.products[0].shape)[-1] if view.shape else 0
            wide = found.parts > 1 and bool(view.shape) and view.shape[-1] == found.products[0].shape[-1]
            offsets = [place.offset + n * self.columns * stride for n in range(found.parts if wide else 1)]
            strides = (*self.fronts[f"e{i}"], stride)
            known[view] = [Load(Tensor(self._name(view), view.dtype, strides, o), at) for o in offsets]
        for i, value in enumerate(epilogue_of(found, known)):
            result = self.step.results[i]
            strides = (*self.fronts[f"y{i}"], self.locations(result).strides[-1])
            yield Store(Tensor(f"y{i}", result.dtype, strides), at, value)


assert ALIGNMENT == CHUNK * 2 and LANES == 32, "one copy is one vector"

__all__ = ["offer_contract"]
