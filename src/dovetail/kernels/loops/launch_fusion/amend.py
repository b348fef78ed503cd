"""Rows that a block wrote after copies of them to shared memory had started: it stores them there once more.

A decoder appends the row of a token to its cache. All other rows are known before, so that their copies may start
before a block has that row. Stages of the block compute it, and what they append replaces the old row in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.analysis import everything, results
from dovetail.kernels.loops.ir import (
    Amend,
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
    ThreadIndex,
    When,
    add,
    bodies,
    expand,
    mul,
    reads,
    rewrite,
    uses,
)
from dovetail.kernels.loops.uniform import Uniform, at_block

Body = tuple[Statement, ...]
_LANE = ThreadIndex("lane")


@dataclass(frozen=True, slots=True)
class Opened:
    """The body of a kernel, and what its blocks do before they wait for others."""

    opening: Body
    body: Body


def opened(kernel: Kernel, stages: Sequence[Body], same: Mapping[str, str], blocks: int) -> Opened:
    """A kernel after its stages. What it copies before it waits is amended by what stages write; copies start after the
    stages where that is not known. Names of pointers are those of the whole; `same` is that of `with_stages`."""
    amends = [s for s in everything(kernel.body) if isinstance(s, Amend)]
    amendments: dict[str, Body] = {a.source.pointer: () for a in amends}
    early = {tensor.pointer for tensor, _ in reads(kernel.opening)}
    for stage in stages:
        stores = results(stage)
        for name in {s.tensor.pointer for s in stores}:
            read = same.get(name, name)
            mine = [a for a in amends if a.source.pointer == read]
            amended = _amended(mine[0], stage, name, kernel.body, blocks) if len(mine) == 1 else None
            shared = all(s.tensor.space == "shared" for s in stores)
            if amended is not None and not amendments[read]:
                amendments[read] = amended
            elif read in early or not shared:
                return Opened((), (*kernel.opening, *_filled(kernel.body, {})))
    return Opened(kernel.opening, _filled(kernel.body, amendments))


def _filled(body: Body, amendments: Mapping[str, Body]) -> Body:
    """A body whose amendments are statements; without any where nothing is amended."""
    return expand(body, lambda s: amendments.get(s.source.pointer, ()) if isinstance(s, Amend) else None)


def _amended(amend: Amend, stage: Body, pointer: str, kernel: Body, blocks: int) -> Body | None:
    """What a warp stores in its tile of what a stage writes through a pointer; None where it may be more than a row."""
    stores = [s for s in everything(stage) if isinstance(s, Store) and s.tensor.pointer == pointer]
    if len(stores) != 1 or stores[0].tensor.strides != amend.source.strides or stores[0].tensor.offset != 0:
        return None
    (store,) = stores
    if store.tensor.dtype.itemsize != amend.target.dtype.itemsize:
        return None
    path = [*_path(stage, store)]
    *lead, row, column = store.at
    own, taken = Uniform(kernel), Uniform(stage)
    for here, there in zip(amend.lead, lead, strict=True):
        mine, other = own.of(here), taken.of(there)
        if mine is None or other is None or not _are_equal(mine, other, blocks):
            return None
    threads = [s for s in path if isinstance(s, Loop) and s.kind == "thread"]
    if [s.extent for s in threads] != [Extent(amend.columns)] or not isinstance(column, Name):
        return None
    # Loops around the one over a row have one iteration for a block, which is the first.
    known: dict[str, Expr] = {s.variable: Extent(0) for s in path if isinstance(s, Loop) and s.kind == "serial"}
    known[column.name] = Extent(0)
    conditions = [s.condition for s in path if isinstance(s, When)]
    sets = _needed([s for s in path if isinstance(s, Set) and s.name != column.name], [row, store.value, *conditions])
    known |= {s.name: Name(f"{s.name}_amended", s.value.dtype) for s in sets}
    of_row = [row, *conditions, *(s.value for s in sets)]
    if uses((store.value, *of_row)) - {*known}:
        return None
    if not all(_is_same_along(x, column.name) for x in of_row):
        return None
    of_element = {**known, column.name: add(mul(_LANE, Extent(8)), Name("element"))}
    line = Call("sub", (Name("amended_row"), amend.first), i64)
    inside = Call("bit_and", (_less(Extent(-1), Name("line")), _less(Name("line"), Extent(amend.rows))), bool_)
    for condition in (_less(_LANE, Extent(amend.columns // 8)), *(_with_names(x, known) for x in conditions)):
        inside = Call("bit_and", (inside, condition), bool_)
    # Stages that move elements take them for integers of their size.
    target = replace(amend.target, dtype=store.tensor.dtype)
    each = Store(target, amend.target_at, _with_names(store.value, of_element))
    return (
        *(Set(f"{s.name}_amended", _with_names(s.value, known)) for s in sets),
        Set("amended_row", _with_names(row, known)),
        Set("line", line),
        When(inside, (Loop("element", Extent(8), (each,), kind="unrolled"),)),
    )


def _less(x: Expr, y: Expr) -> Expr:
    return Call("less", (x, y), bool_)


def _are_equal(x: Expr, y: Expr, blocks: int) -> bool:
    pairs = [(at_block(x, block), at_block(y, block)) for block in range(blocks)]
    return all(mine is not None and mine == other for mine, other in pairs)


def _path(body: Body, store: Store) -> Iterator[Statement]:
    """What comes before a store: names that are set, and the loops and conditions around it."""
    for at, s in enumerate(body):
        if s is store:
            yield from [one for one in body[:at] if isinstance(one, Set)]
            return
        for inner in bodies(s):
            if any(one is store for one in everything(inner)):
                yield from [one for one in body[:at] if isinstance(one, Set)]
                yield s
                yield from _path(inner, store)
                return


def _needed(sets: Sequence[Set], exprs: Sequence[Expr]) -> list[Set]:
    """The names that some expressions are made of, in order."""
    names: set[str] = set()
    left = [*exprs]
    while left:
        for name in uses((left.pop(),)) - names:
            names.add(name)
            left += [s.value for s in sets if s.name == name]
    return [s for s in sets if s.name in names]


def _is_same_along(expr: Expr, column: str) -> bool:
    """Whether an expression is the same for all columns: it reads one element for all of them."""
    match expr:
        case Name(name):
            return name != column
        case Load(tensor, at):
            moving = [x for x, stride in zip(at, tensor.strides, strict=True) if stride != 0]
            return all(_is_same_along(x, column) for x in moving)
        case Call(_, operands):
            return all(_is_same_along(x, column) for x in operands)
        case _:
            return True


def _with_names(expr: Expr, known: Mapping[str, Expr]) -> Expr:
    """An expression with others for names."""
    return rewrite(expr, lambda part: known.get(part.name, part) if isinstance(part, Name) else None)


__all__ = ["Opened", "opened"]
