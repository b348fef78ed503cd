"""The figures of a host with a number of threads, and what contradicts them: a busy machine measures itself slower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Machine

NEAR_FLOPS, NEAR_BYTES = 0.95, 0.85
"""The share of the best that another round has to come to; others' virtual machines share main memory."""
LEAST_OF_DESCRIBED = 0.4
"""The share of the described peak below which something else is measured: clocks are off by less, and no processor
that runs the vector code has less than one pipe of two."""
LEAST_GAIN = 0.6
"""The share of even growth that n cores come to at least: clocks fall when all of them compute."""
LEAST_READ = 0.8
"""The share of the bandwidth of one thread that n of them have at least."""
MOST_FASTER = 1.25
"""By how much the next level of memory may seem to be faster than the one before."""
MOST_DISPATCH = 1e-4
"""Seconds of an empty step, at most: a thread that waits for a core takes longer."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The work that a number of threads do in a second."""

    threads: int
    flops: float
    bytes: float
    """Bytes from main memory in a second."""
    levels: tuple[tuple[int, float, float], ...]
    """For each level: bytes that all threads hold together, bytes read in a second, and bytes from step to step."""
    dispatch: float
    """Seconds of an empty step."""
    int8: float = 0.0
    """Multiplications and additions of bytes in a second; 0 where no instruction multiplies them."""
    flops_seen: int = 1
    """Rounds in which the machine came near its peak."""
    bytes_seen: int = 1
    """Rounds in which it came near its bandwidth."""

    def better(self, other: Figures) -> Figures:
        """The better of two measurements, figure by figure: noise only makes a machine slower."""
        if (self.threads, [size for size, *_ in self.levels]) != (other.threads, [size for size, *_ in other.levels]):
            return self
        levels = [
            (size, max(read, also), max(passed, too))
            for (size, read, passed), (_, also, too) in zip(self.levels, other.levels, strict=True)
        ]
        flops, bytes = max(self.flops, other.flops), max(self.bytes, other.bytes)
        return Figures(
            self.threads,
            flops,
            bytes,
            tuple(levels),
            min(self.dispatch, other.dispatch),
            max(self.int8, other.int8),
            sum(f.flops_seen for f in (self, other) if f.flops >= NEAR_FLOPS * flops),
            sum(f.bytes_seen for f in (self, other) if f.bytes >= NEAR_BYTES * bytes),
        )


def unsettled(figures: Sequence[Figures], enough: int) -> str:
    """Which figure was not seen often enough to be the machine's; empty where all were."""
    for one in figures:
        for what, seen, best in (
            ("peak", one.flops_seen, f"{_giga(one.flops)} GFLOP/s"),
            ("memory bandwidth", one.bytes_seen, f"{_giga(one.bytes)} GB/s"),
        ):
            if seen < enough:
                return f"only {seen} of {enough} rounds came near the {what} of {_threads(one)}, {best}"
    return ""


def contradiction(figures: Sequence[Figures], described: Callable[[int], Machine], threads_per_core: int) -> str:
    """What no idle machine of this kind would show; empty where the figures are plausible."""
    first = figures[0]
    peak = described(first.threads).flops_per_second
    if first.flops < LEAST_OF_DESCRIBED * peak:
        return f"{_giga(first.flops)} GFLOP/s with {_threads(first)}, where the processor describes {_giga(peak)}"
    for one in figures:
        cores = max(1.0, one.threads / threads_per_core) / max(1.0, first.threads / threads_per_core)
        if one.flops < LEAST_GAIN * cores * first.flops:
            return f"{_giga(one.flops)} GFLOP/s with {_threads(one)}, and {_giga(first.flops)} with {_threads(first)}"
        if one.bytes < LEAST_READ * first.bytes:
            return f"{_giga(one.bytes)} GB/s with {_threads(one)}, and {_giga(first.bytes)} with {_threads(first)}"
        rates = [*((f"blocks of {size >> 10} KiB", read) for size, read, _ in one.levels), ("main memory", one.bytes)]
        for (near, fast), (far, slow) in pairwise(rates):
            if slow > MOST_FASTER * fast:
                return f"{_giga(slow)} GB/s from {far}, and {_giga(fast)} from {near}, with {_threads(one)}"
        if one.dispatch > MOST_DISPATCH:
            return f"{one.dispatch * 1e6:.0f} µs for an empty step with {_threads(one)}"
    return ""


def _threads(one: Figures) -> str:
    return f"{one.threads} {'thread' if one.threads == 1 else 'threads'}"


def _giga(number: float) -> str:
    return f"{number / 1e9:.3g}"


__all__ = ["Figures", "contradiction", "unsettled"]
