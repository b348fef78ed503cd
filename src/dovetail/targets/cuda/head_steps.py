"""Steps after a product that norm, rotate and append its heads, as what the product may do itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import product
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.gpu.head_rows import Appended, Heads
from dovetail.kernels.loops.ir import Tensor
from dovetail.kernels.spec import ALIGNMENT, TensorLocations
from dovetail.library import rms_norm, rope
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Step
from dovetail.targets.cuda.footprints import Footprints, meet
from dovetail.targets.cuda.launch_choices import IS_APART, Need

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
            made = self._made(value, rows)
            if made is None or step.overs:
                return ARE_KNOWN.refused(f"{value.op.name}{' in place' if step.overs else ''}")
            known[value] = made
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

    def _made(self, value: Value, rows: _Rows) -> _Rows | None:
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
        found: list[Heads] = []
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
            found.append(Heads(rows.first, rows.count, target, gain, rows.eps, angles, appended))
        wrote = [self.memory.span(result) for _, result, _ in parts]
        read = [self.memory.span(v) for v, name in names.items() if name not in written]
        apart = not any(x.meets(y) for i, x in enumerate(wrote) for y in wrote[:i])
        if not apart or meet(wrote, read):
            return IS_APART.refused("a result in memory that other blocks still read")
        if any(result.dtype is not self.of.dtype for _, result, _ in parts):
            return ARE_KNOWN.refused("results in another dtype")
        return HeadSteps(tuple(found), width, {name: v for v, name in names.items()}, tuple(written))


__all__ = ["HeadReader", "HeadSteps"]
