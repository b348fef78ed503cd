"""Scatter on a GPU: every update has a thread, and of several updates of one element all count, in one order.

- Replacing: the last update of an element wins. Each update looks whether a later one goes to the same place. Where
  there are many, a block does so for all that have one index, such as the row of a token in each head of a cache; if
  they have none in common, each leaves its number at its place by an atomic maximum.
- Integers of 32 or 64 bits are added and compared by atomics: their order does not matter.
- Floats, products and narrow integers: updates are sorted by their places, and one thread combines all updates of an
  element in their order, in the dtype that the meaning has. Runs repeat to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, bool_, f64, u32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.families.gather import checked, guarded
from dovetail.kernels.gpu.order.passes import (
    THREADS,
    any_of_block,
    choose,
    flat_index,
    for_each,
    holds,
    in_passes,
    whole,
)
from dovetail.kernels.gpu.order.sort_keys import MOST_ELEMENTS, Keys
from dovetail.kernels.gpu.order.sort_passes import SortPolicy, launched, sorted_keys
from dovetail.kernels.loops.body import cast_to, overwritten_operands
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    AtomicUpdate,
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Loop,
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
)
from dovetail.kernels.loops.tiling import vector_width, word
from dovetail.kernels.spec import Job, Status, TensorLocations
from dovetail.plan.alias import is_dense

_COMBINED: dict[str, Literal["add", "mul", "maximum", "minimum"]] = {
    "add": "add",
    "mul": "mul",
    "max": "maximum",
    "min": "minimum",
}
_HALVINGS = 32
"""Steps of a bisection of all updates."""
_FEW = 64
"""Updates up to which each looks through all later ones."""
_LEAST_ROW = 32
"""Updates with one index from which on a block has them."""
_MOST_ROWS = 8192
"""Indices up to which each block looks through all of them, 256 at a time."""


def offer_scatter(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernels of a step that writes by index."""
    value, scalars = of.value, of.locations.target.scalars
    _, by, _ = value.operands
    if not scalars.has_dtype(by.dtype):
        return Refused("indices_are_compiled", by.dtype.name)
    if value.attrs["reduction"] != "none" and not scalars.has_dtype(value.dtype):
        return Refused("dtype_is_compiled", value.dtype.name)
    scatter = _Scatter(value, of.locations, bool(overwritten_operands(of.step, of.locations)), SortPolicy.on(of.device))
    counts = (product(scatter.updates), product(scatter.slots))
    if any(isinstance(n, int) and n >= MOST_ELEMENTS for n in counts):
        return Refused("places_have_32_bits", str(max(n for n in counts if isinstance(n, int))), str(MOST_ELEMENTS))
    return Offer(scatter.job)


@dataclass(frozen=True, slots=True)
class _Scatter:
    """Updates are numbered; each goes to a slot: an element, or a part of the tensor whose axes are `free`."""

    value: Value
    locations: TensorLocations
    in_place: bool
    policy: SortPolicy

    @property
    def by_element(self) -> bool:
        return self.value.op is ops.scatter_elements

    @property
    def depth(self) -> int:
        """Axes that a slot has an index for."""
        size = self.value.rank if self.by_element else self.value.operands[1].shape[-1]
        assert isinstance(size, int), "the type rule asks for it"
        return size

    @property
    def updates(self) -> tuple[Size, ...]:
        """The shape of all updates, each of one slot."""
        shape = self.value.operands[1].shape
        return shape if self.by_element else shape[:-1]

    @property
    def slots(self) -> tuple[Size, ...]:
        return self.value.shape[: self.depth]

    @property
    def free(self) -> tuple[Size, ...]:
        return self.value.shape[self.depth :]

    @property
    def picked(self) -> tuple[Size, ...]:
        """Sizes of the axes that indices are for."""
        return (self.value.shape[int(self.value.attrs["axis"])],) if self.by_element else self.slots

    @property
    def combine(self) -> Literal["add", "mul", "maximum", "minimum"] | None:
        return _COMBINED.get(self.value.attrs["reduction"])

    @property
    def dtype(self) -> DType:
        """What is loaded and stored: bits, where nothing is combined."""
        return word(self.value.dtype) if self.combine is None else self.value.dtype

    @property
    def result(self) -> Tensor:
        return Tensor("y", self.dtype, self.locations(self.value).strides)

    def update(self, at: Sequence[Expr], free: Sequence[Expr]) -> Expr:
        return Load(Tensor("u", self.dtype, self.locations(self.value.operands[2]).strides), (*at, *free))

    def slot(self, at: Sequence[Expr], name: str = "k") -> tuple[tuple[Statement, ...], tuple[Expr, ...]]:
        """Statements that check the indices of an update, and the index of its slot along each axis."""
        by = self.value.operands[1]
        tensor = Tensor("i", by.dtype, self.locations(by).strides)
        if self.by_element:
            axis = int(self.value.attrs["axis"]) + self.value.rank
            index: list[Expr] = list(at)
            index[axis] = Name(name)
            return checked(name, Load(tensor, tuple(at)), self.value.shape[axis]), tuple(index)
        sets: list[Statement] = []
        for d in range(self.depth):
            sets += checked(f"{name}{d}", Load(tensor, (*at, Extent(d))), self.value.shape[d])
        return tuple(sets), tuple(Name(f"{name}{d}") for d in range(self.depth))

    def kernel(
        self, name: str, shape: tuple[Size, ...], pointers: Sequence[str], body: Sequence[Statement], *, checks: bool
    ) -> tuple[Kernel, Size]:
        """A kernel over a shape; one that reads indices tells the status of those that are out of range."""
        if not checks:
            return for_each(name, shape, pointers, pointers[-1:], body)
        guards = guarded(body, self.picked)
        return for_each(name, shape, (*pointers[:-1], "status", pointers[-1]), ("status", pointers[-1]), guards)

    def job(self) -> Job:
        x, by, updates = self.value.operands
        bindings = {"i": by, "u": updates, "y": self.value, "status": Status()}
        first: list[tuple[Kernel, Size]] = []
        if not self.in_place:
            bindings["x"] = x
            first.append(self.copied())
        if 0 in self.updates:
            kernels, workspace = [for_each("scatter", (0,), ("y",), ("y",), ())], dict[str, Size]()
        elif self.combine is None:
            kernels, workspace = self.replaced()
        elif self.combine != "mul" and self.dtype.is_integer and self.dtype.bits >= 32:
            kernels, workspace = [self.atomic(self.combine)], {}
        else:
            kernels, workspace = self.by_slot()
        return in_passes([*first, *kernels], bindings, workspace)

    def copied(self) -> tuple[Kernel, Size]:
        """The tensor, before anything is updated."""
        x, tiles = self.value.operands[0], self.locations.target.tiles
        strides = [self.locations(v).strides for v in (self.value, x)]
        shape, (to, of) = collapsed(self.value.shape, strides)
        bits = word(self.value.dtype)
        target, source = Tensor("y", bits, to), Tensor("x", bits, of)
        width = vector_width(shape, [target, source], self.locations.alignment({"x": x, "y": self.value}), tiles)
        at = tuple(Name(f"j{a}") for a in range(len(shape)))
        return for_each("scatter_copy", shape, ("x", "y"), ("y",), (Store(target, at, Load(source, at)),), width)

    @property
    def names(self) -> tuple[list[Name], list[Name]]:
        """The indices of an update and inside of its part, in a kernel over both."""
        every = [Name(f"j{a}") for a in range(len(self.updates) + len(self.free))]
        return every[: len(self.updates)], every[len(self.updates) :]

    def atomic(self, op: Literal["add", "maximum", "minimum"]) -> tuple[Kernel, Size]:
        at, free = self.names
        sets, slot = self.slot(at)
        put = AtomicUpdate(self.result, (*slot, *free), op, self.update(at, free))
        return self.kernel("scatter_atomic", (*self.updates, *self.free), ("i", "u", "y"), (*sets, put), checks=True)

    def replaced(self) -> tuple[list[tuple[Kernel, Size]], dict[str, Size]]:
        """The last update of each slot stays."""
        at, free = self.names
        sets, slot = self.slot(at)
        own = Set("own", flat_index(self.updates, at))
        whole_shape = (*self.updates, *self.free)
        put = Store(self.result, (*slot, *free), self.update(at, free))
        if self.by_element and self.updates[int(self.value.attrs["axis"])] == 1:
            # Updates differ in their other axes: each has a slot to itself, as one row of a cache has.
            return [self.kernel("scatter", whole_shape, ("i", "u", "y"), (*sets, put), checks=True)], {}
        count = product(self.updates)
        if isinstance(count, int) and count <= _FEW:
            after = indices(self.updates, add(add(Name("own"), ONE), Name("m")))
            others, other = self.slot(after, "o")
            differs = holds("not_equal", flat_index(self.slots, other), Name("slot"))
            last = Name("last", bool_)
            body = (
                *sets,
                own,
                Set("slot", flat_index(self.slots, slot)),
                Set("last", Number(True, bool_)),
                Loop(
                    "m",
                    whole("sub", Extent(count - 1), Name("own")),
                    (*others, Set("last", Call("bit_and", (last, differs), bool_))),
                ),
                When(last, (put,)),
            )
            return [self.kernel("scatter", whole_shape, ("i", "u", "y"), body, checks=True)], {}
        if self.by_element and self._has_rows():
            return [self.rows()], {}
        winner = Tensor("winner", u32, (u32.itemsize,))
        here = (flat_index(self.slots, slot),)
        number = cast_to(add(Name("own"), ONE), u32)
        wins = When(holds("equal", Load(winner, here), number), (put,))
        reset = (*sets, Store(winner, here, Number(0, u32)))
        vote = (*sets, own, AtomicUpdate(winner, here, "maximum", number))
        kernels = [
            self.kernel("scatter_reset", self.updates, ("i", "winner"), reset, checks=True),
            self.kernel("scatter_vote", self.updates, ("i", "winner"), vote, checks=True),
            self.kernel("scatter_last", whole_shape, ("i", "u", "winner", "y"), (*sets, own, wins), checks=True),
        ]
        return kernels, {"winner": product(self.slots) * u32.itemsize}

    @property
    def shared_axes(self) -> tuple[int, ...]:
        """Axes other than that of the indices along which updates have the same index: it has one address there."""
        axis, strides = int(self.value.attrs["axis"]) + self.value.rank, self.locations(self.value.operands[1]).strides
        return tuple(a for a, step in enumerate(strides) if step == 0 and a != axis and self.updates[a] != 1)

    def _has_rows(self) -> bool:
        """Whether an index has enough updates for a block, and there are so few that all can be looked through."""
        row, others = (
            product(tuple([self.updates[a] for a in self.shared_axes])),
            self.updates[int(self.value.attrs["axis"])],
        )
        return isinstance(row, int) and row >= _LEAST_ROW and isinstance(others, int) and others <= _MOST_ROWS

    def rows(self) -> tuple[Kernel, Size]:
        """A block for each index: its threads look through the others of the axis, and store all that have this one."""
        axis = int(self.value.attrs["axis"]) + self.value.rank
        inner = self.shared_axes
        outer = [a for a in range(self.value.rank) if a not in inner]
        at = [Name(f"j{a}") for a in range(self.value.rank)]
        size = {a: self.updates[a] for a in range(self.value.rank)}
        blocks = product(tuple([size[a] for a in outer]))
        places = zip(outer, indices(tuple(size[a] for a in outer), ThreadIndex("block")), strict=True)
        first: list[Expr] = [ZERO if a in inner else at[a] for a in range(self.value.rank)]
        sets, slot = self.slot(first)
        others, other = self.slot([Name("n") if a == axis else index for a, index in enumerate(first)], "o")
        is_later = Call("bit_and", (holds("less", at[axis], Name("n")), holds("equal", other[axis], slot[axis])), bool_)
        hit = Name("hit", bool_)
        look = Loop(
            "n", Extent(size[axis]), (*others, Set("hit", Call("bit_or", (hit, is_later), bool_))), kind="thread"
        )
        shape = tuple(size[a] for a in inner)
        width = self._neighbours()
        element = zip(inner, indices(shape, mul(Name("e"), Extent(width))), strict=True)
        to = tuple([Name("k") if a == axis else index for a, index in enumerate(at)])
        put: tuple[Statement, ...] = (self._put(to, self.update(at, ())),)
        if width > 1:
            last = at[-1].name
            step = Set(last, add(Name("column"), Name("v")))
            put = (Set("column", at[-1]), Loop("v", Extent(width), (step, *put), kind="unrolled"))
        put = (*(Set(at[a].name, index) for a, index in element), *put)
        body = (
            *(Set(at[a].name, index) for a, index in places),
            *sets,
            Set("hit", Number(False, bool_)),
            look,
            *any_of_block("hit", THREADS, self.policy.lanes),
            When(
                Call("bit_not", (hit,), bool_),
                (Loop("e", Extent(product(shape) // width), put, kind="thread"),),
            ),
        )
        guards = guarded(body, self.picked)
        return launched("scatter_rows", ("i", "u"), ("status", "y"), guards, blocks, THREADS)

    def _put(self, to: tuple[Expr, ...], value: Expr) -> Store:
        """Store an element. Rows of a dense result are numbered: strides of a cache whose room is a symbol would not
        tell that vectors are aligned."""
        result, row = self.result, self.value.shape[-1]
        if not isinstance(row, int) or not is_dense(self.value.tensor, result.strides):
            return Store(result, to, value)
        rows = replace(result, strides=(row * self.dtype.itemsize, self.dtype.itemsize))
        return Store(rows, (flat_index(self.value.shape[:-1], to[:-1]), to[-1]), value)

    def _neighbours(self) -> int:
        """Updates along the last axis that a thread stores at once."""
        updates = self.value.operands[2]
        if self.value.rank - 1 not in self.shared_axes or not isinstance(self.updates[-1], int):
            return 1
        tensors = [self.result, Tensor("u", self.dtype, self.locations(updates).strides)]
        alignment = self.locations.alignment({"u": updates, "y": self.value})
        return vector_width(self.updates, tensors, alignment, self.locations.target.tiles)

    def by_slot(self) -> tuple[list[tuple[Kernel, Size]], dict[str, Size]]:
        """Updates are sorted by their slots; one thread combines all of a slot, in their order."""
        at, _ = self.names
        sets, slot = self.slot(at)
        count = product(self.updates)
        slots = Tensor("slots", u32, (u32.itemsize,))
        put = Store(slots, (flat_index(self.updates, at),), cast_to(flat_index(self.slots, slot), u32))
        first = self.kernel("scatter_slots", self.updates, ("i", "slots"), (*sets, put), checks=True)
        keys = Keys("a", False, count, count), Keys("b", False, count, count)
        kernels, source = sorted_keys(
            lambda row, n: keys[0].key(Load(slots, (n,)), n), ("slots",), keys, 1, count, self.policy
        )
        free = [Name(f"j{a + 1}") for a in range(len(self.free))]
        combined = self._combined(source, Name("j0"), free, count)
        pointers = ("u", *source.workspace, "y")
        last = self.kernel("scatter_slot", (count, *self.free), pointers, combined, checks=False)
        workspace = {"slots": count * u32.itemsize, **keys[0].workspace, **keys[1].workspace}
        return [first, *kernels, last], workspace

    def _combined(self, keys: Keys, at: Expr, free: Sequence[Expr], count: Size) -> tuple[Statement, ...]:
        """Combine all updates of a slot where a thread has the first of them."""
        wide = f64 if self.dtype.is_float else self.dtype
        assert self.combine is not None, "updates are combined here"
        slot, lo, hi, half = Name("slot"), Name("lo"), Name("hi"), Name("half")
        before = keys.load(ZERO, whole("maximum", ZERO, whole("sub", at, ONE))).high
        begins = Call("bit_or", (holds("equal", at, ZERO), holds("not_equal", before, slot)), bool_)
        same = Name("same", bool_)
        probe = (
            Set("half", whole("div", add(lo, hi), Extent(2))),
            Set("same", holds("equal", keys.load(ZERO, half).high, slot)),
            Set("lo", choose(same, add(half, ONE), lo)),
            Set("hi", choose(same, hi, half)),
        )
        place = (*indices(self.slots, slot), *free)
        number = keys.load(ZERO, add(at, Name("q"))).place
        one = cast_to(self.update(indices(self.updates, Name("n")), free), wide)
        total = Name("total", wide)
        take = (Set("n", number), Set("total", Call(self.combine, (total, one), wide)))
        body = (
            Set("lo", add(at, ONE)),
            Set("hi", Extent(count)),
            Loop("probe", Extent(_HALVINGS), (When(holds("less", lo, hi), probe),)),
            Set("total", cast_to(Load(self.result, place), wide)),
            Loop("q", whole("sub", lo, at), take),
            Store(self.result, place, cast_to(total, self.dtype)),
        )
        return Set("slot", keys.load(ZERO, at).high), When(begins, body)


__all__ = ["offer_scatter"]
