"""Products with weights in blocks in f32: rows stay as they are, and codes become floats.

Devices whose sums of pairs of bytes saturate take nine instructions where f32 takes four. A sum of products with the
codes of a group is scaled once. One row unpacks codes in registers; several rows share those that are spelled out in
L1. Both add in the same order, so that how rows are cut changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import FALSE, I1, I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import SCRATCH, KernelCode, shared_function
from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.simd import PhiLoop, SimdBuilder, due, numbers, zeros
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.blocks import BlockProduct
from dovetail.kernels.spec import Job, SharedFunction
from dovetail.targets.cpu.gemm.blocks.kernel import LINE
from dovetail.targets.cpu.gemm.blocks.pack import BlockLayout, BlockPanels
from dovetail.targets.cpu.gemm.blocks.unpack import PackedBlockReader
from dovetail.targets.cpu.gemm.blocks.words import Term
from dovetail.targets.cpu.gemm.driver import kernel_code
from dovetail.targets.cpu.gemm.groups import stacked
from dovetail.targets.cpu.gemm.policy import BLOCKS, FLOATS
from dovetail.targets.cpu.gemm.row_panels import Block, RowPanelJob, RowPanels, Workspace
from dovetail.targets.cpu.gemm.tile import Tile

_SUM_BYTES = 16
"""Bytes of a group of a row before its numbers, where their sum is first: lows of the weights multiply it."""
_MOST = 127
"""The largest code of a byte without a sign."""
_TABLE = 16
"""Floats that one instruction takes out of a register with AVX-512: those of codes of up to four bits."""

CodeReader = Callable[[int], Vec]
"""The code of some columns, as floats, in one of four steps along k."""


@dataclass(frozen=True, slots=True)
class FloatKernel:
    """What the code depends on."""

    packed: BlockLayout
    lanes: int
    registers: int
    emulated: bool
    """Whether instructions are emulated, and in any order."""

    @classmethod
    def of(cls, name: str, device: CpuDevice) -> FloatKernel:
        """The kernel of a format on a device."""
        lanes = device.lanes
        layout = BlockLayout(name, FLOATS.vectors * lanes, is_signed=True)
        return cls(layout, lanes, device.registers, device.emulated)

    @property
    def has_tables(self) -> bool:
        """Whether an instruction takes floats out of a table of 16."""
        return not self.emulated and self.lanes == _TABLE

    @property
    def has_low(self) -> bool:
        return self.packed.has_low

    @property
    def group(self) -> int:
        """Codes that share a scale."""
        return self.packed.format.group

    @property
    def sum_bytes(self) -> int:
        """Bytes of a group of a row before its numbers."""
        return _SUM_BYTES if self.has_low else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a group of a row."""
        return self.sum_bytes + 4 * self.group

    @property
    def head_bytes(self) -> int:
        """Bytes of scales and lows of a spelled group."""
        return 4 * self.packed.columns * (1 + self.has_low)

    @property
    def spelled_bytes(self) -> int:
        """Bytes of a group of a panel whose codes are floats."""
        return self.head_bytes + 4 * self.packed.columns * self.group

    @property
    def vectors(self) -> int:
        """Vectors of a panel's row."""
        return self.packed.columns // self.lanes

    @property
    def width(self) -> int:
        """Vectors whose sums several rows compute at once."""
        return self.vectors if self.registers >= FLOATS.many_registers else max(1, self.vectors // 2)

    def piece(self, room: int) -> int:
        """Groups of a block that are spelled out at once: a divisor of all, in some bytes where that is possible."""
        fitting = max(1, room // self.spelled_bytes)
        return max(
            count for count in range(1, self.packed.groups + 1) if self.packed.groups % count == 0 and count <= fitting
        )

    @property
    def pace(self) -> int:
        """Bytes of packed blocks for each group of a panel."""
        return self.packed.block_bytes // self.packed.groups


class Codes(SimdBuilder):
    """A function that reads packed blocks as floats."""

    def __init__(self, kernel: FloatKernel) -> None:
        super().__init__()
        self.kernel, self.of, self.lanes = kernel, kernel.packed, kernel.lanes
        self.reader = PackedBlockReader(self, self.of, self.lanes)
        self.ints, self.floats = self.reader.ints, self.reader.floats

    def codes(self, words: Ptr, terms: tuple[Term, ...]) -> CodeReader:
        """The codes of some columns in four steps along k."""
        (first, *others) = terms
        if self.kernel.has_tables and not others and first.mask < _TABLE and first.shift >= 0:
            return partial(self._looked_up, words, first)
        four = self.reader.codes(words, terms)
        if self.of.zero:
            four = self.lanewise("sub", four, self.of.zero)
        whole = self.bitcast(four, "i32", self.lanes)
        has_sign = self.of.zero > 0 or sum([term.mask for term in terms]) > _MOST
        return partial(self._extended, whole, has_sign=has_sign)

    def after(self, pointer: Ptr, x: Vec) -> Ptr:
        return pointer if self.kernel.emulated else super().after(pointer, x)

    def _looked_up(self, words: Ptr, term: Term, byte: int) -> Vec:
        """A code of four bits or fewer as an index of 16 floats, which has the bits above it, too."""
        index = self.lanewise("lshr", self.reader.word(words, term.word, self.ints), term.shift + 8 * byte)
        table = [literal(float((code & term.mask) - self.of.zero), f32) for code in range(_TABLE)]
        return self.instruction("llvm.x86.avx512.permvar.sf.512", self.floats, numbers(self.floats, table), index)

    def _extended(self, four: Vec, byte: int, *, has_sign: bool) -> Vec:
        """One of four bytes of each lane as a float."""
        if has_sign:
            if byte < 3:
                four = self.lanewise("shl", four, 24 - 8 * byte)
            return self.convert("sitofp", self.lanewise("ashr", four, 24), "float")
        if byte:
            four = self.lanewise("lshr", four, 8 * byte)
        return self.convert("sitofp", self.lanewise("and", four, 255) if byte < 3 else four, "float")

    def held(self, fresh: I1, there: Ptr) -> Vec:
        """The sums of the groups before, or zeros where there are none."""
        return self.select_vec(fresh, zeros(self.floats), self.load_lanes(self.floats, there))

    def load_vector(self, start: Ptr, number: int) -> Vec:
        """One of some vectors that follow each other."""
        return self.load_lanes(self.floats, self.ptr_add(start, 4 * self.lanes * number))

    def vector(self, panel: Ptr, number: I64 | int) -> tuple[Ptr, Ptr]:
        """Scales and words of a vector of columns of a block."""
        first = self.mul(number, self.lanes)
        scales = self.ptr_add(panel, self.mul(first, self.of.scales.itemsize))
        return scales, self.ptr_add(panel, self.add(self.mul(first, 4), self.of.head_bytes))


@cache
def row_function(of: FloatKernel) -> tuple[SharedFunction, Signature]:
    """Copies a row, with the sum of each group before it: `(x, target, groups)`."""
    return shared_function(_Row(of).written())


@cache
def spell_function(of: FloatKernel, first: int, count: int) -> tuple[SharedFunction, Signature]:
    """Spells some groups of each block of a panel out as f32, without their scales: `(panel, spelled, blocks)`."""
    return shared_function(_Spell(of, range(first, first + count)).written())


@cache
def one_row_function(of: FloatKernel) -> tuple[SharedFunction, Signature]:
    """Products of one row with a whole panel of blocks: `(row, panel, sums, blocks)`."""
    return shared_function(_OneRow(of).written())


@cache
def rows_function(of: FloatKernel, rows: int) -> tuple[SharedFunction, Signature]:
    """Adds products of rows with a spelled panel: `(rows, pitch, panel, sums, stride, groups, fresh, ahead)`."""
    return shared_function(_Rows(of, rows).written())


class _Row(SimdBuilder):
    """The function that writes a row for its products."""

    def __init__(self, of: FloatKernel) -> None:
        super().__init__()
        self.of = of

    def written(self) -> Function:
        of = self.of
        floats = VectorType(of.group, "float")
        with self.loop(0, I64("%groups")) as group:
            x = self.load_lanes(floats, self.ptr_add(Ptr("%x"), self.mul(group, 4 * of.group)))
            there = self.ptr_add(Ptr("%target"), self.mul(group, of.row_bytes))
            if of.has_low:
                name = f"llvm.vector.reduce.fadd.{floats.mangled}"
                self.use(f"declare float @{name}(float, {floats})")
                zero = literal(-0.0, f32)
                total = self.let(f"call reassoc float @{name}(float {zero}, {floats} {x})")
                self.emit(f"store float {total}, ptr {there}, align 4")
            self.store_lanes(x, self.ptr_add(there, of.sum_bytes))
        parameters = (Parameter("ptr", "x"), Parameter("ptr", "target"), Parameter("i64", "groups"))
        return self.function(Signature(f"floats.row.{of.group}.{of.sum_bytes}", parameters))


class _Spell(Codes):
    """The function that spells groups of blocks out, one vector of columns after the other."""

    def __init__(self, kernel: FloatKernel, groups: range) -> None:
        super().__init__(kernel)
        self.groups = groups

    def written(self) -> Function:
        of, kernel, groups = self.of, self.kernel, self.groups
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, of.block_bytes))
            spelled = self.ptr_add(Ptr("%spelled"), self.mul(block, len(groups) * kernel.spelled_bytes))
            with self.loop(0, kernel.vectors) as number:
                scales, words = self.vector(panel, number)
                target = self.ptr_add(spelled, self.mul(number, 4 * self.lanes))
                scale = self.reader.block_scale(scales)
                low = self.reader.block_scale(self.ptr_add(scales, of.scale_bytes)) if of.has_low else None
                for place, group in enumerate(groups):
                    there = self.ptr_add(target, place * kernel.spelled_bytes)
                    self.store_lanes(self.reader.of_group(scale, words, of.words.scales, group), there)
                    if low is not None:
                        self.store_lanes(
                            self.reader.low_of_group(low, words, group), self.ptr_add(there, 4 * of.columns)
                        )
                    there = self.ptr_add(there, kernel.head_bytes)
                    for step, terms in enumerate(of.words.codes[group]):
                        code = self.codes(words, terms)
                        for byte in range(4):
                            self.store_lanes(code(byte), self.ptr_add(there, 4 * of.columns * (4 * step + byte)))
        parameters = (Parameter("ptr", "panel"), Parameter("ptr", "spelled"), Parameter("i64", "blocks"))
        name = f"{of.name}.{of.columns}.{groups.start}.{len(groups)}"
        return self.function(Signature(f"floats.spell.{name}", parameters))


class _OneRow(Codes):
    """The function that multiplies one row with blocks as they are.

    Sums of several vectors of columns and groups grow at once: they do not wait for each other.
    """

    def __init__(self, kernel: FloatKernel) -> None:
        super().__init__(kernel)
        self.together = 2 if kernel.packed.groups % 2 == 0 else 1
        """Groups at once."""
        self.width = max(1, kernel.vectors // self.together)
        """Vectors at once."""

    def written(self) -> Function:
        of, kernel = self.of, self.kernel
        with self.loop(0, I64("%blocks")) as block:
            panel = self.ptr_add(Ptr("%panel"), self.mul(block, of.block_bytes))
            row = self.ptr_add(Ptr("%row"), self.mul(block, of.groups * kernel.row_bytes))
            fresh = self.icmp("eq", block, 0)
            passes = kernel.vectors // self.width
            with self.loop(0, passes) as number:
                distance = BLOCKS.prefetch_distance if of.groups == 1 else of.block_bytes + BLOCKS.wide_distance
                share = of.block_bytes // passes
                ahead = self.ptr_add(panel, self.add(self.mul(number, share), distance))
                first = self.mul(number, self.width)
                start = self.ptr_add(Ptr("%sums"), self.mul(first, 4 * self.lanes))
                places = [self.ptr_add(start, 4 * self.lanes * v) for v in range(self.width)]
                held = [self.held(fresh, there) for there in places]
                columns = [self.vector(panel, self.add(first, v)) for v in range(self.width)]
                lines = [self.ptr_add(ahead, line) for line in range(0, share, LINE)]
                for total, there in zip(self._block(columns, row, held, lines), places, strict=True):
                    self.store_lanes(total, there)
        kinds = ("ptr row", "ptr panel", "ptr sums", "i64 blocks")
        parameters = tuple([Parameter(*each.split()) for each in kinds])
        return self.function(Signature(f"floats.{of.name}.{of.columns}.1", parameters))

    def _block(self, columns: list[tuple[Ptr, Ptr]], row: Ptr, held: list[Vec], lines: list[Ptr]) -> list[Vec]:
        """Add the products with some vectors of columns of a block to the accumulators."""
        of, kernel, totals = self.of, self.kernel, list(held)
        scales = [self.reader.block_scale(at) for at, _ in columns]
        lows = [self.reader.block_scale(self.ptr_add(at, of.scale_bytes)) for at, _ in columns] if of.has_low else []
        words = [at for _, at in columns]
        for first in range(0, of.groups, self.together):
            groups = range(first, first + self.together)
            here = [self.ptr_add(row, group * kernel.row_bytes) for group in groups]
            accumulators = [[zeros(self.floats)] * len(words) for _ in groups]
            steps = kernel.group // 4
            for step in range(steps):
                # LLVM would load words that have codes of several steps once, and spill them.
                words = [self.after(at, total) for at, total in zip(words, accumulators[-1], strict=True)]
                turn, turns = first // self.together * steps + step, of.groups // self.together * steps
                for line in due(lines, turn, turns):
                    self.prefetch(line, level=2)
                for place, group in enumerate(groups):
                    codes = [self.codes(at, of.words.codes[group][step]) for at in words]
                    for byte in range(4):
                        x = self.ptr_add(here[place], kernel.sum_bytes + 4 * (4 * step + byte))
                        factor = self.load_spread(self.floats, x)
                        accumulators[place] = [
                            self.fma(code(byte), factor, total)
                            for code, total in zip(codes, accumulators[place], strict=True)
                        ]
            for place, group in enumerate(groups):
                for v, at in enumerate(words):
                    scale = self.reader.of_group(scales[v], at, of.words.scales, group)
                    totals[v] = self.fma(accumulators[place][v], scale, totals[v])
                total = self.load_spread(self.floats, here[place]) if lows else totals[0]
                for v, at in enumerate(words) if lows else ():
                    totals[v] = self.fma(self.reader.low_of_group(lows[v], at, group), total, totals[v])
        return totals


class _Rows(Codes):
    """The function that multiplies rows with a spelled panel, some vectors of columns at a time."""

    def __init__(self, kernel: FloatKernel, rows: int) -> None:
        super().__init__(kernel)
        self.rows = [self.ptr_add(Ptr("%rows"), self.mul(I64("%pitch"), row)) for row in range(rows)]
        self.cells = [(row, v) for row in range(rows) for v in range(kernel.width)]

    def written(self) -> Function:
        kernel, passes = self.kernel, self.kernel.vectors // self.kernel.width
        with self.loop(0, passes) as number:
            first = self.mul(number, 4 * self.lanes * kernel.width)
            start = self.ptr_add(Ptr("%sums"), first)
            with self.loop(0, I64("%groups")) as group:
                ahead = self.ptr_add(Ptr("%ahead"), self.mul(group, kernel.pace))
                for line in range(0, kernel.pace, LINE):
                    self.prefetch(self.ptr_add(ahead, line), level=2)
                panel = self.ptr_add(self.ptr_add(Ptr("%panel"), first), self.mul(group, kernel.spelled_bytes))
                at = self.mul(group, kernel.row_bytes)
                self._group(panel, [self.ptr_add(row, at) for row in self.rows], start, self.icmp("eq", group, 0))
        kinds = (
            "ptr rows", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 groups", "i1 fresh", "ptr ahead",
        )  # fmt: skip
        parameters = tuple([Parameter(*each.split()) for each in kinds])
        name = f"{kernel.group}.{kernel.sum_bytes}.{kernel.pace}.{self.of.columns}.{len(self.rows)}"
        return self.function(Signature(f"floats.rows.{name}", parameters))

    def _group(self, panel: Ptr, rows: list[Ptr], start: Ptr, is_first: I1) -> None:
        """Add products with a group to sums in memory."""
        kernel, fresh = self.kernel, self.and_(is_first, I1("%fresh"))
        accumulators = self._products(self.ptr_add(panel, kernel.head_bytes), rows)
        vectors = range(kernel.width)
        scales = [self.load_vector(panel, v) for v in vectors]
        lows = self.ptr_add(panel, 4 * self.of.columns)
        low = [self.load_vector(lows, v) for v in vectors] if kernel.has_low else []
        for row, x in enumerate(rows):
            total = self.load_spread(self.floats, x) if low else scales[0]
            for v in vectors:
                place = self.ptr_add(start, self.mul(I64("%stride"), row))
                place = self.ptr_add(place, 4 * self.lanes * v)
                held = self.fma(accumulators[row, v], scales[v], self.held(fresh, place))
                self.store_lanes(self.fma(low[v], total, held) if low else held, place)

    def _products(self, codes: Ptr, rows: list[Ptr]) -> dict[tuple[int, int], Vec]:
        """Sums of the products with the codes of a group."""
        kernel, along = self.kernel, PhiLoop(self)
        step, at = along.carry(I64("0")), along.carry(codes)
        accumulators = {cell: along.carry(zeros(self.floats)) for cell in self.cells}
        updated = dict(accumulators)
        x = [self.ptr_add(self.ptr_add(row, kernel.sum_bytes), self.mul(step, 4)) for row in rows]
        start = at
        for part in range(FLOATS.steps):
            if part:
                start = self.after(start, updated[0, 0])
                x = [self.after(there, updated[row, kernel.width - 1]) for row, there in enumerate(x)]
            here = self.ptr_add(start, 4 * self.of.columns * part)
            weights = [self.load_vector(here, v) for v in range(kernel.width)]
            for row in range(len(rows)):
                factor = self.load_spread(self.floats, self.ptr_add(x[row], 4 * part))
                for v, weight in enumerate(weights):
                    updated[row, v] = self.fma(weight, factor, updated[row, v])
        following = self.add(step, FLOATS.steps)
        end = self.ptr_add(at, 4 * self.of.columns * FLOATS.steps)
        again = self.icmp("slt", following, kernel.group)
        along.end([(step, following), (at, end), *[(phi, updated[cell]) for cell, phi in accumulators.items()]], again)
        return updated


class FloatBlocks(RowPanelJob):
    """The job of one product while it is put together."""

    def __init__(self, of: StepProblem[CpuDevice], product: BlockProduct, kernel: FloatKernel) -> None:
        super().__init__(of.step, product.contraction, of.locations, Tile(of.device, 1, kernel.vectors))
        self.product, self.kernel = product, kernel

    def job(self) -> Job | Refused:
        deep, kernel = self.deep, self.kernel
        if not isinstance(deep, int) or deep % kernel.packed.block or deep == 0:
            return Refused("rows_are_whole_blocks", str(deep), f"a multiple of {kernel.packed.block}")
        pitch = -(-deep // kernel.group * kernel.row_bytes // 64) * 64 + 64
        pack = stacked(partial(BlockPanels, kernel.packed), self.contraction.ends)
        code = partial(_code, kernel)
        return self.finished(pitch, self.product.blocks, pack, code, 1, FLOATS.rows, FLOATS.share)


def _code(kernel: FloatKernel, of: Block) -> tuple[KernelCode, int]:
    driver = _Driver(kernel, of)
    return kernel_code("blocks_f32", driver, driver.functions), driver.room


class _Driver(RowPanels):
    """The function that goes through cells."""

    def __init__(self, kernel: FloatKernel, of: Block) -> None:
        packed = kernel.packed
        room = of.shape.tile.device.caches.l1 * FLOATS.l1_share[0] // FLOATS.l1_share[1]
        self.blocks = of.deep // packed.block
        """Of a column."""
        self.piece = kernel.piece(room)
        """Groups of a block that are spelled out at once."""
        most = max(1, room // (self.piece * kernel.spelled_bytes)) if self.piece == packed.groups else 1
        self.part = -(-self.blocks // -(-self.blocks // most))
        """Blocks along k of the part of a panel that is spelled out in L1."""
        at = Workspace(of, self.part * self.piece * kernel.spelled_bytes if of.rows > 1 else 0)
        super().__init__(of, at, packed.panel_bytes(of.deep))
        self.kernel = kernel
        self.tiles = [rows for rows in FLOATS.tiles if rows <= of.rows]
        self.functions: list[tuple[SharedFunction, Signature]] = [row_function(kernel), one_row_function(kernel)]
        if of.rows > 1:
            self.functions += [spell_function(kernel, first, self.piece) for first in self.pieces]
            self.functions += [rows_function(kernel, rows) for rows in self.tiles]
        self.write()

    @property
    def pieces(self) -> range:
        """First groups of what is spelled out at once."""
        return range(0, self.kernel.packed.groups, self.piece)

    def prepare(self, x: Ptr, target: Ptr) -> None:
        self.call(row_function(self.kernel)[1], x, target, self.problem.deep // self.kernel.group)

    def multiply(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        alone = self.icmp("eq", count, 1)
        with self.when(alone):
            self.call(one_row_function(self.kernel)[1], rows, b, accumulators, self.blocks)
        if self.problem.rows > 1:
            with self.unless(alone):
                self._multiply_several(rows, b, accumulators, count)

    def _multiply_several(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """KC steps along k at a time, of which all rows read the codes as floats."""
        kernel, packed = self.kernel, self.kernel.packed
        spelled = self.ptr_add(SCRATCH, self.at.own)
        with self.loop(0, self.blocks, step=self.part) as first:
            some = self.smin(self.part, self.sub(self.blocks, first))
            here = self.ptr_add(b, self.mul(first, packed.block_bytes))
            x = self.ptr_add(rows, self.mul(first, packed.groups * kernel.row_bytes))
            ahead = self.ptr_add(here, self.mul(some, packed.block_bytes))
            groups = self.mul(some, self.piece)
            for start in self.pieces:
                self.call(spell_function(kernel, start, self.piece)[1], here, spelled, some)
                fresh = FALSE if start else self.icmp("eq", first, 0)
                soon = self.ptr_add(ahead, start * kernel.pace)
                self._tiles(
                    self.ptr_add(x, start * kernel.row_bytes), spelled, accumulators, count, groups, fresh, soon
                )

    def _tiles(self, x: Ptr, panel: Ptr, accumulators: Ptr, count: I64, groups: I64, fresh: I1, ahead: Ptr) -> None:
        """All rows: tiles of the most rows first."""
        stride = self.shape.tile.row_bytes
        for tile, row in self.in_tiles(self.tiles, count):
            rows, y = (
                self.ptr_add(x, self.mul(row, self.problem.pitch)),
                self.ptr_add(accumulators, self.mul(row, stride)),
            )
            self.prefetch_rows(row, tile)
            multiply = rows_function(self.kernel, tile)[1]
            self.call(multiply, rows, self.problem.pitch, panel, y, stride, groups, fresh, ahead)


__all__ = ["FloatBlocks", "FloatKernel", "one_row_function", "rows_function", "spell_function"]
