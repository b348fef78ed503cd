"""Figures of a GPU that estimates of kernels use, by architecture: fitted on a card, never constants in code.

Cycles are those of one multiprocessor. A rate is what one multiprocessor does in a cycle, where nothing else is said.
`python -m benchmarks.cuda.fit_timings` measures a card and prints what differs from its file.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from dovetail.dataclass import dataclass

FOLDER = Path(__file__).parent
DEFAULT = "sm_90"
"""The architecture whose figures those without a file have."""


@dataclass(frozen=True, slots=True)
class CardTimings:
    """The card on which figures were fitted, and what all of it does in a second."""

    name: str
    multiprocessors: int
    hertz: float
    tensor_hertz: float
    """Its clock while tensor cores multiply."""
    tensor_flops: float
    """By tensor cores, of 16-bit floats."""
    f32_flops: float
    f64_flops: float
    bytes_per_second: float
    launch_seconds: float
    """From one kernel of a graph to the next."""
    host_seconds: float
    """Of a call of a step on the host."""
    host_bytes_per_second: float
    """To the host and back, and through the step there."""


@dataclass(frozen=True, slots=True)
class LaunchTimings:
    """Seconds between two kernels, or between two levels of a persistent kernel, and when kernels may start early."""

    launch: float
    """From kernel to kernel of a graph, each of which starts after the one before it."""
    dependent_launch: float
    """The same where a kernel starts while the one before it still runs."""
    message: float
    """From level to level where blocks receive what others send."""
    barrier: float
    """The same where they wait at a barrier of the grid, and then read from L2."""
    arrival: float
    """The same before a GEMM whose weights are in shared memory: its estimate has what it reads."""
    hidden: float
    """The share of the time of reading weights that passes while blocks wait."""
    pause: int
    """Cycles after a level in which blocks look for no messages."""
    dependent_intensity: float
    """Operations for each byte up to which all kernels of a program may go for dependent launches to pay."""
    attention_intensity: float
    """The share of that which an attention may have."""


@dataclass(frozen=True, slots=True)
class GemmTimings:
    """A GEMM on tensor cores: rates of products and copies, latencies, and what split-K costs."""

    warp_products: float
    """Multiply-adds in a cycle by `mma`."""
    warpgroup_products: float
    """The same by `wgmma`."""
    copied_bytes: float
    """Bytes in a cycle by cp.async."""
    stage: float
    """Latency of a stage by cp.async."""
    step: float
    """Latency of 32 bytes of k in it."""
    fragment: float
    """The same of each 16×8 product of a warp."""
    start: float
    """Cycles before the first stage of a producer is full."""
    k_step: float
    """Cycles of a K step of a producer, at least."""
    tma_bytes: float
    """Bytes in a cycle by the TMA where all multiprocessors copy, with split-K and convolutions."""
    lone_tma_bytes: float
    """The same where one multiprocessor copies, and in a GEMM that is not split."""
    far_tma_bytes: float
    """The same where operands do not fit L2."""
    straddling_tma_bytes: float
    """The same of lines that begin in the middle of a line of L2, where all multiprocessors copy."""
    results: float
    """Results in a cycle after split-K and of convolutions."""
    narrow_results: float
    """Results of 16 bits in a cycle through shared memory."""
    wide_results: float
    """The same of accumulators that go through shared memory."""
    memory_bytes: float
    """A multiprocessor's share of the bandwidth of memory, in bytes of a cycle."""
    clustered_share: float
    """The share of multiprocessors with a tile from which on clusters copy columns."""
    clustered_pace: float
    """How much longer copies than products take where clusters gain."""
    sum_launch: float
    """Cycles of a second kernel that adds up the parts of split-K."""
    joined_sum: float
    """The same in a kernel that runs anyway."""
    split: float
    """Cycles for each part more than two that it loads."""
    producer_sum: float
    """Further cycles of either after blocks with a producer."""
    producer_split: float
    """Cycles for each part more than two after these."""


@dataclass(frozen=True, slots=True)
class FmaTimings:
    """A GEMM without tensor cores."""

    products: float
    """Multiply-adds of f32 in a cycle."""
    pace: float
    """How much longer the products of a stage take than they would without anything else."""
    shared_read: float
    """Cycles for each element that a thread reads of shared memory, where that takes longer."""
    stage: float
    """Latency of a stage, whose copies are awaited."""
    lone: float
    """How much longer the work of a block takes if it is alone."""
    sum: float
    """Cycles to add up parts beyond those of the kernel that does."""
    split: float
    """The same for each part more than two."""
    split_byte: float
    """Cycles of all multiprocessors together for a byte that goes to the workspace or comes from there."""


@dataclass(frozen=True, slots=True)
class GemvTimings:
    """A skinny GEMM whose operands are in shared memory, and what it may start with."""

    read: float
    """Latency of the first rows of a tile, and of its results."""
    norm: float
    """Cycles of a norm that it starts with."""
    norm_row: float
    """The same for each row of a warp."""
    attention: float
    """Cycles of an attention that it starts with."""
    attention_head: float
    """The same for each head of a warp."""
    attention_bytes: float
    """Bytes of keys and values that it copies in a cycle."""


@dataclass(frozen=True, slots=True)
class AttentionTimings:
    """An attention. A K step is 64 queries by 64 keys; a feature is one of a key or of a value."""

    warp_block: float
    """Cycles of a block before its first K step and after its last, for each feature, by `mma`."""
    warpgroup_block: float
    """The same by `wgmma`."""
    warp_factor: float
    """What a K step takes by `mma`, over its products."""
    warp_mask: float
    """Further cycles of a K step for a mask of bools."""
    split_share: float
    """Cycles for each feature of warps along keys, which combine their results."""
    lane_share: float
    """The same of queries without tensor cores."""
    lane_shuffles: float
    """Shuffles and what goes with them for each key and query, in instructions of a warp."""
    warpgroup_latency: float
    """Cycles of a K step by a warpgroup for each feature, whatever others do meanwhile."""
    warpgroup_start: float
    """Cycles of a K step for each warpgroup of the multiprocessor."""
    warpgroup_work: float
    """The same for each feature."""
    warpgroup_mask: float
    """Further cycles of a K step for a mask of bools, whose bits warpgroups load ahead."""
    shared_keys: float
    """Further cycles of a K step whose keys two warpgroups share."""
    fma_factor: float
    """What a K step takes by multiply-adds, over these."""
    fma_step: float
    """Further cycles of such a K step."""
    fma_share: float
    """The same of each block in it for each feature."""
    fma_block: float
    """Cycles of a block before its first K step and after its last for each feature."""
    combined: float
    """Cycles of a second kernel that combines the results of blocks."""


@dataclass(frozen=True, slots=True)
class GpuTimings:
    """All figures of an architecture."""

    fitted: str
    """What they were fitted by; "" where they are those of another architecture."""
    card: CardTimings
    launches: LaunchTimings
    gemm: GemmTimings
    fma: FmaTimings
    gemv: GemvTimings
    attention: AttentionTimings


_TABLES = ("card", "launches", "gemm", "fma", "gemv", "attention")


@cache
def timings_of(architecture: str) -> GpuTimings:
    """The figures of an architecture such as sm_90a; those of Hopper where it has no file."""
    name = architecture.removesuffix("a")
    tables = read(name if (FOLDER / f"{name}.toml").exists() else DEFAULT)
    return GpuTimings(
        str(tables["fitted"]),
        CardTimings(**tables["card"]),
        LaunchTimings(**tables["launches"]),
        GemmTimings(**tables["gemm"]),
        FmaTimings(**tables["fma"]),
        GemvTimings(**tables["gemv"]),
        AttentionTimings(**tables["attention"]),
    )


def read(name: str) -> dict[str, Any]:
    """The tables of a file, over those of the file that it inherits."""
    own = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    inherits = own.pop("inherits", None)
    if inherits is None:
        return own
    inherited = read(inherits)
    return {"fitted": own.get("fitted", "")} | {table: inherited[table] | own.get(table, {}) for table in _TABLES}


__all__ = [
    "DEFAULT",
    "FOLDER",
    "AttentionTimings",
    "CardTimings",
    "FmaTimings",
    "GemmTimings",
    "GemvTimings",
    "GpuTimings",
    "LaunchTimings",
    "read",
    "timings_of",
]
