"""Tiles of sums by tensor cores: copies to shared memory in flight, products of fragments or by warpgroups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, floordiv
from dovetail.ir.dtype import DType, f16, f32
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import CHUNK, GROUP_ROWS, BlockTile, chunk_of, depth_of
from dovetail.kernels.gpu.gemm.fragments import (
    Factor,
    SharedTile,
    along,
    copied,
    divided,
    load_elements,
    load_left,
    load_right,
    multiplied,
    private,
    remainder,
    stored,
    unrolled,
    zeroed,
)
from dovetail.kernels.gpu.gemm.tiled import Element, Tiled
from dovetail.kernels.gpu.pipeline import CopyGroups, Pipeline, StepBody, Stores, pipeline
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AwaitProducts,
    Barrier,
    Expr,
    Extent,
    Load,
    Loop,
    MultiplyShared,
    Name,
    Set,
    Statement,
    Tensor,
    ThreadIndex,
    add,
    mul,
)
from dovetail.kernels.matrix_instruction import LinearLayout, MatrixInstruction

_BOTH = ("left", "right")


@dataclass(frozen=True, slots=True)
class TensorCoreTile:
    """The sums of a tile by tensor cores."""

    tile: BlockTile
    by: MatrixInstruction
    """What multiplies out of registers, where no warpgroup does out of shared memory."""
    left: Factor
    rights: Sequence[Factor]
    left_axis: str
    """The axis along which the left factor is copied; "" where elements are loaded one by one, of both factors."""
    right_axis: str
    depth: Size
    parts: int = 1
    """Into how many parts k goes; `part` says which one a block has."""
    early: tuple[str, ...] = ()
    """The factors, "left" or "right", whose first copies start before the kernels that this one follows have ended."""

    @property
    def dtype(self) -> DType:
        return self.by.factors

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
        depth = depth_of(self.dtype)
        lines, length = (depth, rows) if axis == "row" else (rows, depth)
        return SharedTile("tiles", self.dtype, lines, length // chunk_of(self.dtype), self.stages, offset)

    @property
    def shared_count(self) -> int:
        """Elements of both tiles, and at least of all sums where several warps have parts of them."""
        tiles = self.right_tile.offset // self.dtype.itemsize + self.right_tile.count
        planes = self._plane * self.tile.warps_deep // self.dtype.itemsize
        return tiles if self.tile.warps_deep == 1 else max(tiles, planes)

    @property
    def _pitch(self) -> int:
        """Bytes from row to row of sums in shared memory; padding spreads rows over banks."""
        return (self.tile.columns + CHUNK) * f32.itemsize

    @property
    def _plane(self) -> int:
        return self._pitch * self.tile.rows

    def staged(self) -> Tensor | None:
        """The sums of the block over the tiles of the factors; None where there is no room for them."""
        if self._plane * self.tile.warps_deep > self.shared_count * self.dtype.itemsize:
            return None
        return Tensor("tiles", f32, (self._plane, self._pitch, f32.itemsize), space="shared")

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
        """Fragments of rows of a warp."""
        return self.tile.warp_rows // self.by.m

    @property
    def across(self) -> int:
        """Fragments of columns of a warp."""
        return self.tile.warp_columns // self.by.n

    @property
    def sums(self) -> Tensor:
        return private("sums", f32, self.down, self.across, self.by.sums.count)

    @property
    def _layouts(self) -> tuple[LinearLayout, LinearLayout]:
        """Which elements of fragments a lane has."""
        assert self.by.left is not None and self.by.right is not None, "a warp multiplies out of registers"
        return self.by.left, self.by.right

    @property
    def fragments(self) -> tuple[Tensor, Tensor]:
        return private("a_fragment", self.dtype, self.down, self._layouts[0].count), private(
            "b_fragment", self.dtype, 1
        )

    def tiled(self, device: GpuDevice) -> Tiled:
        """What a block does for a tile."""
        tile = self.tile
        # Gathering one by one takes registers for indices.
        gathers = not self.left_axis and any(f.gather is not None for f in (self.left, *self.rights))
        return Tiled(
            tile.rows,
            tile.columns // len(self.rights),
            tile.threads,
            self.body(),
            self.elements(),
            self.allocations(),
            tile.by_warpgroup,
            1 if gathers else tile.resident(device),
            self.staged(),
            tile.warps_deep,
            self.deep,
            self._early_copies(),
        )

    def allocations(self) -> list[Alloc]:
        left, right = self._layouts
        return [
            Alloc("tiles", self.dtype, self.shared_count, "shared"),
            Alloc("sums", f32, self.down * self.across * self.by.sums.count, "private"),
            Alloc("a_fragment", self.dtype, self.down * left.count, "private"),
            Alloc("b_fragment", self.dtype, self.across * right.count, "private"),
        ]

    def body(self) -> list[Statement]:
        sums = zeroed(self.sums, self.down * self.across * self.by.sums.count)
        steps = self._steps
        return [sums, *self._first_round(), *steps.start(), *steps.rounds(), *self._done(), Barrier()]

    @property
    def _steps(self) -> Pipeline:
        """The steps of a block over its part of k."""
        depth = depth_of(self.dtype) * self.parts
        rounds, fenced = floordiv(self.depth + (depth - 1), depth), self.tile.by_warpgroup
        if not self.left_axis:
            return pipeline(1, rounds, self._stored, self._awaited_products, Stores(fenced))
        late = tuple(side for side in _BOTH if side not in self.early)
        constants = self._copied(self.early) if self.early else None
        # A product by warpgroups may still read the stage of the step before.
        ahead = self.stages - (2 if self.tile.by_warpgroup else 1)
        by = CopyGroups(ahead, is_fenced=fenced)
        arguments = self.stages, rounds, self._copied(_BOTH), self._products, by
        return pipeline(*arguments, constants=constants, first=self._copied(late))

    def _first_round(self) -> list[Statement]:
        return [] if self.parts == 1 else [Set("first_round", mul(Name("part"), self._steps.count))]

    def _early_copies(self) -> list[Statement]:
        """The copies of the first stages that start before the kernels that this one follows have ended."""
        return [*self._first_round(), *self._steps.early()] if self.early and self.left_axis else []

    def _done(self) -> list[Statement]:
        return [AwaitProducts(self.sums, self.tile.columns)] if self.tile.by_warpgroup and self.left_axis else []

    def _copied(self, sides: Sequence[str]) -> StepBody:
        """The copies of some factors for a step."""
        threads, of = self.tile.threads, len(self.rights)

        def copies(number: Expr, stage: Expr) -> list[Statement]:
            k, statements = self._k(number), list[Statement]()
            if "left" in sides:
                statements += copied(self.left_tile, self.left, self.left_axis, Name("top"), k, stage, threads, 0, 1)
            for at, right in enumerate(self.rights if "right" in sides else ()):
                statements += copied(self.right_tile, right, self.right_axis, Name("side"), k, stage, threads, at, of)
            return statements

        return copies

    def _k(self, number: Expr) -> Expr:
        """The first element of k in a round of this block."""
        return mul(number if self.parts == 1 else add(Name("first_round"), number), Extent(depth_of(self.dtype)))

    def _stored(self, number: Expr, stage: Expr) -> list[Statement]:
        """Both factors of a step, element by element."""
        k = self._k(number)
        threads, of = self.tile.threads, len(self.rights)
        statements = stored(self.left_tile, self.left, Name("top"), k, threads, 0, 1)
        for at, right in enumerate(self.rights):
            statements += stored(self.right_tile, right, Name("side"), k, threads, at, of)
        return statements

    def _awaited_products(self, number: Expr, stage: Expr) -> list[Statement]:
        """The products of a stage that the next step stores to."""
        done = [AwaitProducts(self.sums, self.tile.columns)] if self.tile.by_warpgroup else []
        return [*self._products(number, stage), *done]

    def _products(self, number: Expr, stage: Expr) -> list[Statement]:
        if self.tile.by_warpgroup:
            return [self.shared_product(stage, divided(ThreadIndex("warp"), 4), self.sums)]
        left, right = self.fragments
        deep = self.tile.warps_deep
        step = Name("step") if deep == 1 else add(mul(Name("step"), Extent(deep)), self.deep)
        i, j, k = Name("i"), Name("j"), mul(step, Extent(self.by.k))
        warp = self.warp
        top = mul(divided(warp, self.tile.warps_across), Extent(self.tile.warp_rows))
        side = mul(remainder(warp, self.tile.warps_across), Extent(self.tile.warp_columns))
        row = add(top, mul(i, Extent(self.by.m)))
        return [
            unrolled(
                "step",
                depth_of(self.dtype) // self.by.k // deep,
                unrolled("i", self.down, *self._left_loaded(left, i, stage, row, k)),
                self._right_loaded(right, j, stage, side, k),
                unrolled(
                    "i",
                    self.down,
                    unrolled("j", self.across, multiplied(self.sums, (i, j, ZERO), left, (i, ZERO), right, j, self.by)),
                ),
            )
        ]

    def _left_loaded(self, target: Tensor, i: Name, stage: Expr, row: Expr, k: Expr) -> list[Statement]:
        """A fragment of rows."""
        tile, axis = self.left_tile, self.left_axis
        if self._by_lines(axis):
            return [load_left(target, (i, ZERO), tile, axis, stage, row, k)]
        return load_elements(target, (i,), tile, axis, stage, self._layouts[0], (row, k), k_axis=1)

    def _right_loaded(self, target: Tensor, j: Name, stage: Expr, side: Expr, k: Expr) -> Loop:
        """All fragments of columns, two at a time where lanes load them by lines."""
        tile, axis, layout = self.right_tile, self.right_axis, self._layouts[1]
        if self._by_lines(axis):
            column, at = add(side, mul(j, Extent(2 * self.by.n))), (mul(j, Extent(2 * layout.count)),)
            return unrolled("j", self.across // 2, load_right(target, at, tile, axis, stage, column, k))
        column = add(side, mul(j, Extent(self.by.n)))
        fragments = private(target.pointer, self.dtype, self.across, layout.count)
        loads = load_elements(fragments, (j,), tile, axis, stage, layout, (k, column), k_axis=0)
        return unrolled("j", self.across, *loads)

    def _by_lines(self, axis: str) -> bool:
        """Whether lanes load lines of a factor together. Along rows they transpose them, as 16-bit elements can be."""
        return self.by.by_lines and (axis != "row" or self.dtype.itemsize == f16.itemsize)

    def shared_product(self, stage: Expr, block: Expr, sums: Tensor) -> MultiplyShared:
        """The product of a stage by a warpgroup, for one block of 64 rows."""
        line, chunk = mul(block, Extent(GROUP_ROWS)), mul(block, Extent(GROUP_ROWS // chunk_of(self.dtype)))
        by_row = self.left_axis == "row"
        left, left_at = self.left_tile.place(stage, ZERO if by_row else line, chunk if by_row else ZERO)
        right, right_at = self.right_tile.place(stage, ZERO, ZERO)
        panel = (self.left_tile if by_row else self.right_tile).panel_bytes
        return MultiplyShared(
            sums, left, left_at, right, right_at, self.tile.columns, not by_row, self.right_axis != "row", panel
        )

    def elements(self) -> list[Element]:
        """The sums of a thread, with those of all streams of one column together."""
        layout, warp = self.by.sums, self.warp
        streams = len(self.rights)
        top = add(mul(divided(warp, self.tile.warps_across), Extent(self.tile.warp_rows)), along(layout, 0))
        width = self.tile.warp_columns // streams
        side = add(mul(remainder(warp, self.tile.warps_across), Extent(width)), along(layout, 1))
        places = sorted([(layout.place(0, e), e) for e in range(layout.count)])
        elements: list[Element] = []
        for i in range(self.down):
            for down, rows in groupby(places, key=lambda place: place[0][0]):
                registers = [*rows]
                for j in range(self.across // streams):
                    for (_, right), e in registers:
                        sums = tuple(
                            Load(self.sums, (Extent(i), Extent(j * streams + s), Extent(e))) for s in range(streams)
                        )
                        row, column = add(top, Extent(self.by.m * i + down)), add(side, Extent(self.by.n * j + right))
                        elements.append(Element(row, column, sums))
        return elements


__all__ = ["TensorCoreTile"]
