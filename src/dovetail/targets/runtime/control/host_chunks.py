"""Loops whose number of trips the run finds, and that stack outputs of every trip: several trips at a time.

The size of the stacked outputs is known after the loop. The host runs chunks, each a compiled scan of a known length
whose trips do nothing once the condition has failed, and joins their outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size, evaluate, symbol, symbols
from dovetail.ir.dtype import i64
from dovetail.ir.graph import Subgraph, walk_into
from dovetail.ir.inline import inline
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops import build, tracing
from dovetail.ops.control import MOST_TRIPS, check_trips, while_
from dovetail.passes.specialize import fresh_symbols

FIRST_CHUNK, CHUNK_GROWTH, MOST_CHUNK = 32, 4, 1024
"""Trips of the first chunk, how much longer the next one is, and the longest: a call takes longer than idle trips."""
LEAST_CHUNK = 4
"""Trips of the first chunk, at least, where the last run shows how many to expect."""
FIRST_BYTES = 64 << 10
"""Stacked outputs of the first chunk, at most: idle trips write zeros."""
CHUNK_BYTES = 16 << 20
"""Stacked outputs of a chunk, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class TripChunk:
    """Several trips of a loop as a sub-graph of its operands.

    The results are the carries, the stacked outputs, the number of trips, and whether the condition holds after them.
    """

    value: Value
    body: Subgraph
    length: str
    """The symbol of its length: that of the trips."""
    trip_bytes: Size
    """Bytes that a trip stacks."""
    carries: int
    outputs: int


def chunk_of(value: Value) -> TripChunk | None:
    """The chunk of a loop; None where the run finds other sizes than the number of trips, or none."""
    if value.op is not while_ or value.attrs["trips"] is None or value.attrs["places"]:
        return None
    condition: Subgraph = value.attrs["condition"]
    body: Subgraph = value.attrs["body"]
    trips: Size = value.attrs["trips"]
    length = next((name for name in symbols(trips) if trips == symbol(name)), None)
    inside = walk_into((*condition.results, *body.results))
    if length is None or any(True for v in inside for _ in fresh_symbols(v)):
        return None
    carries = int(value.attrs["carries"])

    def running(*operands: Value) -> tuple[Value, ...]:
        return inline(body, operands)

    def stopped(*operands: Value) -> tuple[Value, ...]:
        return (*operands[:carries], *(build.zeros(v.shape, v.dtype) for v in body.results[carries:]))

    def trip(*slots: Value) -> tuple[Value, ...]:
        done, *operands = slots
        (holds,) = inline(condition, operands)
        results = tracing.cond(holds, running, stopped, *operands)
        return (done + ops.cast(holds, dtype=i64), *results)

    def chunk(*operands: Value) -> tuple[Value, ...]:
        carried, captures = operands[:carries], operands[carries:]
        scanned = tracing.scan(trip, [leaf.scalar(0, i64), *carried], captures=captures, length=trips)
        done, *after = scanned.carries
        return (*after, *scanned.outputs, done, *inline(condition, (*after, *captures)))

    trip_bytes: Size = sum(v.tensor.bytes for v in body.results[carries:])
    stacked = len(body.results) - carries
    return TripChunk(value, tracing.subgraph(chunk, body.arguments), length, trip_bytes, carries, stacked)


RunChunk: TypeAlias = Callable[[Sequence[Array], Mapping[str, int]], Sequence[Array]]
"""Runs one chunk, given the operands of the loop and all sizes."""


def run_chunks(
    chunk: TripChunk, operands: Sequence[Array], sizes: Mapping[str, int], run: RunChunk, expected: int | None
) -> tuple[Array, ...]:
    """What the loop gives, as its meaning says; `expected` is how many trips the last run made."""
    carries = chunk.carries
    limit: Size | None = chunk.value.attrs["limit"]
    most = None if limit is None else evaluate(limit, sizes)
    trip_bytes = max(1, evaluate(chunk.trip_bytes, sizes))
    longest = max(1, min(MOST_CHUNK, CHUNK_BYTES // trip_bytes))
    carried, captures = operands[:carries], operands[carries:]
    outputs: list[list[Array]] = [[] for _ in range(chunk.outputs)]
    # Powers of two: few lengths are prepared, and runs of similar lengths share one.
    first = FIRST_CHUNK if expected is None else 1 << (max(expected, LEAST_CHUNK) - 1).bit_length()
    total, length = 0, max(1, min(first, FIRST_BYTES // trip_bytes))
    bound = MOST_TRIPS if most is None else min(most, MOST_TRIPS)
    while True:
        check_trips(total)
        length = min(length, longest, bound - total)
        *results, done, holds = run([*carried, *captures], {**sizes, chunk.length: length})
        carried = results[:carries]
        count = int(done)
        for parts, part in zip(outputs, results[carries:], strict=True):
            parts.append(part[:count])
        total += count
        if not holds or total == most:
            return (*carried, *(p[0] if len(p) == 1 else np.concatenate(p) for p in outputs), holds)
        length *= CHUNK_GROWTH
