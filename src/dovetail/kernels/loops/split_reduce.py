"""Two-stage reductions: many blocks reduce parts of a few long rows, and a second kernel combines their results.

Each part goes to a place of its own in a workspace, and the second kernel combines them in one order, so that runs
repeat to the bit. A row is split where there are too few rows to fill a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, i64
from dovetail.kernels.loops.analysis import Reduced, elements, everything, extent, parallel, pointers_in, reductions
from dovetail.kernels.loops.ir import (
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
    add,
    minimum,
    mul,
    sizes_in,
)

_PIECE, _PART = "piece", "part"


@dataclass(frozen=True, slots=True)
class Partial:
    """What the parts of rows reduce to: an array in the workspace."""

    pointer: str
    dtype: DType
    count: Size

    @property
    def nbytes(self) -> Size:
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class SplitReduction:
    """A reduction as two kernels. Neither has a launch shape yet."""

    first: Kernel
    pieces: Size
    """Tiles of the first kernel."""
    second: Kernel
    partials: tuple[Partial, ...]


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """When rows are split: data of a target."""

    blocks: int
    """Blocks that fill the device."""
    bundle_blocks: int
    """Blocks that fill the device, where each takes a bundle of rows."""
    elements: int
    """Elements that a part has at least."""


def split_reduction(kernel: Kernel, tiles: Size, bundle: int, limits: SplitLimits) -> SplitReduction | None:
    """A reduction of few long rows as two kernels; None where one kernel serves better, or the row is read twice."""
    row_loop = _row_loop(kernel.body)
    if row_loop is None or not isinstance(tiles, int) or tiles == 0:
        return None
    loop, outer = row_loop
    lanes = 1 if outer is None else bundle
    parts = _parts(loop, tiles, limits.blocks if outer is None else limits.bundle_blocks, limits.elements // lanes)
    reduced = reductions(loop.body)
    if parts < 2 or not reduced or any(isinstance(s, Store) for s in everything(loop.body)):
        return None
    partials = tuple([Partial(f"partial{i}", r.dtype, tiles * parts * lanes) for i, r in enumerate(reduced)])
    split = _Split(kernel, loop, outer, parts, lanes, reduced, partials)
    return SplitReduction(split.first(), tiles * parts, split.second(), partials)


def _row_loop(body: Sequence[Statement]) -> tuple[Loop, Loop | None] | None:
    """The only loop over a row, and the loop over the rows of its bundle if there is one."""
    loops = list(parallel(body))
    if len(loops) != 1 or loops[0] not in body:
        return None
    nested = list(parallel(loops[0].body))
    if not nested:
        return loops[0], None
    inside = len(nested) == 1 and nested[0] in loops[0].body
    return (nested[0], loops[0]) if inside else None


def _parts(loop: Loop, tiles: int, blocks: int, least: int) -> int:
    """Into how many parts a row goes; 1 where the rows almost fill the device."""
    if 4 * tiles > blocks:
        return 1
    count, groups = elements(loop), extent(loop)
    if count is None or groups is None:
        return blocks // tiles if isinstance(loop.extent, Extent) else 1
    return min(blocks // tiles, count // least, groups)


@dataclass(frozen=True, slots=True)
class _Split:
    kernel: Kernel
    loop: Loop
    outer: Loop | None
    parts: int
    lanes: int
    reduced: Sequence[Reduced]
    partials: Sequence[Partial]

    def first(self) -> Kernel:
        """Each tile is one part of one row, or of one bundle of rows."""
        groups = self.loop.extent
        assert isinstance(groups, Extent), "its size is known or an argument"
        share = Extent((groups.size + (self.parts - 1)) // self.parts)
        start = mul(Name(_PART), share)
        left = Call("maximum", (Call("sub", (groups, Name("start")), i64), Extent(0)), i64)
        own = Set(self.loop.variable, add(Name("start"), Name("own")))
        stores = [
            Store(self._tensor(p), self._at(Name(_PIECE)), Name(r.name, r.dtype))
            for p, r in zip(self.partials, self.reduced, strict=True)
        ]
        loop = replace(self.loop, variable="own", extent=Name("share"), body=(own, *self.loop.body))
        reduced = (Set("start", start), Set("share", minimum(share, left)), loop, *stores)
        row = Set(self.kernel.tile, Call("div", (Name(_PIECE), Extent(self.parts)), i64))
        part = Set(_PART, Call("rem", (Name(_PIECE), Extent(self.parts)), i64))
        body = (row, part, *self._replaced(reduced, after=False))
        written = tuple(p.pointer for p in self.partials)
        pointers = tuple(n for n in self.kernel.pointers if n in pointers_in(body))
        return Kernel(f"{self.kernel.name}_parts", (*pointers, *written), written, _PIECE, body, sizes=sizes_in(body))

    def second(self) -> Kernel:
        """Each tile combines the parts of its rows, and goes on as the kernel does after its loop."""
        at = self._at(add(mul(Name(self.kernel.tile), Extent(self.parts)), Name("e")))
        take: list[Statement] = [
            Set(r.name, Call(r.op, (Name(r.name, r.dtype), Load(self._tensor(p), at)), r.dtype))
            for p, r in zip(self.partials, self.reduced, strict=True)
        ]
        loop = Loop("e", Extent(self.parts), tuple(take), reassociate=True, kind="parallel")
        body = self._replaced((loop,), after=True)
        names = tuple(p.pointer for p in self.partials)
        pointers = tuple(n for n in self.kernel.pointers if n in pointers_in(body))
        return replace(self.kernel, pointers=(*names, *pointers), body=body, sizes=sizes_in(body))

    def _replaced(self, instead: Sequence[Statement], *, after: bool) -> tuple[Statement, ...]:
        """The kernel's body with something in place of the loop over the row, and what comes after it or not."""
        inner = self.kernel.body if self.outer is None else self.outer.body
        at = inner.index(self.loop)
        replaced = (*inner[:at], *instead, *(inner[at + 1 :] if after else ()))
        if self.outer is None:
            return replaced
        body, place = self.kernel.body, self.kernel.body.index(self.outer)
        rest = body[place + 1 :] if after else ()
        return (*body[:place], replace(self.outer, body=replaced), *rest)

    def _tensor(self, partial: Partial) -> Tensor:
        item = partial.dtype.itemsize
        strides = (item,) if self.outer is None else (self.lanes * item, item)
        return Tensor(partial.pointer, partial.dtype, strides)

    def _at(self, piece: Expr) -> tuple[Expr, ...]:
        return (piece,) if self.outer is None else (piece, Name(self.outer.variable))


__all__ = ["Partial", "SplitLimits", "SplitReduction", "split_reduction"]
