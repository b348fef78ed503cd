"""Weave: elementwise steps with movement between them, as one kernel that computes each element where it belongs.

Joined tensors, padding and views that strides cannot express cost nothing: the result is cut into boxes, and in each of
them every element comes from one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail import ops
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.map import moving_body
from dovetail.kernels.families.policy import FAMILIES
from dovetail.kernels.loops.affine import (
    AxisIndices,
    NotAffineError,
    Piece,
    RefineError,
    is_followed,
    operands_at,
    whole,
)
from dovetail.kernels.loops.body import Body, cast_to, is_number, number, pointers_of
from dovetail.kernels.loops.ir import Call, Expr, Extent, Kernel, Load, Store, Tensor, add, collapsed, mul, sizes_in
from dovetail.kernels.loops.tiling import Turn, cut, in_turn, vector_width
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.plan import Step


def offer_weave(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a fused op or region of elementwise steps and movement."""
    body = moving_body(of, is_followed, "elementwise steps and movement")
    if isinstance(body, Refused):
        return body

    def build() -> Job | Refused:
        try:
            return _Weave(of.step, of.locations, body).job()
        except NotAffineError:
            return Refused("places_are_affine", "an index that is no sum of strides")

    return Offer(build)


class _Weave:
    """Writes one kernel."""

    def __init__(self, step: Step, locations: TensorLocations, body: Body) -> None:
        self.step, self.locations, self.body = step, locations, body
        self.names, self.bindings = pointers_of(step, locations, body.arguments.values())
        self.alignment = locations.alignment(self.bindings)

    def job(self) -> Job:
        turns = [turn for number in range(len(self.body.results)) for turn in self._turns(number)]
        body, tiles, work = in_turn(turns)
        written = tuple(name for name in self.bindings if name.startswith("y"))
        kernel = Kernel("weave", tuple(self.bindings), written, "tile", body, sizes=sizes_in(body))
        return Job(kernel, self.bindings, Tiles(tiles, work))

    def _turns(self, result: int) -> list[Turn]:
        """The pieces of a result, refined until every one reads each operand in one place."""
        shape = self.body.results[result].shape
        pending = [] if 0 in shape else [whole(shape)]
        turns: list[Turn] = []
        while pending:
            if len(pending) + len(turns) > FAMILIES.weave_pieces:
                raise NotAffineError
            piece = pending.pop()
            try:
                turns.append(self._turn(result, piece))
            except RefineError as refined:
                pending += refined.pieces
        return turns

    def _turn(self, result: int, piece: Piece) -> Turn:
        order = self._followed(piece, self.body.results[result])
        written = self.step.results[result]
        target = _along(piece, piece.place, self.locations(written).strides)
        reads = {key: self._read(piece, *key) for key in order if self._is_read(key[0])}
        shape, (to, *strides) = collapsed(piece.sizes, [target[1], *(terms for _, terms in reads.values())])
        tiles = self.locations.target.tiles
        tensors = [Tensor(f"y{result}", written.dtype, to, target[0])]
        for ((value, _), (start, _)), steps in zip(reads.items(), strides, strict=True):
            if value in self.body.views:
                tensors.append(self._tensor(value, start, steps))
        # What a thread has of a row is loaded and stored at once.
        count = product(written.shape)
        is_large = isinstance(count, int) and count >= tiles.woven_elements
        width = vector_width(shape, tensors, self.alignment, tiles) if is_large else 1
        boxes = cut(shape, written.dtype.itemsize * 2, tiles, width)
        exprs: dict[tuple[Value, AxisIndices], Expr] = {}
        for ((value, place), (start, _)), steps in zip(reads.items(), strides, strict=True):
            exprs[value, place] = self._load(value, start, steps, boxes.at)
        for value, place in order:
            if (value, place) not in exprs:
                exprs[value, place] = self._computed(piece, value, place, exprs)
        store = Store(tensors[0], boxes.at, exprs[order[-1]])
        return Turn(boxes, (store,), boxes.work * 2)

    def _followed(self, piece: Piece, result: Value) -> list[tuple[Value, AxisIndices]]:
        """Every value with the place at which it is needed, operands first."""
        done: dict[tuple[Value, AxisIndices], None] = {}
        pending: list[tuple[tuple[Value, AxisIndices], bool]] = [((result, piece.place), False)]
        while pending:
            key, is_ready = pending.pop()
            if key in done:
                continue
            if is_ready or self._is_read(key[0]) or is_number(key[0]):
                done[key] = None
                continue
            pending.append((key, True))
            pending += [(k, False) for k in operands_at(piece, *key)]
        return list(done)

    def _is_read(self, value: Value) -> bool:
        return value in self.body.views or value.op in (ops.iota, ops.extent)

    def _read(self, piece: Piece, value: Value, place: AxisIndices) -> tuple[Size, tuple[Size, ...]]:
        """Where a tensor is read, or what an index is: a start, and a step for each loop."""
        if value.op is ops.extent:
            return value.attrs["size"], (0,) * len(piece.sizes)
        if value.op is ops.iota:
            return _along(piece, place, (1,))
        view = self.body.views[value]
        start, steps = _along(piece, place, view.strides)
        return start + view.offset, steps

    def _load(self, value: Value, start: Size, steps: tuple[Size, ...], at: tuple[Expr, ...]) -> Expr:
        if value in self.body.views:
            return Load(self._tensor(value, start, steps), at)
        offset: Expr = Extent(start)
        for step, index in zip(steps, at, strict=True):
            offset = add(offset, mul(index, Extent(step)))
        return cast_to(offset, value.dtype)

    def _tensor(self, value: Value, start: Size, steps: tuple[Size, ...]) -> Tensor:
        name = self.names[self.body.arguments[self.body.views[value].root]]
        return Tensor(name, value.dtype, steps, start)

    def _computed(
        self, piece: Piece, value: Value, place: AxisIndices, exprs: Mapping[tuple[Value, AxisIndices], Expr]
    ) -> Expr:
        if is_number(value):
            return number(value)
        operands = [exprs[key] for key in operands_at(piece, value, place)]
        return Call(value.op.name, tuple(operands), value.dtype) if value.op.elementwise else operands[0]


def _along(piece: Piece, place: AxisIndices, strides: Sequence[Size]) -> tuple[Size, tuple[Size, ...]]:
    """How far from the first element a piece starts, and how far each loop steps."""
    start: Size = 0
    steps: list[Size] = [0] * len(piece.sizes)
    for index, stride in zip(place, strides, strict=True):
        start = start + index.constant * stride
        for v, c in index.terms:
            steps[v] = steps[v] + c * stride
    return start, tuple(steps)
