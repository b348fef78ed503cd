"""Shapes that a run computes: tensors whose sizes are unknown before it."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.shared.site import Site
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import build

MOST_FIXED = 64
"""Most elements of an integer input that may configure the model; a larger one is data."""


def sizes_or_run(n: Site, value: Value, name: str) -> tuple[Size, ...] | None:
    """The sizes that a value holds, or None where the run computes them. A caller's own choice has to be fixed."""
    found = n.sizes(value)
    if found is None and _is_chosen(value):
        raise n.needs(value, name)
    return found


def _is_chosen(value: Value) -> bool:
    """Whether a value depends on nothing but small integer inputs, which a caller can fix."""
    inputs = [v.tensor for v in walk([value]) if v.op is leaf.INPUT]
    small = [t.dtype.is_integer and isinstance(t.count, int) and t.count <= MOST_FIXED for t in inputs]
    return bool(inputs) and all(small)


def size_value(size: Size) -> Value:
    """A size as a number to compute with."""
    return ops.extent(size=size) if isinstance(size, Dim) else leaf.scalar(size, i64)


def numbers_in(n: Site, value: Value, name: str) -> list[Value]:
    """The elements of a vector of integers, or of a single one, each as i64; concatenations are taken apart."""
    found: list[Value] = []
    pending = [value]
    while pending:
        part = pending.pop()
        if part.op is ops.concat:
            pending += part.operands[::-1]
        elif part.op is ops.unsqueeze and part.operands[0].rank == 0:
            pending.append(part.operands[0])
        elif part.rank == 0:
            found.append(part if part.dtype is i64 else ops.cast(part, dtype=i64))
        else:
            count = part.tensor.count
            if part.rank != 1 or not isinstance(count, int):
                raise n.unsupported(f"{name} of the type {value.type}", hint="it is a vector of a known length")
            pending += [build.select(part, axis=0, index=i) for i in reversed(range(count))]
    return found


def with_dependencies(x: Value, *binders: Value) -> Value:
    """x with control dependencies: ops that bind the sizes that x mentions stay in the graph."""
    zero = leaf.scalar(0, i64)
    for binder in binders:
        whole = ops.minimum(ops.maximum(ops.cast(binder, dtype=i64), 0), 0)
        zero = zero + build.reshape(ops.reduce_sum(whole, axes=range(-whole.rank, 0)) if whole.rank else whole, ())
    y = x if x.rank else build.reshape(x, (1,))
    return build.reshape(ops.gather(y, ops.iota(size=y.shape[0]) + zero, axis=0), x.shape)


def stretched(n: Site, x: Value, axis: int, count: Value, name: str) -> Value:
    """An axis of size 1 broadcast to a size that the run computes."""
    return ops.gather(x, ops.minimum(n.counted(count, name), 0), axis=axis)


def filled(n: Site, one: Value, sizes: Sequence[Value], name: str) -> Value:
    """One element in a shape that the run computes."""
    made = build.reshape(one, [1] * len(sizes))
    for axis, count in enumerate(sizes):
        made = stretched(n, made, axis, count, name)
    return made


def reshaped(n: Site, x: Value, numbers: Sequence[Value], *, copies: bool) -> Value:
    """x in a shape of which some numbers are computed by the run; where `copies`, 0 stands for the size in x."""
    known = [n.sizes(v) for v in numbers]
    sizes = [None if k is None else k[0] for k in known]
    wanted = [x.shape[i] if s == 0 and copies and i < x.rank else s for i, s in enumerate(sizes)]
    if wanted.count(None) == 1 and -1 not in wanted:
        return build.reshape(x, [-1 if s is None else s for s in wanted])
    counts = [
        ops.where(ops.equal(v, 0), size_value(x.shape[i]), v) if copies and i < x.rank and sizes[i] is None else v
        for i, v in enumerate(numbers)
    ]
    others = leaf.scalar(1, i64)
    for count in counts:
        others = others * ops.where(ops.equal(count, -1), 1, count)
    left = ops.div(size_value(x.tensor.count), others)
    steps = [n.counted(ops.where(ops.equal(c, -1), left, c), "reshape") for c in counts]
    return with_dependencies(build.reshape(x, [s.shape[0] for s in steps]), *steps)
