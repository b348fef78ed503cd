"""Scatter: updates are written by index into a copy of a tensor or into the tensor itself, in the order of the indices.

Tiles cut the axes that indices do not name. Each tile writes elements of its own, in the order of a single loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dovetail import ops
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bool_, f32, f64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.gather import checked, guarded
from dovetail.kernels.families.policy import FAMILIES
from dovetail.kernels.loops.body import cast_to, overwritten_operands
from dovetail.kernels.loops.ir import (
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Statement,
    Store,
    Tensor,
    When,
    sizes_in,
)
from dovetail.kernels.loops.tiling import Cut, word
from dovetail.kernels.spec import Job, Status, TensorLocations, Tiles
from dovetail.plan.alias import dense_strides

_COMBINED = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def offer_scatter(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a step that writes by index."""
    value, scalars = of.value, of.locations.target.scalars
    _, indices, _ = value.operands
    if not scalars.has_dtype(indices.dtype):
        return Refused("indices_are_compiled", indices.dtype.name)
    if value.attrs["reduction"] != "none" and not scalars.has_dtype(value.dtype):
        return Refused("dtype_is_compiled", value.dtype.name)
    in_place = bool(overwritten_operands(of.step, of.locations))
    kind = _Elements if value.op is ops.scatter_elements else _Rows
    return Offer(lambda: kind(value, of.locations, in_place).job())


class _Scatter(ABC):
    """Writes a kernel: `boxes` cut the axes that no index names, the `picked` ones are loops of their own."""

    def __init__(
        self, value: Value, locations: TensorLocations, in_place: bool, picked: Sequence[int], boxes: Cut
    ) -> None:
        self.value, self.picked, self.boxes = value, tuple(picked), boxes
        self.in_place = in_place
        self.x, self.indices, self.updates = value.operands
        reduction: str = value.attrs["reduction"]
        self.combine = _COMBINED.get(reduction)
        self.dtype = word(value.dtype) if self.combine is None else value.dtype
        # One memory has one name: pointers of a kernel never overlap.
        self.read = Tensor("y" if in_place else "x", self.dtype, locations(self.x).strides)
        self.written = Tensor("y", self.dtype, dense_strides(value.tensor))
        self.by = locations(self.indices).strides
        self.new = locations(self.updates).strides
        self.sizes = [value.shape[a] for a in picked]

    @property
    def free(self) -> list[int]:
        return [a for a in range(self.value.rank) if a not in self.picked]

    def at(self, picked: Sequence[Expr]) -> tuple[Expr, ...]:
        """An element of the result: the named axes at these indices, the others where the loops stand."""
        by_axis = dict(zip(self.free, self.boxes.at, strict=True)) | dict(zip(self.picked, picked, strict=True))
        return tuple(by_axis[a] for a in range(self.value.rank))

    def room(self) -> tuple[Tensor, Size] | None:
        """Wide numbers of the worker's own for all that a tile writes, and their bytes; None where they are too many.

        They are dense in the order of the axes; axes without an index have the extent of the tile.
        """
        steps = dict(zip(self.free, self.boxes.steps, strict=True))
        shape: list[Size] = [steps.get(a, self.value.shape[a]) for a in range(self.value.rank)]
        bytes = product(tuple(shape)) * f64.itemsize
        if not isinstance(bytes, int) or bytes > FAMILIES.scatter_bytes:
            return None
        return Tensor("scratch", f64, dense_strides(f64[tuple(shape)])), bytes

    def job(self) -> Job | Refused:
        """Copy unless the result is in place, update, and where sums are wide, round."""
        sums = self.combine in ("add", "mul") and self.dtype.is_float and self.dtype is not f64
        room = self.room() if sums else None
        if sums and room is None and self.dtype is not f32:
            return Refused(
                "wide_sums_fit_the_workspace", f"more than {FAMILIES.scatter_bytes} bytes of {self.dtype.name}"
            )
        aside = room is not None
        target = room[0] if room is not None else self.written
        inside = [Name(f"p{i}") for i in range(len(self.picked))]
        here = self.at(inside)
        there = self._within(inside) if aside else here
        copied = Store(target, there, cast_to(Load(self.read, here), target.dtype))
        kept = self.in_place and not aside
        body = [*(() if kept else self.over_all([copied])), *self.updated(target, aside)]
        if aside:
            rounded = Store(self.written, here, cast_to(Load(target, there), self.dtype))
            body += self.over_all([rounded])
        whole = guarded((*self.boxes.head(Name("tile")), *body), self.sizes)
        kernel = Kernel(
            "scatter",
            (*(() if self.in_place else ("x",)), "i", "u", "status", "y"),
            ("status", "y"),
            "tile",
            whole,
            scratch=room[1] if room is not None else 0,
            sizes=sizes_in(whole),
        )
        bindings = {"i": self.indices, "u": self.updates, "status": Status(), "y": self.value}
        if not self.in_place:
            bindings["x"] = self.x
        work = product((self.boxes.work, *(self.counts if kept else self.sizes)))
        return Job(kernel, bindings, Tiles(self.boxes.tiles, work))

    def _within(self, picked: Sequence[Expr]) -> tuple[Expr, ...]:
        """The same element in the worker's own room, which begins where the tile does."""
        own = [Name(f"j{a}") if step != 1 else Extent(0) for a, step in enumerate(self.boxes.steps)]
        by_axis: dict[int, Expr] = dict(zip(self.free, own, strict=True)) | dict(zip(self.picked, picked, strict=True))
        return tuple(by_axis[a] for a in range(self.value.rank))

    def over_all(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """A body for every element of the tile."""
        nested = self.boxes.nest(body)
        for i in reversed(range(len(self.picked))):
            nested = (Loop(f"p{i}", Extent(self.sizes[i]), nested),)
        return nested

    def put(self, target: Tensor, aside: bool, picked: Sequence[Expr], update: Expr) -> Statement:
        """One update."""
        at = self._within(picked) if aside else self.at(picked)
        value = cast_to(update, target.dtype)
        if self.combine is not None:
            value = Call(self.combine, (Load(target, at), value), target.dtype)
        return Store(target, at, value)

    @property
    @abstractmethod
    def counts(self) -> tuple[Size, ...]:
        """How many updates a tile has for each of its elements along the axes without an index."""

    @abstractmethod
    def updated(self, target: Tensor, aside: bool) -> tuple[Statement, ...]:
        """All updates of a tile, in the order of the indices."""


class _Elements(_Scatter):
    """Each update has an index of its own along one axis."""

    def __init__(self, value: Value, locations: TensorLocations, in_place: bool) -> None:
        axis = int(value.attrs["axis"]) + value.rank
        free = tuple(size for a, size in enumerate(value.shape) if a != axis)
        last = free[-1:] if axis != value.rank - 1 else ()
        wide = tuple(
            min(size, FAMILIES.scatter_lanes) if isinstance(size, int) else FAMILIES.scatter_lanes for size in last
        )
        if 0 in free:
            wide = (1,) * len(wide)
        super().__init__(value, locations, in_place, [axis], Cut(free, (*(1,) * (len(free) - len(last)), *wide)))

    @property
    def counts(self) -> tuple[Size, ...]:
        return (self.indices.shape[self.picked[0]],)

    def updated(self, target: Tensor, aside: bool) -> tuple[Statement, ...]:
        """In the order of the axis, as the indices of one lane come."""
        (axis,) = self.picked
        at = self.at([Name("n")])
        index = Load(Tensor("i", self.indices.dtype, self.by), at)
        update = Load(Tensor("u", self.dtype, self.new), at)
        inside: tuple[Statement, ...] = (
            *checked("k", index, self.sizes[0]),
            self.put(target, aside, [Name("k")], update),
        )
        # There may be fewer indices than the tensor has lanes.
        short = [
            (self.boxes.at[i], self.indices.shape[a])
            for i, a in enumerate(self.free)
            if self.indices.shape[a] != self.value.shape[a]
        ]
        for place, size in short:
            inside = (When(Call("less", (place, Extent(size)), bool_), inside),)
        return (Loop("n", Extent(self.indices.shape[axis]), self.boxes.nest(inside)),)


class _Rows(_Scatter):
    """Each update is a part of the tensor that a row of indices names."""

    def __init__(self, value: Value, locations: TensorLocations, in_place: bool) -> None:
        depth = value.operands[1].shape[-1]
        assert isinstance(depth, int), "the type rule asks for it"
        free = value.shape[depth:]
        steps: list[int] = []
        left = FAMILIES.scatter_lanes * 16
        for size in reversed(free):
            steps.append(min(size, left) if isinstance(size, int) else left)
            left = max(1, left // max(1, steps[-1]))
        boxes = Cut(free, (1,) * len(free) if 0 in free else tuple(reversed(steps)))
        super().__init__(value, locations, in_place, range(depth), boxes)

    @property
    def counts(self) -> tuple[Size, ...]:
        return self.indices.shape[:-1]

    def updated(self, target: Tensor, aside: bool) -> tuple[Statement, ...]:
        rows = [Name(f"n{i}") for i in range(self.indices.rank - 1)]
        names = [Name(f"k{d}") for d in range(len(self.picked))]
        nested: tuple[Statement, ...] = ()
        for d, name in enumerate(names):
            index = Load(Tensor("i", self.indices.dtype, self.by), (*rows, Extent(d)))
            nested = (*nested, *checked(name.name, index, self.sizes[d]))
        update = Load(Tensor("u", self.dtype, self.new), (*rows, *self.boxes.at))
        nested = (*nested, *self.boxes.nest([self.put(target, aside, names, update)]))
        for i in reversed(range(len(rows))):
            nested = (Loop(f"n{i}", Extent(self.indices.shape[i]), nested),)
        return nested
