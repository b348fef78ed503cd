"""Contract: products of one left operand with one or more right ones, with elementwise work on them in the epilogue.

A block computes a tile of the result. Tensor cores multiply 16-bit floats, with copies to shared memory in flight for
the stages to come; other dtypes are multiplied one by one, with sums in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, bool_, f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.blocks.copied_blocks import CopiedBlocks
from dovetail.kernels.gpu.blocks.packed_blocks import BlockFactor, PackedBlocks
from dovetail.kernels.gpu.blocks.stream import BlockStream
from dovetail.kernels.gpu.blocks.units import has_known_blocks, units_of
from dovetail.kernels.gpu.gemm.fma import FmaTile, dtype_of_sums
from dovetail.kernels.gpu.gemm.fma_tile_choice import BLOCKS_SHAPE, with_warps_of
from dovetail.kernels.gpu.gemm.fragments import Factor, is_multiple
from dovetail.kernels.gpu.gemm.head_rows import HeadResults, Heads
from dovetail.kernels.gpu.gemm.pipelined_tile import PipelinedTile
from dovetail.kernels.gpu.gemm.scaled_rows import GAIN, ReadSquares, RowSquares, WrittenSquares
from dovetail.kernels.gpu.gemm.tensor_core_tile import TensorCoreTile
from dovetail.kernels.gpu.gemm.tile import (
    CHUNK,
    FEWEST_ROWS,
    H200,
    BlockTile,
    cycles_of,
    gains_by_transposing,
    pipelined_tile_of,
    tile_of,
)
from dovetail.kernels.gpu.gemm.tile_writer import TileWriter
from dovetail.kernels.gpu.gemm.tiled import Element, Tiled
from dovetail.kernels.gpu.gemv.few_rows import has_few_rows, stream_of
from dovetail.kernels.gpu.gemv.near_tile import NearTile
from dovetail.kernels.gpu.gemv.packed_matrix import Transposed
from dovetail.kernels.gpu.gemv.row_norm import RowNorm
from dovetail.kernels.gpu.gemv.stream import StreamTile
from dovetail.kernels.gpu.gemv.stream_ring import StreamRing
from dovetail.kernels.loops.body import cast_to, pointers_of
from dovetail.kernels.loops.ir import (
    BOX,
    Expr,
    Load,
    Name,
    Store,
    Tensor,
    collapsed,
    stretched,
)
from dovetail.kernels.matrix_instruction import LANES, MMA, MatrixInstruction, instruction_for
from dovetail.kernels.problems.blocks import BlockProduct, find_blocks
from dovetail.kernels.problems.contraction import Contraction, epilogue_of, find_products
from dovetail.kernels.spec import Job, Packed, TensorLocations
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Step

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
    blocks = of.once(find_blocks)
    if isinstance(blocks, BlockProduct) and has_known_blocks(blocks):
        return Offer(
            lambda: Writer(of.step, found, of.locations, of.device or H200).block_job(blocks),
            lambda: blocks.cost(of.value),
            "contract_blocks",
        )
    return Offer(lambda: Writer(of.step, found, of.locations, of.device or H200).job())


class Writer(TileWriter):
    """The job of one contraction while it is put together."""

    name = "contract"
    _scale: ReadSquares | None = None
    """The factors of rows of a left operand that is normed; None where it is read as it is."""

    def __init__(self, step: Step, found: Contraction, locations: TensorLocations, device: GpuDevice) -> None:
        self.step, self.found, self.locations, self.device = step, found, locations, device
        self.streams = len(found.streams)
        self.sums = dtype_of_sums(found.products[0].dtype)
        operands = [found.operand(v) for v in (found.left, *found.rights, *found.operands)]
        self.names, bindings = pointers_of(step, locations, operands)
        self.bindings = {**bindings}
        depths = (found.left.shape[-1], *(right.shape[-2] for right in found.rights))
        self.depth = next((size for size in depths if isinstance(size, int)), depths[0])
        self.columns = found.result.shape[-1]
        self.rows, self.batch, self.fronts = self._folded()
        self.is_short = isinstance(self.rows, int) and self.rows < FEWEST_ROWS
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
        if self._scale is not None:
            tensor = self._scale.of.gained
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

    def _transposed(self, pack: Transposed) -> list[Factor] | None:
        """The right factors as they are once packed, when parameters are bound; None where one is no parameter."""
        found, depth = self.found, self.depth
        operands = [found.operand(view) for view in found.rights]
        others = {found.operand(v) for v in (found.left, *found.operands)}
        for view, v in zip(found.rights, operands, strict=True):
            at = found.body.views[view]
            is_whole = at.offset == 0 and v.shape == view.shape and is_dense(v.tensor, at.strides)
            if not is_whole or not self.locations.is_constant(v) or v in others or product(v.shape[:-2]) != 1:
                return None
        if not is_multiple(depth, CHUNK):
            return None
        rights: list[Factor] = []
        for i, first in found.streams:
            item = operands[i].dtype.itemsize
            pitch = (depth + pack.padding) * item
            tensor = Tensor(self.names[operands[i]], operands[i].dtype, (pitch, item), first * pitch)
            rights.append(Factor(tensor, (), self.columns, depth))
        return rights

    def _name(self, view: Value) -> str:
        return self.names[self.found.operand(view)]

    def job(self) -> Job:
        dtypes = {v.dtype for v in (self.found.left, *self.found.rights)}
        by = instruction_for(self.device.matrix_instructions, min(dtypes, key=lambda d: d.name))
        tiled = None if by is None or len(dtypes) > 1 else self._by_tensor_cores(by)
        return self.finished(*(tiled or self._by_fma()))

    def block_job(self, of: BlockProduct) -> Job:
        """The job with weights in blocks: few rows multiply them as they are, tiles of more expand them."""
        rights = self._block_rights(of)
        # Both have a lane for each column of a unit.
        has_lanes = self.device.warp == LANES
        tile = self._copied_blocks(of, rights) if has_lanes else None
        if tile is not None:
            return self.finished(tile.tiled())
        few = None if self.batch or not has_lanes else BlockStream.of(self.left(), rights, self.device)
        if few is not None:
            return self.finished(few.tiled())
        engine = FmaTile(
            with_warps_of(BLOCKS_SHAPE, self.device), f32, self.left(), rights, ["", *("" for _ in rights)], self.depth
        )
        return self.finished(engine.tiled(self.device))

    def _block_rights(self, of: BlockProduct) -> list[BlockFactor]:
        """The right factor of each stream in blocks, packed when parameters are bound."""
        assert isinstance(self.depth, int), "it was checked"
        units = units_of(self.step.value, self.locations)
        pack, rights = PackedBlocks(of.names[0], units, self.depth), list[BlockFactor]()
        wholes = [sum([part.shape[-2] for part in parts if isinstance(part.shape[-2], int)]) for parts in of.blocks]
        for i, first in self.found.streams:
            name, (value, *beside) = self._name(self.found.rights[i]), of.blocks[i]
            self.bindings[name] = Packed(value, pack.layout, pack, tuple(beside))
            assert isinstance(first, int), "it was checked"
            rights.append(BlockFactor(name, pack, self.depth // pack.format.elements, wholes[i], first, self.columns))
        return rights

    def _copied_blocks(self, of: BlockProduct, rights: Sequence[BlockFactor]) -> CopiedBlocks | None:
        """The tile of one row with few columns, whose blocks are copied; None where another one serves."""
        tile = None if self.batch else CopiedBlocks.of(self.left(), rights, self.device)
        for (i, _), right in zip(self.found.streams, rights if tile else (), strict=tile is not None):
            assert tile is not None, "it has rights"
            value, *beside = of.blocks[i]
            self.bindings[right.pointer] = Packed(value, tile.pack.layout, tile.pack, tuple(beside))
        return tile

    def normed(self, x: Value, gain: Value, eps: float, gain_name: str, blocks: BlockProduct | None) -> Job | None:
        """The job with normed left rows, times weights that may be in blocks; None where no tile takes them."""
        left, depth = self.left(), self.depth
        name = left.tensor.pointer
        if name in {self._name(v) for v in (*self.found.rights, *self.found.operands)} or not isinstance(depth, int):
            return None
        if blocks is None and x.dtype is f32:
            return None
        self.bindings[name] = x
        norm = RowNorm(Tensor(gain_name, gain.dtype, (gain.dtype.itemsize,)), eps, depth)
        if blocks is not None:
            tile = self._copied_blocks(blocks, self._block_rights(blocks))
            if tile is None or not tile.takes_norm:
                return None
            self.bindings[gain_name] = gain
            return self.finished(replace(tile, norm=norm).tiled())
        rights = self.rights()
        axes = [right.dense_axis(self.alignment(right)) for right in rights]
        few = self._few_rows(x.dtype, left, rights, axes, early="right" in self.early(left, rights))
        if few is None or not few.takes_norm:
            return None
        self.bindings[gain_name] = gain
        return self.finished(replace(few, norm=norm).tiled())

    def squared(self, gain: Value) -> tuple[Job, RowSquares] | None:
        """The job with its result times a gain, and its squares; None where no producer copies for the product."""
        dtype, columns, (result, *others) = self.found.left.dtype, self.columns, self.step.results
        if others or self.batch or not isinstance(columns, int) or columns % CHUNK or result.dtype is not dtype:
            return None
        by = instruction_for(self.device.matrix_instructions, dtype)
        found = by and self._by_tensor_cores(by)
        if found is None:
            return None
        tiled, parts = found
        across = -(-columns // tiled.columns)
        if parts > 1 or tiled.producer is None:
            return None
        squares = RowSquares(self.rows, columns, across, dtype)
        self._squares = WrittenSquares(squares, tiled.columns)
        self.bindings[GAIN] = gain
        return self.finished(tiled), squares

    def scaled(
        self, normed: Value, scale: ReadSquares, heads: Sequence[Heads] = (), tensors: Mapping[str, Value] | None = None
    ) -> Job | None:
        """The job with a factor for each row; None where no producer copies for it, or rows are others.

        Heads, with the tensors of their pointers, take the place of results.
        """
        left, others = self.found.left, (*self.found.rights, *self.found.operands)
        same = self.rows == scale.of.rows and self.depth == scale.of.columns and not self.batch
        at = self.found.body.views[left]
        if not same or at.offset or self.found.operand(left) is not normed or left.dtype is not scale.of.dtype:
            return None
        if normed in map(self.found.operand, others):
            return None
        self.bindings.pop(self.names[normed])
        self._scale = scale
        by = instruction_for(self.device.matrix_instructions, left.dtype)
        found = by and self._by_tensor_cores(by)
        if found is None:
            return None
        tiled, parts = found
        if parts > 1 or tiled.producer is None:
            return None
        if heads:
            ends = sum([part.count for part in heads]) * tiled.columns
            fits = isinstance(self.rows, int) and HeadResults(tiled.producer, tiled.columns, self.rows, heads).fits
            if ends != self.columns or not fits or self.found.operands:
                return None
            self._heads = heads
            self.bindings |= tensors or {}
        return self.finished(tiled)

    def _by_tensor_cores(self, by: MatrixInstruction) -> tuple[Tiled, int] | None:
        """The tiles, and into how many parts their depth goes; None where no tile has matrices of the instruction."""
        left, rights, dtype = self.left(), self.rights(), by.factors
        axis = left.dense_axis(self.alignment(left), (dtype,))
        axes = [right.dense_axis(self.alignment(right), (dtype,)) for right in rights]
        early = self.early(left, rights)
        if by not in MMA:
            return self._by_any_instruction(by, left, rights, axis, axes)
        few = self._few_rows(dtype, left, rights, axes, early="right" in early)
        if few is not None:
            return few.tiled(), 1
        # All streams share a tile of shared memory, which has lines along one axis.
        other = axes[0] if axis and len(set(axes)) == 1 else ""
        near = self._near(dtype, left, rights, axis if other else "", other)
        if near is not None:
            return near.tiled(self.device), 1
        found = self._pipelined(left, rights, other)
        turned = self._turned(left, found, other) if axis and other != "k" else None
        if turned is not None:
            (rights, found), other = turned, "k"
        axis = axis if other else ""
        if found is not None and isinstance(self.depth, int):
            (tile, parts), ahead = found, "right" in early
            engine = PipelinedTile(tile, dtype, left, rights, axis, other, self.depth, parts, ahead, self._scale)
            engine = engine.at_once(self.rows, self.columns, self.device)
            return replace(engine.tiled(), cycles=self._cycles(*found, has_producer=True)), parts
        return self._by_warps_of(by, left, rights, axis, other, early)

    def _by_any_instruction(
        self, by: MatrixInstruction, left: Factor, rights: Sequence[Factor], axis: str, axes: Sequence[str]
    ) -> tuple[Tiled, int] | None:
        """The same by the one engine that knows nothing of an instruction but its record."""
        other = axes[0] if axis and len(set(axes)) == 1 else ""
        return self._by_warps_of(by, left, rights, axis if other else "", other, ())

    def _by_warps_of(
        self,
        by: MatrixInstruction,
        left: Factor,
        rights: Sequence[Factor],
        axis: str,
        other: str,
        early: tuple[str, ...],
    ) -> tuple[Tiled, int] | None:
        found = tile_of(*self._sizes, self.streams, self.device, by)
        if found is None:
            return None
        tile, parts = found
        engine = TensorCoreTile(tile, by, left, rights, axis, other, self.depth, parts, early)
        return replace(engine.tiled(self.device), cycles=self._cycles(tile, parts, has_producer=False)), parts

    def _turned(
        self, left: Factor, found: tuple[BlockTile, int] | None, axis: str
    ) -> tuple[list[Factor], tuple[BlockTile, int] | None] | None:
        """Weights that are transposed when they are bound, and their tile; None where another is about as good.

        Lines of columns go in panels of 64 for each stream; lines along k take any columns, also those that are no
        multiple of 8, whose own lines cannot be copied.
        """
        pack = Transposed()
        rights = None if found is None and (axis or self.is_short) else self._transposed(pack)
        if rights is None:
            return None
        other, sizes = self._pipelined(left, rights, "k"), (self.rows, self.columns, self.depth)
        if axis and not (found and other and gains_by_transposing(found, other, sizes, self.streams, self.device)):
            return None
        for v in map(self.found.operand, self.found.rights):
            self.bindings[self.names[v]] = Packed(v, pack.layout, pack)
        return rights, other

    @property
    def _sizes(self) -> tuple[Size, Size, Size, Size]:
        """How many products there are, their rows, columns and depth."""
        return product(self.batch), self.rows, self.columns, self.depth

    def _cycles(self, tile: BlockTile, parts: int, *, has_producer: bool) -> float:
        item = self.found.left.dtype.itemsize
        return cycles_of(
            tile,
            *self._sizes,
            self.streams,
            self.device,
            has_producer=has_producer,
            parts=parts,
            itemsize=item,
        )

    def _few_rows(
        self, dtype: DType, left: Factor, rights: list[Factor], axes: Sequence[str], *, early: bool
    ) -> StreamTile | None:
        """The tile of a product with few rows, with weights packed where they are parameters; None for many rows."""
        stream = partial(stream_of, dtype, left, batch=self.batch, device=self.device, early=early)
        if axes[0] != "k" and has_few_rows(self.rows):
            # Padding is for bulk copies: smaller ones would read across more sectors of memory.
            for pack in (Transposed(CHUNK), Transposed()):
                packed = self._transposed(pack)
                few = None if packed is None else stream(packed, ["k" for _ in packed])
                if few is not None and few.bulk == bool(pack.padding):
                    ring = self._ring(few)
                    layout = pack if ring is None else ring.pack
                    for v in map(self.found.operand, self.found.rights):
                        self.bindings[self.names[v]] = Packed(v, layout.layout, layout)
                    return few if ring is None else ring
        return stream(rights, axes)

    def _near(self, dtype: DType, left: Factor, rights: list[Factor], axis: str, other: str) -> NearTile | None:
        """The tile of a part of a resident kernel whose weights are constant; None where a block has several."""
        if not self.device.as_parts or self.batch or not all(map(self._is_constant, rights)):
            return None
        return NearTile.of(dtype, left, rights, (axis, other), (self.rows, self.columns, self.depth), self.device)

    def _ring(self, few: StreamTile) -> StreamRing | None:
        """A tile with packed weights as a ring of stages; None where another is as good."""
        ring = StreamRing.from_tile(few, self.columns, self.device)
        if ring is None or not all(is_multiple(first, ring.columns) for _, first in self.found.streams):
            return None
        names = [self.names[self.found.operand(self.found.rights[i])] for i, _ in self.found.streams]
        firsts = [first for _, first in self.found.streams]
        return replace(ring, rights=[ring.packed(*each) for each in zip(ring.rights, names, firsts, strict=True)])

    def _pipelined(self, left: Factor, rights: list[Factor], other: str) -> tuple[BlockTile, int] | None:
        """The tile of a kernel with a producer, and the parts of its depth; None where the TMA cannot copy the factors,
        or rows are few."""
        if not other or self.batch or not isinstance(self.depth, int) or not self.depth:
            return None
        if self.is_short or not PipelinedTile.takes((left, *rights)):
            return None
        panel = BOX if other == "row" else CHUNK
        straddle = left.straddles, any([right.straddles for right in rights])
        return pipelined_tile_of(self.rows, self.columns, self.depth, self.streams, panel, self.device, straddle)

    def _by_fma(self) -> tuple[Tiled, int]:
        """The tiles without tensor cores, and into how many parts their depth goes."""
        left, rights = self.left(), self.rights()
        axes = [factor.dense_axis(self.alignment(factor), (self.sums,)) for factor in (left, *rights)]
        return FmaTile.chosen(left, rights, axes, product(self.batch), self.sums, self.device)

    def stores(self, element: Element, at: tuple[Expr, ...]) -> Iterator[Store]:
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


__all__ = ["Writer", "offer_contract"]
