"""The loops of a tile: which row it is, the loops inside, and the scalars that a row keeps.

Where the elements of a row are contiguous, a tile is a row, its scalars are scalars, and the innermost loop
becomes vectors. Where neighbours in memory belong to different rows, a tile is a bundle of rows: every scalar is an
array with one element for each row, and the loop over the bundle is the innermost one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, i64
from dovetail.kernels.loops.axes import Factors
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    add,
    collapsed,
    indices,
    minimum,
    mul,
)
from dovetail.kernels.loops.policy import TilePolicy
from dovetail.kernels.loops.tiling import vector_width
from dovetail.ops.view import quotient


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor with a stride for every factor that it has, in bytes."""

    pointer: str
    dtype: DType
    offset: Size
    strides: Mapping[int, Size]

    @property
    def dense(self) -> int | None:
        """The factor along which elements are neighbours."""
        return next((f for f, stride in self.strides.items() if stride == self.dtype.itemsize), None)


class Nest:
    """The tile of a kernel over placed tensors. `rows` are the factors that number its rows."""

    def __init__(
        self,
        sizes: Sequence[Size],
        rows: Sequence[int],
        tensors: Sequence[Placed],
        *,
        loops: set[int],
        tiles: TilePolicy,
        alignment: Mapping[str, int],
    ) -> None:
        """`alignment` gives the bytes that the address of each pointer is a multiple of."""
        self.sizes = sizes
        self.policy, self.alignment = tiles, alignment
        self.tensors = tuple(tensors)
        largest = max(self.tensors, key=lambda t: len(t.strides))
        order = [f for f in largest.strides if f != largest.dense]
        self._rank = {f: i for i, f in enumerate([*order, *([] if largest.dense is None else [largest.dense])])}
        self.bundled = _bundled(self.tensors, set(rows), loops)
        self.bundle = self._bundle(largest)
        outer = [f for f in rows if f != self.bundled]
        self._shape, self._strides = self._collapse(outer)
        self._groups: dict[Factors, tuple[tuple[Size, ...], list[tuple[Size, ...]]]] = {}
        self._kept: dict[str, Tensor] = {}
        self._scratch: Size = 0
        self._private: list[Alloc] = []

    def _bundle(self, largest: Placed) -> int:
        """Rows of a bundle: as many as are neighbours, where a tensor is read from memory."""
        policy = self.policy
        held = product(tuple(self.sizes[f] for f in largest.strides)) * largest.dtype.itemsize
        count = 0 if self.bundled is None else self.sizes[self.bundled]
        is_held = not isinstance(held, int) or held <= policy.cached_bytes
        if is_held or not policy.widest_bundle or not isinstance(count, int):
            return policy.bundle
        # The hardware prefetches what is contiguous: parts of a line of memory are read at half the speed.
        return max(policy.bundle, -(-count // max(1, -(-count // policy.widest_bundle))))

    @property
    def has_arrays(self) -> bool:
        """Whether the scalars of a tile are arrays, with an element for each row of a bundle."""
        return self.bundled is not None and not self.policy.is_shared

    def _collapse(self, factors: Sequence[int]) -> tuple[tuple[Size, ...], list[tuple[Size, ...]]]:
        strides = [tuple(t.strides.get(f, 0) for f in factors) for t in self.tensors]
        return collapsed(tuple(self.sizes[f] for f in factors), strides)

    @property
    def tiles(self) -> Size:
        return product(self._shape) * self._bundles

    @property
    def _bundles(self) -> Size:
        return 1 if self.bundled is None else (self.sizes[self.bundled] + (self.bundle - 1)) // self.bundle

    @property
    def lanes(self) -> Size:
        """Rows of a tile, at most."""
        if self.bundled is None:
            return 1
        size = self.sizes[self.bundled]
        return min(size, self.bundle) if isinstance(size, int) else self.bundle

    @property
    def scratch(self) -> Size:
        return self._scratch

    def group(self, factors: Sequence[int]) -> Factors:
        """Factors in the order of loops: the one along which memory is dense comes last."""
        return tuple(sorted(factors, key=lambda f: (self._rank.get(f, -1), f)))

    def shape(self, group: Factors) -> tuple[Size, ...]:
        """The extents of the loops over a group of factors."""
        if group not in self._groups:
            self._groups[group] = self._collapse(group)
        return self._groups[group][0]

    def head(self) -> tuple[Statement, ...]:
        """Which row or bundle the tile is."""
        tile: Expr = Name("tile")
        statements: list[Statement] = []
        if self.bundled is not None:
            bundles = Extent(self._bundles)
            statements.append(Set("first", mul(Call("rem", (tile, bundles), i64), Extent(self.bundle))))
            statements.append(Set("row", Call("div", (tile, bundles), i64)))
            tile = Name("row")
            left = Call("sub", (Extent(self.sizes[self.bundled]), Name("first")), i64)
            statements.append(Set("rows", minimum(Extent(self.bundle), left)))
        return (*statements, *(Set(f"r{i}", r) for i, r in enumerate(indices(self._shape, tile))))

    def place(self, tensor: Placed, group: Factors, last: Expr | None = None) -> tuple[Tensor, tuple[Expr, ...]]:
        """A tensor and where in it the element of the row and of the loops over a group is.

        `last` is the index of the innermost loop, where it is not simply counted up.
        """
        which = next(i for i, t in enumerate(self.tensors) if t is tensor)
        shape = self.shape(group)
        at: list[Expr] = [Name(f"r{i}") for i in range(len(self._shape))]
        at += [Name(f"i{i}") for i in range(len(shape))]
        if last is not None and shape:
            at[-1] = last
        strides = (*self._strides[which], *self._groups[group][1][which])
        if self.bundled is not None:
            strides = (*strides, tensor.strides.get(self.bundled, 0))
            at.append(add(Name("first"), Name("lane")))
        return Tensor(tensor.pointer, tensor.dtype, strides, tensor.offset), tuple(at)

    def load(self, tensor: Placed, group: Factors, last: Expr | None = None) -> Load:
        return Load(*self.place(tensor, group, last))

    def store(self, tensor: Placed, group: Factors, value: Expr, last: Expr | None = None) -> Store:
        return Store(*self.place(tensor, group, last), value)

    def keep(self, name: str, value: Expr) -> Statement:
        """Let a row keep a scalar."""
        if not self.has_arrays:
            return Set(name, value)
        if name not in self._kept:
            self._kept[name] = self.reserve(value.dtype, ())
        return Store(self._kept[name], (Name("lane"),), value)

    def read(self, name: str, dtype: DType) -> Expr:
        """A scalar that the row keeps."""
        return Load(self._kept[name], (Name("lane"),)) if self.has_arrays else Name(name, dtype)

    def can_reserve(self, group: Factors) -> bool:
        """Whether scratch has room for an element of each iteration of the loops over a group."""
        count, most = product(self.shape(group)), self.policy.kept_elements
        return self.bundled is None and (most is None or (isinstance(count, int) and count <= most))

    def reserve(self, dtype: DType, group: Factors) -> Tensor:
        """Scratch with one element for each row of the tile and each iteration of the loops over a group.

        Where threads share a tile, each has the elements of its own iterations; the scheduler counts them.
        """
        if self.policy.is_shared:
            count = product(self.shape(group))
            assert isinstance(count, int), "such scratch is reserved where sizes are known"
            room = Tensor(f"a{len(self._private)}", dtype, (dtype.itemsize,), space="private")
            self._private.append(Alloc(room.pointer, dtype, count, "private"))
            return room
        shape = (*self.shape(group), *((self.bundle,) if self.has_arrays else ()))
        strides: list[Size] = []
        step: Size = dtype.itemsize
        for size in reversed(shape):
            strides.append(step)
            step = step * size
        room = Tensor("scratch", dtype, tuple(reversed(strides)), self._scratch)
        self._scratch = (self._scratch + step + 63) // 64 * 64
        return room

    def aside(self, tensor: Tensor, group: Factors) -> tuple[Expr, ...]:
        """The index in such scratch of the element where the loops are."""
        if self.policy.is_shared:
            width = self.width(group)
            return (Name("turn") if width == 1 else add(mul(Name("turn"), Extent(width)), Name("v")),)
        at: list[Expr] = [Name(f"i{i}") for i in range(len(self.shape(group)))]
        return (*at, *((Name("lane"),) if self.has_arrays else ()))

    def each(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """A body for every row of the tile."""
        if not body:
            return ()
        return (Loop("lane", Name("rows"), tuple(body)),) if self.has_arrays else tuple(body)

    def tile(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """All that a tile does. Threads that share a bundle take a row each, from its first loop to its last."""
        if self.bundled is not None and self.policy.is_shared:
            return (*self.head(), Loop("lane", Name("rows"), tuple(body), kind="parallel"))
        return (*self.head(), *self._private, *body)

    def width(self, group: Factors) -> int:
        """Neighbours of a row that one thread takes at once, where threads share it."""
        shape = (*self._shape, *self.shape(group))
        if not self.policy.is_shared or self.bundled is not None or not self.shape(group):
            return 1
        tensors = [
            Tensor(t.pointer, t.dtype, (*self._strides[i], *self._groups[group][1][i]), t.offset)
            for i, t in enumerate(self.tensors)
        ]
        width = vector_width(shape, tensors, self.alignment, self.policy)
        while width > 1 and (not isinstance(shape[-1], int) or shape[-1] % width):
            width //= 2
        return width

    def _shared(self, group: Factors, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """One loop for all axes of a group, whose iterations threads share."""
        shape, width = self.shape(group), self.width(group)
        if not shape:
            return tuple(body)
        last = f"i{len(shape) - 1}"
        flat = mul(Name("e"), Extent(width))
        inner: tuple[Statement, ...] = tuple(Set(f"i{i}", at) for i, at in enumerate(indices(shape, flat)))
        if width == 1:
            inner = (*inner, *body)
        else:
            step = Set(last, add(Name("column"), Name("v")))
            inner = (
                *inner,
                Set("column", Name(last)),
                Loop("v", Extent(width), (step, *body), reassociate=True, kind="unrolled"),
            )
        count = product(shape)
        groups = count // width if isinstance(count, int) else quotient(count, width)
        assert groups is not None, "the width divides the last axis"
        return (Loop("e", Extent(groups), inner, reassociate=True, kind="parallel"),)

    def sums_in_blocks(self, group: Factors) -> bool:
        """Whether a block of elements is summed up in their own dtype; threads of a GPU take long rows in f64."""
        if not self.policy.is_shared:
            return True
        count, most = (
            product(self.shape(group)),
            self.policy.block if self.bundled is None else self.policy.bundled_block,
        )
        return isinstance(count, int) and count <= most

    def over(self, group: Factors, body: Sequence[Statement], *, reassociate: bool = False) -> tuple[Statement, ...]:
        """A body for every step of the loops over a group, and every row of the tile."""
        shape = self.shape(group)
        if self.policy.is_shared and reassociate:
            return self._shared(group, body)
        nested = self.each(body)
        for i in reversed(range(len(shape))):
            innermost = i == len(shape) - 1 and not self.has_arrays
            nested = (Loop(f"i{i}", Extent(shape[i]), nested, reassociate=reassociate and innermost),)
        return nested

    def summed(
        self,
        group: Factors,
        before: Sequence[Statement],
        body: Sequence[Statement],
        after: Sequence[Statement],
    ) -> tuple[Statement, ...]:
        """The same, with the innermost loop cut into blocks, and something done before and after each block."""
        shape = self.shape(group)
        if not shape:
            return self.each((*before, *body, *after))
        if self.policy.is_shared:
            return (*before, *self._shared(group, body), *after)
        last, extent = len(shape) - 1, shape[-1]
        # Lanes of a vector share a block of a row between them; a row of a bundle has it for itself.
        block = self.policy.block if self.bundled is None else self.policy.bundled_block
        free = self.bundled is None
        nested: tuple[Statement, ...]
        if isinstance(extent, int) and extent <= block:
            inner = Loop(f"i{last}", Extent(extent), self.each(body), reassociate=free)
            nested = (*self.each(before), inner, *self.each(after))
        else:
            start = mul(Name("block"), Extent(block))
            count = minimum(Extent(block), Call("sub", (Extent(extent), Name("start")), i64))
            step = Set(f"i{last}", add(Name("start"), Name("step")))
            inner = Loop("step", count, (step, *self.each(body)), reassociate=free)
            blocks = Extent((extent + (block - 1)) // block)
            nested = (Loop("block", blocks, (Set("start", start), *self.each(before), inner, *self.each(after))),)
        for i in reversed(range(last)):
            nested = (Loop(f"i{i}", Extent(shape[i]), nested),)
        return nested


def _bundled(tensors: Sequence[Placed], rows: set[int], loops: set[int]) -> int | None:
    """The factor of rows along which most tensors are dense; None where that is a factor of the loops."""
    votes: dict[int, int] = {}
    for tensor in tensors:
        if tensor.dense is not None and loops & tensor.strides.keys():
            votes[tensor.dense] = votes.get(tensor.dense, 0) + len(tensor.strides)
    if not votes:
        return None
    best = max(votes, key=lambda f: votes[f])
    return best if best in rows else None


__all__ = ["ZERO", "Nest", "Placed"]
