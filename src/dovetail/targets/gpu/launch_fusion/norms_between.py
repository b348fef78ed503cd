"""RMS norms between two products have no launch: the product before leaves squares, the one after scales its sums.

What passes from one to the other, rows times gains and squares, is in the workspace. The kernel of the second follows
that of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bf16, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.gpu.gemm.head_rows import STATUS, Appended, Heads
from dovetail.kernels.gpu.gemm.norms import scaled_product, squared_product
from dovetail.kernels.gpu.gemm.scaled_rows import GAIN, RowSquares
from dovetail.kernels.loops.ir import Kernel, KernelKind, Tensor
from dovetail.kernels.problems.contraction import find_products
from dovetail.kernels.spec import ALIGNMENT, TensorLocations
from dovetail.library import rms_norm, rope
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints, aligned
from dovetail.targets.gpu.launch_fusion.launch_choices import (
    BETWEEN,
    HEADS,
    IS_APART,
    IS_WHOLE,
    ONE_READER,
    LaunchChoices,
    Need,
)
from dovetail.targets.gpu.launch_fusion.normed_products import normed_by
from dovetail.targets.gpu.launch_fusion.row_launches import MOST_STEPS
from dovetail.targets.gpu.select import Selection

__all__ = ["NormsBetween"]

AXIS = -2
"""The axis of tokens: features are the last one, heads are before it."""
ARE_HEADS = Need(
    "heads_are_columns_of_the_product",
    "heads of one width, next to each other, that are all columns of the product",
    "one product for queries, keys and values, split into heads of one width",
)
ARE_KNOWN = Need(
    "steps_norm_rotate_or_append",
    "RMS norms with a gain, then a rotation by halves with tables of tokens, then rows of a cache by i64 positions",
    "norm heads before they are rotated, with tables and gains in the dtype of the product",
)
READ_ALONE = Need(
    "steps_alone_read_the_product", "these steps alone", "let nothing else read the product, or a head on its way"
)


@dataclass(frozen=True, slots=True)
class HeadSteps:
    """The heads of a product, and what the pointers of their tensors point to."""

    parts: tuple[Heads, ...]
    width: int
    bindings: Mapping[str, Value]
    written: tuple[str, ...]

    @property
    def is_checked(self) -> bool:
        """Whether rows of a cache are chosen by indices, which may be out of range."""
        return any(part.appended is not None for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Heads on their way: the columns of the product, and what became of them."""

    first: int
    count: int
    width: int
    gain: Value | None = None
    eps: float = 0.0
    angles: tuple[Value, Value] | None = None


@dataclass(slots=True)
class HeadReader:
    """Reads steps that follow a product, each of which has one head of a token at a time."""

    memory: Footprints
    locations: TensorLocations
    of: Value
    """The product: tokens, and heads next to each other."""

    def read(self, steps: Sequence[Step]) -> HeadSteps | Refused:
        """What the steps do with the heads of the product, or why the product cannot do it."""
        known: dict[Value, _Rows] = {}
        parts: list[tuple[_Rows, Value, Value | None]] = []
        inside: dict[Value, int] = {}
        for step in steps:
            value = step.value
            source = value.operands[2] if value.op is ops.scatter_elements else value.operands[0]
            rows = known.get(source) or self._viewed(source)
            for root in {self.locations(v).root for v in value.operands}:
                inside[root] = inside.get(root, 0) + 1
            if rows is None or len(step.results) != 1:
                return ARE_HEADS.refused(f"{value.op.name} of something else")
            if value.op is ops.scatter_elements:
                index = self._index(value)
                if index is None:
                    return ARE_KNOWN.refused("an update of other rows")
                parts.append((rows, value, index))
                continue
            next_rows = self._after_step(value, rows)
            if next_rows is None or step.overs:
                return ARE_KNOWN.refused(f"{value.op.name}{' in place' if step.overs else ''}")
            known[value] = next_rows
        if self.memory.readers.get(self.of) != inside.get(self.of):
            return READ_ALONE.refused(f"{self.memory.readers.get(self.of)} readers, {inside.get(self.of)} of them here")
        for value, rows in known.items():
            if self.memory.readers.get(value, 0) != inside.get(value, 0):
                if value in inside or not self.memory.is_whole(value):
                    # What others read too would be written on the way.
                    return READ_ALONE.refused(f"another reader of {value.op.name}")
                parts.append((rows, value, None))
        return self._described(parts)

    def _viewed(self, value: Value) -> _Rows | None:
        """Heads of the product as they are."""
        at, item = self.locations(value), value.dtype.itemsize
        if at.root is not self.of or value.rank < 3 or product(value.shape[:-3]) != 1:
            return None
        (heads, tokens, width), strides = value.shape[-3:], at.strides[-3:]
        rows, columns = product(self.of.shape[:-1]), self.of.shape[-1]
        if not (isinstance(heads, int) and isinstance(width, int) and isinstance(columns, int)):
            return None
        beside = heads == 1 or strides[0] == width * item
        if tokens != rows or not beside or strides[1:] != (columns * item, item) or not isinstance(at.offset, int):
            return None
        first, odd = divmod(at.offset, item)
        return None if odd or first % width else _Rows(first, heads, width)

    def _after_step(self, value: Value, rows: _Rows) -> _Rows | None:
        """Heads after one more step."""
        if value.op is rope and value.attrs["form"] == "half" and rows.angles is None:
            cos, sin = value.operands[1:]
            if all([self._is_table(v, (value.shape[AXIS], rows.width)) for v in (cos, sin)]):
                return replace(rows, angles=(cos, sin))
        if value.op is rms_norm and len(value.operands) == 2 and rows.gain is None and rows.angles is None:
            gain = value.operands[1]
            if gain.dtype is self.of.dtype and self._is_table(gain, (rows.width,)):
                return replace(rows, gain=gain, eps=float(value.attrs["eps"]))
        return None

    def _is_table(self, value: Value, shape: tuple[object, ...]) -> bool:
        aligned = self.locations.alignment({"": value})[""] % ALIGNMENT == 0
        dense = is_dense(value.tensor, self.locations(value).strides)
        return value.shape == shape and value.dtype is self.of.dtype and dense and aligned

    def _index(self, value: Value) -> Value | None:
        """The rows of tokens in a cache whose rows are dense, where the product can append them."""
        index = value.operands[1]
        at, plain = self.locations(index), value.attrs["reduction"] == "none" and value.attrs["axis"] == AXIS
        strides = at.strides
        if not plain or index.dtype is not i64 or index.shape != value.operands[2].shape or index.rank < 3:
            return None
        others = [s for a, s in enumerate(strides) if a != len(strides) + AXIS and index.shape[a] != 1]
        cache = self.locations(value)
        dense = is_dense(value.tensor, cache.strides) and cache.offset == 0
        leading = index.shape[:AXIS] == value.shape[:AXIS] and index.shape[-1] == value.shape[-1]
        known = isinstance(strides[AXIS], int) and isinstance(at.offset, int)
        return index if dense and leading and known and not any(others) else None

    def _described(self, parts: Sequence[tuple[_Rows, Value, Value | None]]) -> HeadSteps | Refused:
        """The parts by pointers; refused where they are not all columns, or a block would write what others read."""
        widths = {rows.width for rows, _, _ in parts}
        taken = sorted([(rows.first, rows.first + rows.count * rows.width) for rows, _, _ in parts])
        ends = [0, *(end for _, end in taken)]
        if len(widths) != 1 or [first for first, _ in taken] != ends[:-1] or ends[-1] != self.of.shape[-1]:
            return ARE_HEADS.refused(f"columns {ends[-1]} of {self.of.shape[-1]}, heads of {len(widths)} widths")
        names: dict[Value, str] = {}
        heads: list[Heads] = []
        written: list[str] = []

        def table(value: Value, *strides: int) -> Tensor:
            return Tensor(names.setdefault(value, f"head{len(names)}"), value.dtype, strides)

        item, width = self.of.dtype.itemsize, widths.pop()
        for rows, result, index in parts:
            target = table(result, width * item, item)
            written.append(target.pointer)
            gain = None if rows.gain is None else table(rows.gain, item)
            angles = rows.angles and (
                table(rows.angles[0], width * item, item),
                table(rows.angles[1], width * item, item),
            )
            appended = None
            if index is not None:
                at = self.locations(index)
                assert isinstance(at.strides[AXIS], int) and isinstance(at.offset, int), "it was checked"
                by = Tensor(table(index).pointer, i64, (at.strides[AXIS],))
                appended = Appended(by, result.shape[AXIS])
            heads.append(Heads(rows.first, rows.count, target, gain, rows.eps, angles, appended))
        wrote = self.memory.storages([result for _, result, _ in parts])
        read = self.memory.storages([v for v, name in names.items() if name not in written])
        if len(wrote) != len(parts) or wrote & read:
            return IS_APART.refused("a result over what other blocks still read")
        if any(result.dtype is not self.of.dtype for _, result, _ in parts):
            return ARE_KNOWN.refused("results in another dtype")
        return HeadSteps(tuple(heads), width, {name: v for v, name in names.items()}, tuple(written))


Pair: TypeAlias = tuple[Kernel, Kernel, RowSquares]
ARE_COPIED = Need(
    "products_copy_by_tensor_maps",
    "a product before and one after it, both with rows for tiles that one thread copies by tensor maps",
    "more rows; products of few rows norm what they read",
)
IS_NARROW = Need("rows_are_bf16", "bf16", "compute in bf16")
MAKES_ROWS = Need(
    "a_product_makes_the_rows", "the product before it, with what is added to it", "let a product write what is normed"
)
HAS_TILES = Need(
    "tiles_keep_squares_and_scales",
    "products without batches and parts of k, whose rows are those of the norm and whose left operand it is",
    "rows in one matrix, and enough of them that k is not cut",
)
HAS_NORM = Need("a_norm_is_between_products", "a norm between two products before it", "see what refuses the norm")
HAS_HEADS = Need(
    "a_tile_is_a_head", "tiles with the columns of one head, and nothing else in the product", "heads of 64 or 128"
)


@dataclass(slots=True)
class NormsBetween:
    """Finds the norms of a plan whose rows a product makes and another one reads."""

    memory: Footprints
    selection: Selection
    kept: Callable[..., GpuKernel]
    known: dict[Hashable, Pair | None] = field(default_factory=dict[Hashable, "Pair | None"])
    headed: dict[Hashable, Kernel | None] = field(default_factory=dict[Hashable, "Kernel | None"])
    """Second products with the steps after them."""
    choices: LaunchChoices = field(default_factory=LaunchChoices)

    def joined(self, steps: Sequence[tuple[Step, Kernels]]) -> list[tuple[Step, Kernels]]:
        """The kernels of each step, without those of such norms."""
        joined = [*steps]
        for index in range(len(steps) - 1):
            one, norm, other = (self._alone(joined[at]) if at >= 0 else None for at in (index - 1, index, index + 1))
            if norm is None or norm[0].value.op is not rms_norm or norm[1].kernel.kind == KernelKind.ROW_STAGES:
                continue
            following = joined[index + 2 : index + 2 + MOST_STEPS]
            if one is None or other is None:
                pair = IS_WHOLE.refused("others next to it") if index else MAKES_ROWS.refused("nothing before it")
            else:
                pair = self._pair(one, norm, other, following, index + 1)
            self.choices.record([norm[0]], BETWEEN, pair if isinstance(pair, Refused) else None)
            if isinstance(pair, Refused):
                self.choices.record(_heads_in(following), HEADS, HAS_NORM.refused("a norm with a launch"))
                continue
            first, second, last = pair
            joined[index - 1] = (joined[index - 1][0], (first,))
            for at in range(index, last + 1):
                joined[at] = (joined[at][0], (second,) if at == last else None)
        return joined

    @staticmethod
    def _alone(step: tuple[Step, Kernels]) -> tuple[Step, GpuKernel] | None:
        """A step with its one kernel."""
        return None if step[1] is None or len(step[1]) != 1 else (step[0], step[1][0])

    def _pair(
        self,
        one: tuple[Step, GpuKernel],
        norm: tuple[Step, GpuKernel],
        other: tuple[Step, GpuKernel],
        following: Sequence[tuple[Step, Kernels]],
        last: int,
    ) -> tuple[GpuKernel, GpuKernel, int] | Refused:
        """The kernels of both products, and the number of the last step that the second one has, where `last` is its
        own; refused where the norm between them needs a kernel."""
        (before, first), (between, small), (after, second) = one, norm, other
        rows = normed_by(between, self.selection.locations)
        if isinstance(rows, Refused):
            return rows
        x, gain = rows
        (result,) = between.results
        if x.dtype is not bf16:
            return IS_NARROW.refused(str(x.dtype))
        makes = self.selection.problem(before).once(find_products)
        if before.results != (x,) or isinstance(makes, Refused):
            return MAKES_ROWS.refused(f"{before.value.op.name} before it")
        if not first.kernel.maps or not second.kernel.maps:
            lacks = " and ".join([s.value.op.name for s, k in (one, other) if not k.kernel.maps])
            return ARE_COPIED.refused(f"none in {lacks}")
        if self.memory.readers.get(result) != 1:
            return ONE_READER.refused(f"{self.memory.readers.get(result, 0)} readers")
        if small.has_more or small.checks or not self.memory.is_whole(result):
            return IS_WHOLE.refused("a norm in several")
        if any([k.workspace or k.checks or k.counters for k in (first, second)]):
            return IS_WHOLE.refused("a product in parts")
        key = first.kernel.identity, small.kernel.identity, second.kernel.identity
        if key not in self.known:
            self.known[key] = self._composed(before, first, between, gain, after)
        composed = self.known[key]
        if composed is None:
            return HAS_TILES.refused("other tiles")
        first_kernel, second_kernel, squares = composed
        *starts, end = aligned(*squares.workspace.values())
        places = dict(zip(squares.workspace, starts, strict=True))
        others = {n: v for n, v in second.bindings.items() if v is not result}
        squared = self._kernel((*key, "squares"), first_kernel, {**first.bindings, GAIN: gain}, first, places, end)
        headed = self._headed(key, other, between, squares, following)
        self.choices.record(_heads_in(following), HEADS, headed if isinstance(headed, Refused) else None)
        if isinstance(headed, Refused):
            return squared, self._kernel((*key, "scales"), second_kernel, others, second, places, end), last
        kernel, heads, count = headed
        bindings = {**{n: v for n, v in others.items() if n in kernel.pointers}, **heads.bindings}
        scaled = self._kernel((*key, heads.parts), kernel, bindings, second, places, end)
        return squared, replace(scaled, checks=(STATUS.pointer,) if heads.is_checked else ()), last + count

    def _headed(
        self,
        key: Hashable,
        other: tuple[Step, GpuKernel],
        between: Step,
        squares: RowSquares,
        following: Sequence[tuple[Step, Kernels]],
    ) -> tuple[Kernel, HeadSteps, int] | Refused:
        """The kernel of the second product with the steps after it, which have a launch by tokens; refused where they
        keep it."""
        after, steps = other[0], _heads_in(following)
        if not steps or len(after.results) != 1:
            return IS_WHOLE.refused("other steps")
        heads = HeadReader(self.memory, self.selection.locations, after.results[0]).read(steps)
        if isinstance(heads, Refused):
            return heads
        known = key, heads.parts
        if known not in self.headed:
            problem = self.selection.problem(after)
            eps = float(between.value.attrs["eps"])
            job = scaled_product(problem, between.value, squares, eps, heads.parts, heads.bindings)
            self.headed[known] = job.kernel if job is not None and isinstance(job.kernel, Kernel) else None
        kernel = self.headed[known]
        return HAS_HEADS.refused("other tiles") if kernel is None else (kernel, heads, len(steps))

    def _composed(self, before: Step, first: GpuKernel, between: Step, gain: Value, after: Step) -> Pair | None:
        left = squared_product(self.selection.problem(before), gain)
        if left is None:
            return None
        job, squares = left
        problem = self.selection.problem(after)
        scaled = scaled_product(problem, between.value, squares, float(between.value.attrs["eps"]))
        if scaled is None or not isinstance(job.kernel, Kernel) or not isinstance(scaled.kernel, Kernel):
            return None
        # A result may take the memory of an operand.
        return replace(job.kernel, shared=first.kernel.shared), scaled.kernel, squares

    def _kernel(
        self,
        key: Hashable,
        kernel: Kernel,
        bindings: Mapping[str, Value],
        was: GpuKernel,
        places: Mapping[str, Size],
        end: Size,
    ) -> GpuKernel:
        shared = self.kept(key, bindings, lambda: kernel, places, was.packed)
        return replace(shared, workspace_bytes=end)


def _heads_in(following: Sequence[tuple[Step, Kernels]]) -> list[Step]:
    """The steps after a product that share a launch by tokens."""
    count = next((i + 1 for i, (_, kernels) in enumerate(following) if kernels is not None), 0)
    kernels = following[count - 1][1] if count else None
    is_shared = kernels and kernels[0].kernel.kind == KernelKind.ROW_STAGES
    return [step for step, _ in following[:count]] if is_shared else []
