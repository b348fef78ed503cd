"""Sort: lanes of a tensor in order, or the best of each, with the indices that they came from.

A lane is merged from runs, each twice as long as the last, between two rooms of the worker's own; equal elements keep
their order. A few of many are found by one pass that keeps the best in order.
"""

from __future__ import annotations

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, bool_, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.policy import FAMILIES
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    add,
    indices,
    minimum,
    mul,
    sizes_in,
)
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.alias import dense_strides
from dovetail.plan.plan import Step


@dataclass(frozen=True, slots=True)
class SortScratch:
    """Elements and their indices, in the worker's scratch."""

    keys: Tensor
    indices: Tensor


def offer_sort(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a step that sorts."""
    (x,) = of.value.operands
    if not of.locations.target.scalars.has_dtype(x.dtype):
        return Refused("dtype_is_compiled", x.dtype.name)
    return Offer(lambda: _job(of.step, x, of.locations))


def _job(step: Step, x: Value, locations: TensorLocations) -> Job:
    value = step.value
    axis = int(value.attrs["axis"]) + x.rank
    length = x.shape[axis]
    kept: Size = length if value.op is ops.sort else value.attrs["k"]
    lanes = tuple(size for a, size in enumerate(x.shape) if a != axis)
    descending: bool = value.attrs["descending" if value.op is ops.sort else "largest"]
    in_place = value.op is ops.top_k and not value.attrs["in_order"]
    is_few = value.op is ops.top_k and isinstance(kept, int) and kept <= FAMILIES.top_k_few
    room: Size = kept if is_few else length
    order = _Order(x.dtype, room, descending)
    at = indices(lanes, Name("tile"))
    head = tuple(Set(f"r{i}", index) for i, index in enumerate(at))
    lane: list[Expr] = [Name(f"r{i}") for i in range(len(lanes))]

    def place(index: Expr) -> tuple[Expr, ...]:
        return (*lane[:axis], index, *lane[axis:])

    read = Tensor("x", x.dtype, locations(x).strides)
    if is_few and isinstance(kept, int):
        body = order.best(kept, length, Load(read, place(Name("e"))))
    else:
        taken = Store(order.first.keys, (Name("e"),), Load(read, place(Name("e"))))
        counted = Store(order.first.indices, (Name("e"),), Name("e"))
        body = (Loop("e", Extent(length), (taken, counted)), *order.sorted())
    if in_place:
        body = (*body, *_Order(x.dtype, room, descending=False, by_place=True).sorted(kept))
    stores: list[Statement] = []
    for name, result, source in zip("yz", step.results, (order.first.keys, order.first.indices), strict=True):
        target = Tensor(name, result.dtype, dense_strides(result.tensor))
        stores.append(Store(target, place(Name("o")), Load(source, (Name("o"),))))
    whole = (*head, *body, Loop("o", Extent(kept), tuple(stores)))
    kernel = Kernel("sort", ("x", "y", "z"), ("y", "z"), "tile", whole, scratch=order.scratch, sizes=sizes_in(whole))
    results = dict(zip("yz", step.results, strict=True))
    work = length * (length.bit_length() if isinstance(length, int) else 16) if kept == length else length * 2
    return Job(kernel, {"x": x, **results}, Tiles(0 if kept == 0 else product(lanes), work))


class _Order:
    """Which of two elements goes first, and how a lane is brought into that order."""

    def __init__(self, dtype: DType, length: Size, descending: bool, *, by_place: bool = False) -> None:
        self.length, self.descending, self.by_place = length, descending, by_place
        step, item = (i64.itemsize,), (dtype.itemsize,)
        keys = length * (2 * i64.itemsize)
        self.first = SortScratch(Tensor("scratch", dtype, item, keys), Tensor("scratch", i64, step))
        second = keys + length * dtype.itemsize
        self.second = SortScratch(
            Tensor("scratch", dtype, item, second), Tensor("scratch", i64, step, length * i64.itemsize)
        )
        self.scratch = second + length * dtype.itemsize

    def before(self, x: Expr, y: Expr) -> Expr:
        """Whether x goes before y for sure; NaN counts as larger than every number."""
        precedes = Call("greater" if self.descending else "less", (x, y), bool_)
        if not x.dtype.is_float:
            return precedes
        large, other = (x, y) if self.descending else (y, x)
        odd = Call("bit_and", (_is_nan(large), _not(_is_nan(other))), bool_)
        return Call("bit_or", (precedes, odd), bool_)

    def sorted(self, count: Size | None = None) -> tuple[Statement, ...]:
        """The first room in order, or some of its first elements: two steps at a time, there and back."""
        length = self.length if count is None else count
        width, double = Name("width"), mul(Name("width"), Extent(2))
        there = (*self._merged(self.first, self.second, length), Set("width", double))
        back = (*self._merged(self.second, self.first, length), Set("width", double))
        turns = (length.bit_length() + 1) // 2 if isinstance(length, int) else 20
        more = Call("less", (width, Extent(length)), bool_)
        return Set("width", ONE), Loop("turn", Extent(turns), (When(more, (*there, *back)),))

    def _merged(self, source: SortScratch, target: SortScratch, length: Size) -> tuple[Statement, ...]:
        """Neighbouring runs of `width` elements become one of twice as many."""
        width, lo, mid, hi = (Name(n) for n in ("width", "lo", "mid", "hi"))
        double = mul(width, Extent(2))
        runs = Call("div", (add(Extent(length - 1), double), double), i64)
        left, right = Name("left"), Name("right")
        # An index that is used up stays where it is: what it reads is not taken.
        here = minimum(left, Call("sub", (mid, ONE), i64))
        there = minimum(right, Extent(length - 1))
        a, b = Load(source.keys, (Name("here"),)), Load(source.keys, (Name("there"),))
        if self.by_place:
            a, b = Load(source.indices, (Name("here"),)), Load(source.indices, (Name("there"),))
        used_up = Call("greater_equal", (left, mid), bool_)
        takes = Call(
            "bit_and",
            (Call("less", (right, hi), bool_), Call("bit_or", (used_up, self.before(b, a)), bool_)),
            bool_,
        )
        taken = Name("taken", bool_)
        chosen = Name("chosen")
        put = add(lo, Name("s"))
        step: tuple[Statement, ...] = (
            Set("here", here),
            Set("there", there),
            Set("taken", takes),
            Set("chosen", Call("where", (taken, Name("there"), Name("here")), i64)),
            Store(target.keys, (put,), Load(source.keys, (chosen,))),
            Store(target.indices, (put,), Load(source.indices, (chosen,))),
            Set("right", add(right, Call("cast", (taken,), i64))),
            Set("left", add(left, Call("cast", (_not(taken),), i64))),
        )
        start = mul(Name("run"), double)
        run: tuple[Statement, ...] = (
            Set("lo", start),
            Set("mid", minimum(add(lo, width), Extent(length))),
            Set("hi", minimum(add(lo, double), Extent(length))),
            Set("left", lo),
            Set("right", mid),
            Loop("s", Call("sub", (hi, lo), i64), step),
        )
        return (Loop("run", runs, run),)

    def best(self, count: int, length: Size, element: Expr) -> tuple[Statement, ...]:
        """The first `count` in order: each element that goes before the last one kept is put in its place."""
        if count == 0:
            return ()
        room = self.first
        x, have, at, slot = Name("x", element.dtype), Name("have"), Name("last"), Name("slot")
        last = Load(room.keys, (Extent(count - 1),))
        lower = Call("sub", (slot, ONE), i64)
        is_next = Call("equal", (lower, Call("sub", (Call("sub", (at, ONE), i64), Name("t")), i64)), bool_)
        moved: tuple[Statement, ...] = (
            Set("lower", Call("where", (is_next, lower, ZERO), i64)),
            When(
                Call("bit_and", (is_next, self.before(x, Load(room.keys, (Name("lower"),)))), bool_),
                (
                    Store(room.keys, (slot,), Load(room.keys, (Name("lower"),))),
                    Store(room.indices, (slot,), Load(room.indices, (Name("lower"),))),
                    Set("slot", Name("lower")),
                ),
            ),
        )
        put: tuple[Statement, ...] = (
            Set("last", minimum(have, Extent(count - 1))),
            Set("slot", at),
            Loop("t", at, moved),
            Store(room.keys, (slot,), x),
            Store(room.indices, (slot,), Name("e")),
            Set("have", minimum(add(have, ONE), Extent(count))),
        )
        room_left = Call("less", (have, Extent(count)), bool_)
        better = Call("bit_or", (room_left, self.before(x, last)), bool_)
        return Set("have", ZERO), Loop("e", Extent(length), (Set("x", element), When(better, put)))


def _is_nan(x: Expr) -> Expr:
    return Call("is_nan", (x,), bool_)


def _not(x: Expr) -> Expr:
    return Call("bit_not", (x,), bool_)


__all__ = ["offer_sort"]
