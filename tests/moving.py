"""Moves of a random graph that only move elements: the bounds of what they hold stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from dovetail import ops
from dovetail.ir.dtype import bool_
from dovetail.ir.value import Value
from tests.draft import Draft, Held
from tests.moves import Move

MAX_RANK = 5


def _relocated(draft: Draft, accept: Callable[[Held], bool], build: Callable[[Held], Value | None]) -> Held | None:
    x = draft.pick(accept)
    value = None if x is None else build(x)
    return None if x is None or value is None else replace(x, value=value)


def permutation(draft: Draft) -> Held | None:
    """The last axes in another order."""

    def build(x: Held) -> Value:
        count = draft.whole(2, x.rank)
        return ops.permute(x.value, order=tuple(draft.draw(st.permutations(range(-count, 0)))))

    return _relocated(draft, lambda x: x.rank >= 2, build)


def merging(draft: Draft) -> Held | None:
    """Neighbouring axes as one."""

    def build(x: Held) -> Value:
        count = draft.whole(2, x.rank)
        return ops.merge(x.value, axis=draft.whole(count - 1 - x.rank, -1), count=count)

    return _relocated(draft, lambda x: x.rank >= 2, build)


def splitting(draft: Draft) -> Held | None:
    """One axis as two; a symbolic axis only where its number in this draft divides."""

    def build(x: Held) -> Value | None:
        axis = draft.whole(-x.rank, -1)
        n = draft.concrete(x.shape[axis])
        divisor = draft.one_of([d for d in range(1, max(n, 1) + 1) if n % d == 0])
        return (
            ops.split(x.value, axis=axis, parts=divisor)
            if draft.chance()
            else ops.split(x.value, axis=axis, size=divisor)
        )

    return _relocated(draft, lambda x: 1 <= x.rank < MAX_RANK, build)


def unsqueezing(draft: Draft) -> Held | None:
    """A new axis of size 1."""
    return _relocated(
        draft,
        lambda x: x.rank < MAX_RANK,
        lambda x: ops.unsqueeze(x.value, axes=(draft.whole(-x.rank - 1, -1),)),
    )


def _ones(x: Held) -> list[int]:
    return [a - x.rank for a, size in enumerate(x.shape) if size == 1]


def squeezing(draft: Draft) -> Held | None:
    """An axis of size 1 left out."""
    return _relocated(draft, lambda x: bool(_ones(x)), lambda x: ops.squeeze(x.value, axes=(draft.one_of(_ones(x)),)))


def expanding(draft: Draft) -> Held | None:
    """An axis of size 1 repeated."""
    return _relocated(
        draft,
        lambda x: bool(_ones(x)),
        lambda x: ops.expand(x.value, axis=draft.one_of(_ones(x)), size=draft.one_of(draft.bound_sizes)),
    )


def slicing(draft: Draft) -> Held | None:
    """A stretch of an axis, with a step."""

    def build(x: Held) -> Value:
        axis = draft.whole(-x.rank, -1)
        n = draft.concrete(x.shape[axis])
        start = draft.whole(0, max(n - 1, 0))
        stop = draft.whole(min(start + 1, n), n)
        return ops.slice_(x.value, axis=axis, start=start, stop=stop, step=draft.one_of((1, 1, 2)))

    return _relocated(draft, lambda x: x.rank >= 1, build)


def cutting(draft: Draft) -> Held | None:
    """One of equal parts of an axis."""

    def build(x: Held) -> Value | None:
        axis = draft.whole(-x.rank, -1)
        n = draft.concrete(x.shape[axis])
        parts = draft.one_of([d for d in range(1, max(n, 1) + 1) if n % d == 0])
        return ops.part(x.value, axis=axis, index=draft.whole(0, parts - 1), parts=parts)

    return _relocated(draft, lambda x: x.rank >= 1, build)


def flipping(draft: Draft) -> Held | None:
    """An axis turned round."""
    return _relocated(draft, lambda x: x.rank >= 1, lambda x: ops.flip(x.value, axes=(draft.whole(-x.rank, -1),)))


def padding(draft: Draft) -> Held | None:
    """A number around an axis."""
    x = draft.pick(lambda x: x.rank >= 1 and x.dtype is not bool_)
    if x is None:
        return None
    number = draft.one_of((0, 1, -2))
    value = ops.pad(x.value, number, axis=draft.whole(-x.rank, -1), before=draft.whole(0, 2), after=draft.whole(0, 1))
    return Held(value, min(x.low, number), max(x.high, number), x.error)


def joining(draft: Draft) -> Held | None:
    """Two values one behind the other."""
    x = draft.pick(lambda x: x.rank >= 1)
    if x is None:
        return None
    at = draft.whole(0, x.rank - 1)

    def beside(y: Held) -> bool:
        return (
            y.dtype is x.dtype
            and y.rank == x.rank
            and all(i == at or a == b for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)))
        )

    y = draft.pick(beside)
    if y is None:
        return None
    value = ops.concat(x.value, y.value, axis=at - x.rank)
    return Held(value, min(x.low, y.low), max(x.high, y.high), max(x.error, y.error))


MOVING: tuple[Move, ...] = (
    permutation,
    merging,
    splitting,
    unsqueezing,
    squeezing,
    expanding,
    slicing,
    cutting,
    flipping,
    padding,
    joining,
)
