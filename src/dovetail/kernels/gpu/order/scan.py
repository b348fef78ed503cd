"""Running sums, products and extremes along an axis: scans.

A warp scans a neighbour for each lane by shuffles, a block scans the totals of its warps in shared memory, and a loop
carries the total along the row. Short rows go to one warp each. Few long rows are cut into parts: a first kernel
reduces each part, a second one scans every part from the total of those before it. The order of a scan is one and the
same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Op, Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.families.reduce import offer_reduce
from dovetail.kernels.gpu.order.passes import choose, holds, in_passes, whole
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.folds import Fold, fold_of
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllReduce,
    Barrier,
    Call,
    Expr,
    Extent,
    FromLane,
    Kernel,
    Launch,
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
    minimum,
    mul,
    sizes_in,
)
from dovetail.kernels.spec import Job, TensorLocations

RUNNING: dict[Op, str] = {ops.cum_sum: "sum", ops.cum_prod: "prod", ops.cum_max: "max", ops.cum_min: "min"}
_GROUPS = 8
"""Groups of neighbours, one for each lane, that a warp scans between two barriers; their elements stay in registers."""
_WARPS = 8
"""Warps of a block."""
_SHORT = 1024
"""Rows up to this length go to one warp each."""
_SERIAL = 32
"""Rows up to this length go to one thread each."""
_PART = 8192
"""Elements that a part of a long row has at least."""
_Load: TypeAlias = Callable[[Expr], Expr]
_Store: TypeAlias = Callable[[Expr, Expr], Statement]
_LANE, _WARP = ThreadIndex("lane"), ThreadIndex("warp")


def offer_scan(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernels of a running reduction whose rows several threads share."""
    value = of.value
    x = value.operands[0]
    if not of.locations.target.scalars.has_dtype(x.dtype):
        return Refused("dtype_is_compiled", x.dtype.name)
    axis = int(value.attrs["axis"]) + x.rank
    length, rows = x.shape[axis], product(tuple(size for a, size in enumerate(x.shape) if a != axis))
    device = of.device
    enough = device.multiprocessors * 8 * device.warp
    if isinstance(length, int) and length <= _SERIAL:
        return Refused("rows_are_long", f"{length} elements", f"more than {_SERIAL}")
    if axis != x.rank - 1 and isinstance(rows, int) and rows >= enough:
        return Refused("rows_are_few", f"{rows} rows, adjacent in memory", f"fewer than {enough}")
    return Offer(lambda: _job(value, axis, of.locations, device))


def offer_serial_scan(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of a running reduction with a thread for each row, where rows are short or many."""
    better = offer_scan(of)
    if isinstance(better, Offer):
        return Refused("rows_are_short_or_many", str(of.value.operands[0].type))
    return offer_reduce(of)


def _job(value: Value, axis: int, locations: TensorLocations, device: GpuDevice) -> Job:
    x = value.operands[0]
    rows = tuple(size for a, size in enumerate(x.shape) if a != axis)
    length, count = x.shape[axis], product(rows)
    reversed_: bool = value.attrs["reverse"]

    def place(index: Expr) -> tuple[Expr, ...]:
        at = whole("sub", Extent(length - 1), index) if reversed_ else index
        row = [Name(f"r{a}") for a in range(len(rows))]
        return (*row[:axis], at, *row[axis:])

    lanes = device.warp
    scan = _Scan(fold_of(RUNNING[value.op], value.dtype), bool(value.attrs["exclusive"]), lanes)
    read, written = Tensor("x", x.dtype, locations(x).strides), Tensor("y", value.dtype, locations(value).strides)
    row = tuple(Set(f"r{a}", index) for a, index in enumerate(indices(rows, Name("row"))))

    def load(index: Expr) -> Expr:
        return Load(read, place(index))

    def store(index: Expr, total: Expr) -> Statement:
        return Store(written, place(index), cast_to(total, value.dtype))

    bindings = {"x": x, "y": value}
    if isinstance(length, int) and length <= _SHORT:
        body = (
            Set("row", add(mul(ThreadIndex("block"), Extent(_WARPS)), _WARP)),
            When(
                holds("less", Name("row"), Extent(count)), (*row, *scan.scanned(load, store, ZERO, Extent(length), 1))
            ),
        )
        return in_passes([_kernel("scan", ("x", "y"), body, (count + (_WARPS - 1)) // _WARPS, lanes)], bindings, {})
    parts = _parts(length, count, device.multiprocessors)
    if parts == 1:
        body = (Set("row", ThreadIndex("block")), *row, *scan.scanned(load, store, ZERO, Extent(length), _WARPS))
        return in_passes([_kernel("scan", ("x", "y"), body, count, lanes)], bindings, {})
    share = (length + (parts - 1)) // parts
    totals = Tensor("totals", scan.fold.total, (parts * scan.fold.total.itemsize, scan.fold.total.itemsize))
    head = (
        Set("row", whole("div", ThreadIndex("block"), Extent(parts))),
        Set("part", whole("rem", ThreadIndex("block"), Extent(parts))),
        *row,
        Set("first", minimum(mul(Name("part"), Extent(share)), Extent(length))),
        Set("end", minimum(add(Name("first"), Extent(share)), Extent(length))),
    )
    kept = Store(totals, (Name("row"), Name("part")), Name("carry", scan.fold.total))
    first = (
        *head,
        *scan.reduced(load, Name("first"), Name("end")),
        When(holds("equal", ThreadIndex("thread"), ZERO), (kept,)),
    )
    second = (
        *head,
        *scan.reduced(lambda p: Load(totals, (Name("row"), p)), ZERO, Name("part")),
        *scan.scanned(load, store, Name("first"), Name("end"), _WARPS, carried=True),
    )
    kernels = [
        _kernel("scan_totals", ("x", "totals"), first, count * parts, lanes),
        _kernel("scan_parts", ("x", "totals", "y"), second, count * parts, lanes),
    ]
    return in_passes(kernels, bindings, {"totals": count * parts * scan.fold.total.itemsize})


def _parts(length: Size, rows: Size, multiprocessors: int) -> int:
    """Into how many parts a row is cut; 1 where the rows almost fill the device."""
    blocks = 4 * multiprocessors
    if not isinstance(rows, int) or rows == 0 or 4 * rows > blocks:
        return 1
    most = blocks // rows
    return max(1, min(most, length // _PART)) if isinstance(length, int) else most


def _kernel(
    name: str, pointers: tuple[str, ...], body: tuple[Statement, ...], blocks: Size, lanes: int
) -> tuple[Kernel, Size]:
    launch = Launch(blocks, _WARPS * lanes, warp=lanes)
    return Kernel(name, pointers, pointers[-1:], "tile", body, sizes=sizes_in(body), launch=launch), blocks


@dataclass(frozen=True, slots=True)
class _Scan:
    """What a scan combines, and how the threads of a block do it."""

    fold: Fold
    exclusive: bool
    lanes: int
    """Threads of a warp."""

    @property
    def identity(self) -> Number:
        return self.fold.first(self.fold.total)

    @property
    def warp_totals(self) -> Tensor:
        return Tensor("warp_totals", self.fold.total, (self.fold.total.itemsize,), space="shared")

    def both(self, x: Expr, y: Expr) -> Expr:
        return Call(self.fold.combine, (x, y), self.fold.total)

    def named(self, name: str) -> Name:
        return Name(name, self.fold.total)

    def reduced(self, load: _Load, first: Expr, end: Expr) -> tuple[Statement, ...]:
        """All elements from `first` to before `end`, combined by the threads of a block, in `carry` of every thread."""
        total, carry = self.fold.total, self.named("carry")
        element = cast_to(load(add(first, Name("e"))), total)
        take = Set("carry", self.both(carry, Load(self.warp_totals, (Name("w"),))))
        return (
            Set("carry", self.identity),
            Loop("e", whole("sub", end, first), (Set("carry", self.both(carry, element)),), kind="thread"),
            AllReduce("carry", self.fold.combine, total),
            Alloc("warp_totals", total, self.lanes, "shared"),
            When(holds("equal", _LANE, ZERO), (Store(self.warp_totals, (_WARP,), carry),)),
            Barrier(),
            Set("carry", self.identity),
            Loop("w", Extent(_WARPS), (take,), kind="unrolled"),
            Barrier(),
        )

    def scanned(
        self, load: _Load, store: _Store, first: Expr, end: Expr, warps: int, *, carried: bool = False
    ) -> tuple[Statement, ...]:
        """The elements from `first` to before `end`, scanned by some warps; `carry` may hold the total before them."""
        total, each = self.fold.total, self.lanes * _GROUPS
        chunk = warps * each
        kept = Tensor("kept", total, (total.itemsize,), space="private")
        here = mul(Name("chunk"), Extent(chunk))
        base = add(first, here) if warps == 1 else add(first, add(here, mul(_WARP, Extent(each))))
        at = Set("at", add(Name("base"), add(mul(Name("g"), Extent(self.lanes)), _LANE)))
        there = holds("less", Name("at"), end)
        inside = minimum(Name("at"), whole("sub", end, Extent(1)))
        result = self.both(self.named("offset"), Load(kept, (Name("g"),)))
        turn: tuple[Statement, ...] = (
            Set("base", base),
            Set("running", self.identity),
            Loop(
                "g",
                Extent(_GROUPS),
                (at, Set("v", choose(there, cast_to(load(inside), total), self.identity)), *self._group(kept)),
                kind="unrolled",
            ),
            *self._offset(warps),
            Loop("g", Extent(_GROUPS), (at, When(there, (store(Name("at"), result),))), kind="unrolled"),
        )
        chunks = whole("div", add(whole("sub", end, first), Extent(chunk - 1)), Extent(chunk))
        return (
            Alloc("kept", total, _GROUPS, "private"),
            *(() if warps == 1 else (Alloc("warp_totals", total, self.lanes, "shared"),)),
            *(() if carried else (Set("carry", self.identity),)),
            Loop("chunk", chunks, turn),
        )

    def _group(self, kept: Tensor) -> tuple[Statement, ...]:
        """The scan of one element for each lane, after those of `running`."""
        total, v, running = self.fold.total, self.named("v"), self.named("running")
        statements: list[Statement] = []
        distance = 1
        while distance < self.lanes:
            partner = whole("maximum", whole("sub", _LANE, Extent(distance)), ZERO)
            has_one = holds("greater_equal", _LANE, Extent(distance))
            statements += [
                FromLane("other", "v", partner, total),
                Set("v", choose(has_one, self.both(self.named("other"), v), v)),
            ]
            distance *= 2
        statements.append(Set("v", self.both(running, v)))
        result: Expr = v
        if self.exclusive:
            statements.append(FromLane("other", "v", whole("maximum", whole("sub", _LANE, Extent(1)), ZERO), total))
            result = choose(holds("equal", _LANE, ZERO), running, self.named("other"))
        return (*statements, Store(kept, (Name("g"),), result), FromLane("running", "v", Extent(self.lanes - 1), total))

    def _offset(self, warps: int) -> tuple[Statement, ...]:
        """`offset` is the total of all before the warp's elements, `carry` that of all up to the block's last."""
        carry = self.named("carry")
        if warps == 1:
            return Set("offset", carry), Set("carry", self.both(carry, self.named("running")))
        own = choose(holds("equal", _WARP, Name("w")), carry, self.named("offset"))
        more = self.both(carry, Load(self.warp_totals, (Name("w"),)))
        return (
            When(holds("equal", _LANE, ZERO), (Store(self.warp_totals, (_WARP,), self.named("running")),)),
            Barrier(),
            Set("offset", carry),
            Loop("w", Extent(warps), (Set("offset", own), Set("carry", more)), kind="unrolled"),
            Barrier(),
        )


__all__ = ["offer_scan", "offer_serial_scan"]
