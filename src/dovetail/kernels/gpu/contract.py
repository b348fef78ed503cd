"""Contract: products of one left operand with one or more right ones, with elementwise work on them in the epilogue.

A block computes a tile of the result. Tensor cores multiply 16-bit floats, with copies to shared memory in flight for
the stages to come; other dtypes are multiplied one by one, with sums in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, f64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.fma import FmaTile
from dovetail.kernels.gpu.fragments import (
    Factor,
    SharedTile,
    both,
    copied,
    divided,
    is_multiple,
    less,
    load_left,
    load_right,
    multiplied,
    private,
    remainder,
    spread,
    stored,
    unrolled,
    zeroed,
)
from dovetail.kernels.gpu.tile import CHUNK, DEPTH, GROUP_ROWS, H200, LANES, BlockTile, tile_of
from dovetail.kernels.loops.body import cast_to, lying_beneath
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AwaitCopies,
    AwaitProducts,
    Barrier,
    Call,
    CommitCopies,
    Expr,
    Extent,
    FenceShared,
    Kernel,
    Launch,
    Load,
    Loop,
    MultiplyShared,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
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
"""Shared memory that a kernel may have without asking for more."""
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


@dataclass(frozen=True, slots=True)
class Element:
    """A sum of this thread: its row and column in the tile, and its place in the private tensor."""

    row: Expr
    column: Expr
    sums: tuple[Expr, ...]
    """One for each stream."""


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
        """Rows, the axes before them, and the strides of each tensor along these: axes that lie so become rows."""
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

    def _by_tensor_cores(self, dtype: DType) -> _Tiled:
        tile = tile_of(product(self.batch), self.rows, self.columns, self.streams, self.device)
        left, rights = self.left(), self.rights()
        axis = left.dense_axis(self.alignment(left))
        axes = [right.dense_axis(self.alignment(right)) for right in rights]
        # All streams share a tile of shared memory, which has lines along one axis.
        other = axes[0] if len(set(axes)) == 1 else ""
        engine = _TensorCores(tile, dtype, left, rights, axis if other else "", other if axis else "", self.depth)
        return _Tiled(
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

    def _by_fma(self) -> _Tiled:
        dtype = self.found.products[0].dtype
        total = f32 if dtype.is_float and dtype is not f64 else dtype
        engine = FmaTile.of(self.rows, self.columns, self.streams, product(self.batch), self.device, total)
        return _Tiled(
            engine.rows,
            engine.columns,
            engine.threads,
            engine.body(self.left(), self.rights(), self.depth),
            [Element(row, column, sums) for row, column, sums in engine.elements()],
            engine.allocations(),
        )

    def _finished(self, tiled: _Tiled) -> Job:
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
        shared = sum(s.count * s.dtype.itemsize for s in tiled.allocations if s.space == "shared")
        tiles = product(self.batch) * down * across
        dynamic = shared if shared > STATIC_BYTES or tiled.is_aligned else 0
        launch = Launch(tiles, tiled.threads, dynamic, tiled.resident)
        written = tuple(f"y{i}" for i in range(len(self.step.results)))
        kernel = Kernel(
            "contract", tuple(self.bindings), written, "tile", statements, sizes=sizes_in(statements), launch=launch
        )
        return Job(kernel, self.bindings, Tiles(tiles, tiled.rows * tiled.columns))

    def _epilogue(self, tiled: _Tiled) -> list[Statement]:
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

    def _to_shared(self, tiled: _Tiled) -> list[Statement]:
        """All sums of the block in shared memory, which the factors need no more."""
        assert tiled.staged is not None, "there is room for them"
        found: list[Statement] = []
        for element in tiled.elements:
            for s, value in enumerate(element.sums):
                at = (tiled.plane, element.row, spread(element.column, s, self.streams))
                found.append(Store(tiled.staged, at, value))
        return found

    def _staged(self, tiled: _Tiled, row: Expr, group: Expr, e: Expr) -> Element:
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

    def _inside(self, row: Expr, column: Expr, tiled: _Tiled) -> Expr:
        """Whether an element of a tile is one of the result; tiles may fit so that all are."""
        found = [] if is_multiple(self.rows, tiled.rows) else [less(row, Extent(self.rows))]
        found += [] if is_multiple(self.columns, tiled.columns) else [less(column, Extent(self.columns))]
        return both(*found) if found else Number(True, bool_)

    def _group(self, tiled: _Tiled, at_row: Name, group: Expr, row: Expr) -> list[Statement]:
        """Eight columns, which are all inside or all outside."""
        column = add(Name("side"), mul(group, Extent(CHUNK)))
        inside = self._inside(at_row, Name("first"), tiled)
        each = self._stores(self._staged(tiled, row, group, Name("e")), (*self.lead, at_row, Name("column")))
        body = Loop("e", Extent(CHUNK), (Set("column", add(Name("first"), Name("e"))), *each), kind="unrolled")
        return [Set(at_row.name, add(Name("top"), row)), Set("first", column), When(inside, (body,))]

    def _placed(self, tiled: _Tiled, element: Element) -> Iterator[Statement]:
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


@dataclass(frozen=True, slots=True)
class _Tiled:
    """What a block does for one tile, and the sums that each thread then has."""

    rows: int
    columns: int
    threads: int
    body: Sequence[Statement]
    elements: Sequence[Element]
    allocations: Sequence[Alloc]
    is_aligned: bool = False
    """Whether tiles start at multiples of 1,024 bytes, as dynamic shared memory does."""
    resident: int = 1
    staged: Tensor | None = None
    """Shared memory that has room for all sums, plane by plane; None where there is not enough."""
    planes: int = 1
    """How many threads have a part of each sum."""
    plane: Expr = ZERO
    """Which part this thread has."""


@dataclass(frozen=True, slots=True)
class _TensorCores:
    """The sums of a tile by tensor cores."""

    tile: BlockTile
    dtype: DType
    left: Factor
    rights: Sequence[Factor]
    left_axis: str
    """The axis along which the left factor is copied; "" where elements are loaded one by one, of both factors."""
    right_axis: str
    depth: Size

    @property
    def stages(self) -> int:
        return self.tile.stages if self.left_axis else 1

    @property
    def left_tile(self) -> SharedTile:
        return self._shared(0, self.tile.rows, self.left_axis)

    @property
    def right_tile(self) -> SharedTile:
        first = self.left_tile.count * self.dtype.itemsize
        return self._shared(-(-first // 1024) * 1024, self.tile.columns, self.right_axis)

    def _shared(self, offset: int, rows: int, axis: str) -> SharedTile:
        lines, length = (DEPTH, rows) if axis == "row" else (rows, DEPTH)
        return SharedTile("tiles", self.dtype, lines, length // CHUNK, self.stages, offset)

    @property
    def shared_count(self) -> int:
        """Elements of both tiles."""
        return self.right_tile.offset // self.dtype.itemsize + self.right_tile.count

    def staged(self) -> Tensor | None:
        """The sums of the block over the tiles of the factors; padding spreads rows over banks."""
        pitch = (self.tile.columns + CHUNK) * f32.itemsize
        plane = pitch * self.tile.rows
        if plane * self.tile.warps_deep > self.shared_count * self.dtype.itemsize:
            assert self.tile.warps_deep == 1, "tiles with planes have room for them"
            return None
        return Tensor("tiles", f32, (plane, pitch, f32.itemsize), space="shared")

    @property
    def deep(self) -> Expr:
        """Which part of k this warp has."""
        return divided(ThreadIndex("warp"), self.tile.warps_down * self.tile.warps_across)

    @property
    def warp(self) -> Expr:
        """Which of the warps with the same part of k this is."""
        if self.tile.warps_deep == 1:
            return ThreadIndex("warp")
        return remainder(ThreadIndex("warp"), self.tile.warps_down * self.tile.warps_across)

    @property
    def down(self) -> int:
        """16-row fragments of a warp."""
        return self.tile.warp_rows // 16

    @property
    def across(self) -> int:
        """8-column fragments of a warp."""
        return self.tile.warp_columns // 8

    @property
    def sums(self) -> Tensor:
        return private("sums", f32, self.down, self.across, 4)

    @property
    def fragments(self) -> tuple[Tensor, Tensor]:
        return private("a_fragment", self.dtype, self.down, 8), private("b_fragment", self.dtype, 1)

    def allocations(self) -> list[Alloc]:
        return [
            Alloc("tiles", self.dtype, self.shared_count, "shared"),
            Alloc("sums", f32, self.down * self.across * 4, "private"),
            Alloc("a_fragment", self.dtype, self.down * 8, "private"),
            Alloc("b_fragment", self.dtype, self.across * 4, "private"),
        ]

    def body(self) -> list[Statement]:
        found: list[Statement] = [zeroed(self.sums, self.down * self.across * 4)]
        rounds = floordiv(self.depth + (DEPTH - 1), DEPTH)
        return [*found, *(self._pipelined(rounds) if self.left_axis else self._in_turn(rounds))]

    def _pipelined(self, rounds: Size) -> list[Statement]:
        """Copies for the stages to come are in flight while one is multiplied."""
        # A product by warpgroups may still read the stage of the round before.
        ahead = self.stages - (2 if self.tile.by_warpgroup else 1)
        found: list[Statement] = []
        for stage in range(ahead):
            found += [*self._copies(Extent(stage), Extent(stage)), CommitCopies()]
        later = add(Name("round"), Extent(ahead))
        return [
            *found,
            Loop(
                "round",
                Extent(rounds),
                (
                    AwaitCopies(ahead - 1),
                    *self._fence(),
                    Barrier(),
                    Set("later", later),
                    *self._copies(Name("later"), remainder(Name("later"), self.stages)),
                    CommitCopies(),
                    Set("stage", remainder(Name("round"), self.stages)),
                    *self._products(Name("stage")),
                ),
            ),
            AwaitCopies(0),
            *self._done(),
            Barrier(),
        ]

    def _done(self) -> list[Statement]:
        return [AwaitProducts(self.sums, self.tile.columns)] if self.tile.by_warpgroup else []

    def _copies(self, number: Expr, stage: Expr) -> list[Statement]:
        k = mul(number, Extent(DEPTH))
        threads, of = self.tile.threads, len(self.rights)
        found = copied(self.left_tile, self.left, self.left_axis, Name("top"), k, stage, threads, 0, 1)
        for at, right in enumerate(self.rights):
            found += copied(self.right_tile, right, self.right_axis, Name("side"), k, stage, threads, at, of)
        return found

    def _in_turn(self, rounds: Size) -> list[Statement]:
        """Load, wait, multiply, wait."""
        k = mul(Name("round"), Extent(DEPTH))
        threads, of = self.tile.threads, len(self.rights)
        loads = stored(self.left_tile, self.left, Name("top"), k, threads, 0, 1)
        for at, right in enumerate(self.rights):
            loads += stored(self.right_tile, right, Name("side"), k, threads, at, of)
        body = (Barrier(), *loads, *self._fence(), Barrier(), *self._products(ZERO), *self._done())
        return [Loop("round", Extent(rounds), body), Barrier()]

    def _fence(self) -> list[Statement]:
        return [FenceShared()] if self.tile.by_warpgroup else []

    def _products(self, stage: Expr) -> list[Statement]:
        if self.tile.by_warpgroup:
            return [self._shared_product(stage)]
        left, right = self.fragments
        deep = self.tile.warps_deep
        step = Name("step") if deep == 1 else add(mul(Name("step"), Extent(deep)), self.deep)
        i, j, k = Name("i"), Name("j"), mul(step, Extent(16))
        warp = self.warp
        top = mul(divided(warp, self.tile.warps_across), Extent(self.tile.warp_rows))
        side = mul(remainder(warp, self.tile.warps_across), Extent(self.tile.warp_columns))
        row, column = add(top, mul(i, Extent(16))), add(side, mul(j, Extent(16)))
        b_at = (mul(j, Extent(8)),)
        return [
            unrolled(
                "step",
                DEPTH // 16 // deep,
                unrolled("i", self.down, load_left(left, (i, ZERO), self.left_tile, self.left_axis, stage, row, k)),
                unrolled(
                    "j", self.across // 2, load_right(right, b_at, self.right_tile, self.right_axis, stage, column, k)
                ),
                unrolled(
                    "i",
                    self.down,
                    unrolled("j", self.across, multiplied(self.sums, (i, j, ZERO), left, (i, ZERO), right, j)),
                ),
            )
        ]

    def _shared_product(self, stage: Expr) -> MultiplyShared:
        """The product of a stage by warpgroups."""
        group = divided(ThreadIndex("warp"), 4)
        line, chunk = mul(group, Extent(GROUP_ROWS)), mul(group, Extent(GROUP_ROWS // CHUNK))
        by_row = self.left_axis == "row"
        left, left_at = self.left_tile.place(stage, ZERO if by_row else line, chunk if by_row else ZERO)
        right, right_at = self.right_tile.place(stage, ZERO, ZERO)
        panel = (self.left_tile if by_row else self.right_tile).panel_bytes
        return MultiplyShared(
            self.sums, left, left_at, right, right_at, self.tile.columns, not by_row, self.right_axis != "row", panel
        )

    def elements(self) -> list[Element]:
        """The sums of a thread, with those of all streams of one column together."""
        lane, warp = ThreadIndex("lane"), self.warp
        streams = len(self.rights)
        top = add(mul(divided(warp, self.tile.warps_across), Extent(self.tile.warp_rows)), divided(lane, 4))
        width = self.tile.warp_columns // streams
        side = add(mul(remainder(warp, self.tile.warps_across), Extent(width)), mul(remainder(lane, 4), Extent(2)))
        found: list[Element] = []
        for i in range(self.down):
            for half in range(2):
                for j in range(self.across // streams):
                    for e in range(2):
                        sums = tuple(
                            Load(self.sums, (Extent(i), Extent(j * streams + s), Extent(2 * half + e)))
                            for s in range(streams)
                        )
                        row, column = add(top, Extent(16 * i + 8 * half)), add(side, Extent(8 * j + e))
                        found.append(Element(row, column, sums))
        return found


assert ALIGNMENT == CHUNK * 2 and LANES == 32, "one copy is one vector"

__all__ = ["Element", "Writer", "offer_contract"]
