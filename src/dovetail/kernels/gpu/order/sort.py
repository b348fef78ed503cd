"""Sort and top-k on a GPU: rows by keys, stable, NaN last. Indices come out of the keys, elements are read by them.

Rows that fit shared memory take one kernel. The few best of long rows win a tournament of chunks, or, where the length
is known only at run time, stay in shared memory while one block goes through its row.
"""

from __future__ import annotations

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bool_, u32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.order.passes import any_of_block, for_each, holds, in_passes, whole
from dovetail.kernels.gpu.order.sort_keys import MOST_ELEMENTS, Key, Keys, chosen, is_wide, ordered_bits
from dovetail.kernels.gpu.order.sort_passes import (
    SortPolicy,
    bitonic,
    chunk_for,
    filled,
    launched,
    shared_chunk,
    sorted_keys,
)
from dovetail.kernels.loops.ir import (
    ZERO,
    Barrier,
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
    indices,
    mul,
)
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step

_BLOCK = ThreadIndex("block")


def offer_sort(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernels of a step that sorts, or finds the best of each row."""
    (x,) = of.value.operands
    if not of.locations.target.scalars.has_dtype(x.dtype):
        return Refused("dtype_is_compiled", x.dtype.name)
    length = x.shape[int(of.value.attrs["axis"])]
    if isinstance(length, int) and length >= MOST_ELEMENTS:
        return Refused("places_have_32_bits", str(length), f"fewer than {MOST_ELEMENTS}")
    sort = _Sort(of.step, x, of.locations, SortPolicy.on(of.device))
    if sort.by_place and not sort.is_few:
        return Refused("unordered_results_fit_a_chunk", str(sort.kept), f"at most {sort.most_kept}")
    return Offer(sort.job)


@dataclass(frozen=True, slots=True)
class _Sort:
    step: Step
    x: Value
    locations: TensorLocations
    policy: SortPolicy

    @property
    def axis(self) -> int:
        return int(self.step.value.attrs["axis"]) + self.x.rank

    @property
    def length(self) -> Size:
        return self.x.shape[self.axis]

    @property
    def rows(self) -> tuple[Size, ...]:
        return tuple(size for a, size in enumerate(self.x.shape) if a != self.axis)

    @property
    def kept(self) -> Size:
        """Elements of a row that are given."""
        value = self.step.value
        return self.length if value.op is ops.sort else value.attrs["k"]

    @property
    def by_place(self) -> bool:
        """Whether the elements that are given come as they stand in the row."""
        return self.step.value.op is ops.top_k and not self.step.value.attrs["in_order"]

    @property
    def most_kept(self) -> int:
        """Elements that fit a chunk twice, so that every round of a tournament has half as many."""
        return self.policy.chunk // 2

    @property
    def is_few(self) -> bool:
        fits = isinstance(self.length, int) and self.length <= self.policy.chunk
        return isinstance(self.kept, int) and (fits or self.kept <= self.most_kept)

    def place(self, row: Expr, at: Expr) -> tuple[Expr, ...]:
        """The index of the element at a place of a row."""
        front = indices(self.rows, row)
        return (*front[: self.axis], at, *front[self.axis :])

    def read(self, row: Expr, at: Expr) -> Load:
        return Load(Tensor("x", self.x.dtype, self.locations(self.x).strides), self.place(row, at))

    def take(self, row: Expr, at: Expr) -> Key:
        value = self.step.value
        descending: bool = value.attrs["descending" if value.op is ops.sort else "largest"]
        return self.keys("a", 0).key(ordered_bits(self.read(row, at), descending), at)

    def keys(self, name: str, row: Size) -> Keys:
        return Keys(name, is_wide(self.x.dtype), row, product(self.rows) * row)

    def results_stored(self, row: Expr, at: Expr, key: Key) -> tuple[Statement, ...]:
        """Store one element and its index."""
        values, places = self.step.results
        y = Tensor("y", values.dtype, self.locations(values).strides)
        z = Tensor("z", places.dtype, self.locations(places).strides)
        return (
            Set("from", key.place),
            Store(y, self.place(row, at), self.read(row, Name("from"))),
            Store(z, self.place(row, at), Name("from")),
        )

    def job(self) -> Job:
        bindings = {"x": self.x, **dict(zip("yz", self.step.results, strict=True))}
        length, kept = self.length, self.kept
        if kept == 0:
            return in_passes([for_each("sort", (0,), ("x", "y", "z"), ("y", "z"), ())], bindings, {})
        if self.is_few and isinstance(kept, int):
            if not isinstance(length, int):
                return in_passes([self.streamed(kept)], bindings, {})
            kernels, workspace = self.tournament(length, kept)
            return in_passes(kernels, bindings, workspace)
        rows = product(self.rows)
        keys = self.keys("a", length), self.keys("b", length)
        passes, source = sorted_keys(self.take, ("x",), keys, rows, length, self.policy)
        stores = self.results_stored(Name("j0"), Name("j1"), source.load(Name("j0"), Name("j1")))
        last = for_each("sort_results", (rows, kept), ("x", *source.workspace, "y", "z"), ("y", "z"), stores)
        return in_passes([*passes, last], bindings, {**keys[0].workspace, **keys[1].workspace})

    def tournament(self, length: int, kept: int) -> tuple[list[tuple[Kernel, Size]], dict[str, Size]]:
        """Rounds in which every chunk keeps its best, until one chunk has them all."""
        rows = product(self.rows)
        passes: list[tuple[Kernel, Size]] = []
        workspace: dict[str, Size] = {}
        take, reads = self.take, ("x",)
        row, part = Name("row"), Name("part")
        while length > self.policy.chunk:
            chunk = self.policy.chunk
            chunks = -(-length // chunk)
            target = self.keys("ab"[len(passes) % 2], chunks * kept)
            shared = shared_chunk(target, chunk)
            put = target.store(row, add(mul(part, Extent(kept)), Name("e")), shared.load(ZERO, Name("e")))
            body = (
                *shared.allocated(),
                Set("row", whole("div", _BLOCK, Extent(chunks))),
                Set("part", whole("rem", _BLOCK, Extent(chunks))),
                *filled(shared, chunk, take, row, mul(part, Extent(chunk)), length),
                *bitonic(shared, chunk),
                Loop("e", Extent(kept), put, kind="thread"),
            )
            passes.append(launched("top_k_round", reads, tuple(target.workspace), body, rows * chunks, chunk // 2))
            # The first two rounds have the longest arrays of each name.
            workspace = {**target.workspace, **workspace}
            take, reads, length = target.load, tuple(target.workspace), chunks * kept
        chunk = chunk_for(length, self.policy)
        shared = shared_chunk(self.keys("a", 0), chunk)
        body = (
            *shared.allocated(),
            Set("row", _BLOCK),
            *filled(shared, chunk, take, row, ZERO, length),
            *bitonic(shared, chunk),
            *self.results(shared, chunk, kept),
        )
        name = "sort" if self.step.value.op is ops.sort else "top_k"
        return [*passes, launched(name, ("x", *reads), ("y", "z"), body, rows, chunk // 2)], workspace

    def results(self, shared: Keys, chunk: int, kept: int) -> tuple[Statement, ...]:
        """Store the first of a sorted chunk, by their order or by their places."""
        row, e = Name("row"), Name("e")
        again: tuple[Statement, ...] = ()
        if self.by_place:
            key = shared.load(ZERO, e)
            placed = chosen(holds("less", e, Extent(kept)), shared.key(Number(0, u32), key.place), shared.last)
            again = (
                Loop("e", Extent(chunk), shared.store(ZERO, e, placed), kind="thread"),
                Barrier(),
                *bitonic(shared, chunk),
            )
        return (*again, Loop("e", Extent(kept), self.results_stored(row, e, shared.load(ZERO, e)), kind="thread"))

    def streamed(self, kept: int) -> tuple[Kernel, Size]:
        """A block goes through a row of any length: a chunk holds the best so far and as many new keys as fit."""
        chunk = chunk_for(4 * kept, self.policy)
        fresh = chunk - kept
        shared = shared_chunk(self.keys("a", 0), chunk)
        row, e, length = Name("row"), Name("e"), self.length
        at = add(Name("first"), whole("sub", e, Extent(kept)))
        there = holds("less", at, Extent(length))
        inside = whole("maximum", ZERO, whole("minimum", at, Extent(length - 1)))
        sets, key = chosen(there, self.take(row, inside), shared.last).kept("new")
        hit = Call("bit_or", (Name("hit", bool_), key.before(shared.load(ZERO, Extent(kept - 1)))), bool_)
        load = Loop(
            "n",
            Extent(fresh),
            (Set("e", add(Name("n"), Extent(kept))), *sets, *shared.store(ZERO, e, key), Set("hit", hit)),
            kind="thread",
        )
        turn = (
            Set("first", mul(Name("c"), Extent(fresh))),
            Set("hit", Number(False, bool_)),
            load,
            *any_of_block("hit", chunk // 2, self.policy.lanes),
            When(Name("hit", bool_), bitonic(shared, chunk)),
        )
        body = (
            *shared.allocated(),
            Set("row", _BLOCK),
            Loop("e", Extent(kept), shared.store(ZERO, Name("e"), shared.last), kind="thread"),
            Barrier(),
            Loop("c", whole("div", Extent(length + (fresh - 1)), Extent(fresh)), turn),
            *self.results(shared, chunk, kept),
        )
        return launched("top_k_rows", ("x",), ("y", "z"), body, product(self.rows), chunk // 2)


__all__ = ["offer_sort"]
