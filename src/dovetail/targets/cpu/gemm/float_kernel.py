"""Products with weights in blocks in f32: rows stay as they are, and codes become floats.

A sum of products with the codes of a group is scaled once. One row unpacks codes in registers; several rows share those
that are spelled out in L1. Both add in the same order, so that how rows are cut changes no bit.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Phi, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.scalar import literal
from dovetail.ir.dtype import f32
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.block_expand import LINE
from dovetail.targets.cpu.gemm.float_codes import Codes, FloatKernel
from dovetail.targets.cpu.gemm.float_policy import FLOATS
from dovetail.targets.cpu.gemm.phi_loop import end_loop
from dovetail.targets.cpu.gemm.policy import BLOCKS


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


class _Row(Builder):
    """The function that writes a row for its products."""

    def __init__(self, of: FloatKernel) -> None:
        super().__init__()
        self.of = of

    def written(self) -> Function:
        of = self.of
        floats = f"<{of.group} x float>"
        with self.loop(0, I64("%groups")) as group:
            x = self.let(f"load {floats}, ptr {self.ptr_add(Ptr('%x'), self.mul(group, 4 * of.group))}, align 4")
            there = self.ptr_add(Ptr("%target"), self.mul(group, of.row_bytes))
            if of.has_low:
                name = f"llvm.vector.reduce.fadd.v{of.group}f32"
                self.use(f"declare float @{name}(float, {floats})")
                zero = literal(-0.0, f32)
                total = self.let(f"call reassoc float @{name}(float {zero}, {floats} {x})")
                self.emit(f"store float {total}, ptr {there}, align 4")
            self.emit(f"store {floats} {x}, ptr {self.ptr_add(there, of.sum_bytes)}, align 4")
        given = (Parameter("ptr", "x"), Parameter("ptr", "target"), Parameter("i64", "groups"))
        return self.function(Signature(f"floats.row.{of.group}.{of.sum_bytes}", given))


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
                    self.store(self.reader.of_group(scale, words, of.words.scales, group), there)
                    if low is not None:
                        self.store(self.reader.low_of_group(low, words, group), self.ptr_add(there, 4 * of.columns))
                    there = self.ptr_add(there, kernel.head_bytes)
                    for step, terms in enumerate(of.words.codes[group]):
                        code = self.codes(words, terms)
                        for byte in range(4):
                            self.store(code(byte), self.ptr_add(there, 4 * of.columns * (4 * step + byte)))
        given = (Parameter("ptr", "panel"), Parameter("ptr", "spelled"), Parameter("i64", "blocks"))
        name = f"{of.name}.{of.columns}.{groups.start}.{len(groups)}"
        return self.function(Signature(f"floats.spell.{name}", given))


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
                held = [
                    self.let(f"select i1 {fresh}, {self.floats} zeroinitializer, {self.floats} {self.load(there)}")
                    for there in places
                ]
                given = [self.vector(panel, self.add(first, v)) for v in range(self.width)]
                lines = [self.ptr_add(ahead, line) for line in range(0, share, LINE)]
                for found, there in zip(self._block(given, row, held, lines), places, strict=True):
                    self.store(found, there)
        kinds = ("ptr row", "ptr panel", "ptr sums", "i64 blocks")
        given = tuple([Parameter(*each.split()) for each in kinds])
        return self.function(Signature(f"floats.{of.name}.{of.columns}.1", given))

    def _block(self, given: list[tuple[Ptr, Ptr]], row: Ptr, held: list[str], lines: list[Ptr]) -> list[str]:
        """Sums plus the products with some vectors of columns of a block, of which scales and words are given."""
        of, kernel, totals = self.of, self.kernel, list(held)
        scales = [self.reader.block_scale(at) for at, _ in given]
        lows = [self.reader.block_scale(self.ptr_add(at, of.scale_bytes)) for at, _ in given] if of.has_low else []
        words = [at for _, at in given]
        for first in range(0, of.groups, self.together):
            groups = range(first, first + self.together)
            here = [self.ptr_add(row, group * kernel.row_bytes) for group in groups]
            sums = [["zeroinitializer"] * len(words) for _ in groups]
            steps = kernel.group // 4
            for step in range(steps):
                # LLVM would load words that have codes of several steps once, and spill them.
                words = [self.after(at, total) for at, total in zip(words, sums[-1], strict=True)]
                turn, turns = first // self.together * steps + step, of.groups // self.together * steps
                for line in lines[turn * len(lines) // turns : (turn + 1) * len(lines) // turns]:
                    self.prefetch(line, level=2)
                for place, group in enumerate(groups):
                    codes = [self.codes(at, of.words.codes[group][step]) for at in words]
                    for byte in range(4):
                        x = self.ptr_add(here[place], kernel.sum_bytes + 4 * (4 * step + byte))
                        factor = self.load_splat(x)
                        sums[place] = [
                            self.fma(code(byte), factor, total) for code, total in zip(codes, sums[place], strict=True)
                        ]
            for place, group in enumerate(groups):
                for v, at in enumerate(words):
                    scale = self.reader.of_group(scales[v], at, of.words.scales, group)
                    totals[v] = self.fma(sums[place][v], scale, totals[v])
                total = self.load_splat(here[place]) if lows else ""
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
        given = tuple([Parameter(*each.split()) for each in kinds])
        name = f"{kernel.group}.{kernel.sum_bytes}.{kernel.pace}.{self.of.columns}.{len(self.rows)}"
        return self.function(Signature(f"floats.rows.{name}", given))

    def _group(self, panel: Ptr, rows: list[Ptr], start: Ptr, is_first: I1) -> None:
        """Add products with a group to sums in memory."""
        kernel, fresh = self.kernel, self.and_(is_first, I1("%fresh"))
        sums = self._products(self.ptr_add(panel, kernel.head_bytes), rows)
        vectors = range(kernel.width)
        scales = [self.load(self.ptr_add(panel, 4 * self.lanes * v)) for v in vectors]
        lows = self.ptr_add(panel, 4 * self.of.columns)
        low = [self.load(self.ptr_add(lows, 4 * self.lanes * v)) for v in vectors] if kernel.has_low else []
        for row, x in enumerate(rows):
            total = self.load_splat(x) if low else ""
            for v in vectors:
                place = self.ptr_add(start, self.mul(I64("%stride"), row))
                place = self.ptr_add(place, 4 * self.lanes * v)
                held = self.let(f"select i1 {fresh}, {self.floats} zeroinitializer, {self.floats} {self.load(place)}")
                held = self.fma(sums[row, v], scales[v], held)
                self.store(self.fma(low[v], total, held) if low else held, place)

    def _products(self, codes: Ptr, rows: list[Ptr]) -> dict[tuple[int, int], str]:
        """Sums of the products with the codes of a group."""
        kernel, before = self.kernel, self.block
        along, after = self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        step, at = self.phi("i64"), self.phi("ptr")
        sums = {cell: self.phi(self.floats) for cell in self.cells}
        found = {cell: phi.name for cell, phi in sums.items()}
        x = [self.ptr_add(self.ptr_add(row, kernel.sum_bytes), self.mul(I64(step.name), 4)) for row in rows]
        start = Ptr(at.name)
        for part in range(FLOATS.steps):
            if part:
                start = self.after(start, found[0, 0])
                x = [self.after(there, found[row, kernel.width - 1]) for row, there in enumerate(x)]
            here = self.ptr_add(start, 4 * self.of.columns * part)
            weights = [self.load(self.ptr_add(here, 4 * self.lanes * v)) for v in range(kernel.width)]
            for row in range(len(rows)):
                factor = self.load_splat(self.ptr_add(x[row], 4 * part))
                for v, weight in enumerate(weights):
                    found[row, v] = self.fma(weight, factor, found[row, v])
        following = self.add(I64(step.name), FLOATS.steps)
        carried: list[tuple[Phi, object, object]] = [
            (step, 0, following),
            (at, codes, self.ptr_add(Ptr(at.name), 4 * self.of.columns * FLOATS.steps)),
            *[(phi, "zeroinitializer", found[cell]) for cell, phi in sums.items()],
        ]
        again = self.icmp("slt", following, kernel.group)
        end_loop(self, carried, again, before=before, along=along, after=after)
        return found


__all__ = ["one_row_function", "row_function", "rows_function", "spell_function"]
