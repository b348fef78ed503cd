"""The kernels that an attention may have: by warpgroups where conditions allow it and the estimate is lower, else by
warps.

Both are estimated in cycles of a multiprocessor (`AttentionTimings`, docs/design/0018). A round is 64 queries by 64
keys; a warp has 16 of the queries, and tensor cores of its own quarter of the multiprocessor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from dovetail.declare.machine import estimate
from dovetail.ir.dtype import f32
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.attention.fma import FmaAttend, fma_bytes
from dovetail.kernels.gpu.attention.sources import AttendSources, narrow_sources_of, sources_of
from dovetail.kernels.gpu.attention.tile import (
    GROUP_WARPS,
    LANE_KEYS,
    MOST_PARTS,
    AttendTile,
    ClusterTile,
    FmaAttendTile,
    GroupTile,
    LaneTile,
)
from dovetail.kernels.gpu.attention.writer import writer_of
from dovetail.kernels.gpu.gemm.block_tile import RESERVED_BYTES
from dovetail.kernels.gpu.gemm.tile import CHUNK, DEPTH, GROUP_ROWS, has_warpgroups
from dovetail.kernels.gpu.policy import FMA_WIDEST
from dovetail.kernels.matrix_instruction import MMA
from dovetail.kernels.request import Role

MOST_TURNS = 2
"""Times 64 queries that a block goes through one after the other: each has instructions of its own."""
HELD = 96
"""Registers of a thread for queries and sums, so that scores of two rounds and addresses fit too."""
GROUPS = (1, 2)
"""Warpgroups of a block, which share its keys."""
IS_FASTER, LANES_ARE_FASTER = "warpgroups_are_faster", "multiply_adds_are_faster"
"""The conditions that the estimates decide."""
REGISTERS, FEATURE_REGISTERS, APART_REGISTERS = 104, 0.4, -28
"""Of a thread, for each feature, and where two warpgroups share keys, which have no scores of the next round."""

FMA_WARPS = (8, 4, 2, 1)
"""Warps of such a block, 16 queries each."""
FMA_REGISTERS = 168
"""Of a thread."""
MOST_REGISTERS = 255
LANE_QUERIES = 8
"""Queries of a head that lanes multiply without tensor cores, at most."""
LANE_SHARING = (8, 4)
"""Lanes that share the features of a key, the preferred first."""


def offer_attend(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of an attention of 16-bit floats whose warps multiply for themselves."""
    return _offered(of, warp_tile)


def offer_attend_lanes(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The same of few queries in a persistent kernel, by multiply-adds."""
    return _offered(of, lane_tile)


def offer_attend_groups(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The same where four warps multiply together, which is faster in most cases."""
    return _offered(of, group_tile)


def _offered(of: StepProblem[GpuDevice], chosen: Callable[[AttendSources], AttendTile | Refused]) -> Offer | Refused:
    sources = of.once(narrow_sources_of)
    if isinstance(sources, Refused):
        return sources
    if not {*MMA} <= {*sources.device.matrix_instructions}:
        return Refused("warps_multiply_by_mma", sources.device.architecture)
    tile = chosen(sources)
    if isinstance(tile, Refused):
        return tile
    name = "attend_cluster" if isinstance(tile, ClusterTile) else "attend_parts" if tile.parts > 1 else ""
    name = "" if isinstance(tile, LaneTile) else name
    return Offer(lambda: writer_of(sources, tile).job(), name=name, work=lambda: seconds_of(tile, sources.device))


def offer_attend_fma(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of an attention of f32 with several queries, by multiply-adds."""
    sources = of.once(sources_of)
    if isinstance(sources, Refused):
        return sources
    if sources.device.warp != LANES:
        return Refused("warps_have_32_lanes", str(sources.device.warp))
    tile = fma_tile(sources)
    if isinstance(tile, Refused):
        return tile
    name = "attend_fma_parts" if tile.parts > 1 else ""
    return Offer(
        lambda: FmaAttend(sources, tile, fma_resident(tile, sources.device)).job(),
        name=name,
        work=lambda: seconds_of(tile, sources.device),
    )


def warp_tile(sources: AttendSources) -> AttendTile:
    """The tile whose warps multiply for themselves."""
    known = sources.problem, sources.dtype, sources.device, sources.request
    tile = AttendTile.of(*known)
    is_strided = isinstance(tile, ClusterTile) and not sources.copies
    return AttendTile.of(*known, in_clusters=False) if is_strided else tile


def lane_tile(sources: AttendSources) -> LaneTile | Refused:
    """The tile of few queries whose lanes multiply without tensor cores, or why there is none."""
    a, tile = sources.problem, warp_tile(sources)
    if sources.request.role is not Role.PART:
        return Refused("kernel_is_a_part", "a launch", "a part of a resident kernel, which has no other tensor cores")
    if not sources.device.tensor_hertz or sources.request.clock_is_low:
        return Refused("tensor_cores_lower_the_clock", sources.device.architecture)
    if not isinstance(tile, ClusterTile):
        return Refused("blocks_share_keys", f"{tile.parts} blocks for the keys of a head")
    if not isinstance(a.queries, int) or a.queries > LANE_QUERIES:
        return Refused("queries_are_few", f"{a.queries}", f"at most {LANE_QUERIES}")
    if a.d % (LANE_SHARING[-1] * CHUNK) or a.dv % LANES:
        return Refused("features_are_shared_by_lanes", f"{a.d} and {a.dv}", f"multiples of {LANES}")
    if a.softcap is not None or a.fill not in (None, -math.inf) or ("mask" in a.strides and a.filled == "first"):
        return Refused("scores_are_scaled_or_hidden", "a soft cap, or what takes the place of a score")
    sharing = next(n for n in LANE_SHARING if a.d % (n * CHUNK) == 0)
    lanes = LaneTile.by(a, sources.dtype, sources.device, sources.request, LANE_KEYS, sharing=sharing)
    own, other = cycles_of(lanes, sources.device), cycles_of(tile, sources.device)
    if own >= other:
        return Refused(LANES_ARE_FASTER, f"{own:,.0f} cycles", f"less than {other:,.0f}, by tensor cores")
    return lanes


def group_tile(sources: AttendSources) -> GroupTile | Refused:
    """The tile whose warps multiply in groups of four, or why there is none."""
    a, device, warps = sources.problem, sources.device, warp_tile(sources)
    groups = _groups(sources)
    if not has_warpgroups(device):
        return Refused("device_multiplies_by_warpgroups", device.architecture, "wgmma, as sm_90a has it")
    if not sources.request.is_launch:
        return Refused("kernel_is_a_launch", "a part of a resident kernel")
    if a.d % DEPTH or a.dv % DEPTH:
        return Refused("features_fill_lines", f"{a.d} and {a.dv}", f"multiples of {DEPTH}")
    held = a.d // 4 + a.dv // 2
    if held > HELD:
        return Refused("queries_and_sums_fit_registers", f"{held} of a thread", f"at most {HELD}")
    if warps.parts > 1:
        return Refused("a_block_has_all_keys", f"{warps.parts} blocks for the keys of a head")
    if not sources.copies:
        return Refused("factors_are_copied_in_vectors", expected="16 bytes that are adjacent and aligned")
    if groups[0].leaves_out and not sources.wide:
        # Masks that are loaded bool by bool take longer than products.
        return Refused("mask_is_loaded_in_vectors", expected="rows of 16 bools that are adjacent and aligned")
    own, other = min([cycles_of(tile, device) for tile in groups]), cycles_of(warps, device)
    if own >= other:
        return Refused(IS_FASTER, f"{own:,.0f} cycles", f"less than {other:,.0f}, by warps")
    return min(groups, key=lambda tile: cycles_of(tile, device))


def fma_tile(sources: AttendSources) -> FmaAttendTile | Refused:
    """The tile of an attention of f32 with several queries, or why there is none."""
    a, device = sources.problem, sources.device
    if sources.dtype is not f32 or any([kind != "float" for kind in a.cached.values()]):
        return Refused("factors_are_f32", f"{sources.dtype.name}, {' and '.join(a.cached.values())}")
    if a.queries == 1:
        return Refused("queries_are_several", "1")
    if a.rotated is not None:
        return Refused("features_are_not_rotated", str(a.rotated), "rope before the attention")
    if max(a.d, a.dv) > FMA_WIDEST:
        return Refused("features_fit_registers", f"{a.d} and {a.dv}", f"at most {FMA_WIDEST}")
    tiles: list[FmaAttendTile] = []
    for warps in FMA_WARPS:
        whole = FmaAttendTile(a, f32, warps, 1)
        tiles.append(whole)
        parts = _fma_parts(whole, device)
        tiles += [replace(whole, parts=parts)] if parts > 1 else []
    combined = device.timings.attention.combined
    return min(tiles, key=lambda tile: cycles_of(tile, device) + (combined if tile.parts > 1 else 0))


def _fma_parts(tile: FmaAttendTile, device: GpuDevice) -> int:
    """Blocks along keys where queries are few: enough to fill the device. Causal queries see other numbers of them."""
    a = tile.problem
    sizes = [*a.lead, a.heads, a.queries]
    if a.causal or not all([isinstance(size, int) for size in sizes]):
        return 1
    blocks = math.prod([estimate(size) for size in sizes[:-1]]) * math.ceil(estimate(a.queries) / tile.rows)
    rounds = math.ceil(estimate(a.keys) / tile.keys)
    return max(1, min(MOST_PARTS, rounds, 2 * device.multiprocessors // max(1, round(blocks))))


def _groups(sources: AttendSources) -> list[GroupTile]:
    """Blocks of one warpgroup, of two, and of one that goes through all queries where it has all keys at once."""
    a = sources.problem
    tiles = [GroupTile(a, sources.dtype, GROUP_WARPS, splits) for splits in GROUPS]
    turns = -(-a.queries // GROUP_ROWS) if isinstance(a.queries, int) else 1
    if 1 < turns <= MOST_TURNS and tiles[0].few_rounds:
        tiles.append(replace(tiles[0], turns=turns))
    return tiles


def seconds_of(tile: AttendTile, device: GpuDevice) -> float:
    """Seconds that an attention computes."""
    return cycles_of(tile, device) / device.hertz


def cycles_of(tile: AttendTile, device: GpuDevice) -> float:
    """Cycles from the start of the first block to the end of the last; infinite where no block fits."""
    a, fit = tile.problem, _resident(tile, device)
    if fit < 1:
        return math.inf
    heads = math.prod([estimate(size) for size in (*a.lead, a.heads)])
    keys = estimate(a.keys)
    turns = tile.turns if isinstance(tile, GroupTile) else 1
    blocks = heads * math.ceil(estimate(a.queries) / (tile.rows * turns)) * tile.parts / device.multiprocessors
    at_once = min(math.ceil(blocks), fit)
    rounds = turns * math.ceil(keys / (tile.keys * tile.parts))
    # Blocks of causal queries have half of the rounds in the mean, and the longest starts first.
    mean = rounds * (0.5 + 0.5 * tile.rows / max(keys, tile.rows) if a.causal else 1.0)
    around, each = _block_cycles(tile, device), _round_cycles(tile, at_once, device)
    waves = blocks / fit
    # Two waves are not shared out: multiprocessors that have one block less wait for the others.
    waves = waves if waves > 2 else math.ceil(waves)
    return max(around + rounds * each, waves * (around + mean * each))


def _resident(tile: AttendTile, device: GpuDevice) -> int:
    """Blocks of a multiprocessor at once, by shared memory and by registers."""
    item, features = tile.dtype.itemsize, tile.d + tile.dv
    if isinstance(tile, FmaAttendTile):
        return fma_resident(tile, device)
    nbytes = (tile.rows * tile.d + 2 * tile.keys * features) * item
    nbytes += sum([alloc.count * alloc.dtype.itemsize for alloc in tile.shares_allocated()])
    is_apart = isinstance(tile, GroupTile) and tile.is_apart
    registers = REGISTERS + FEATURE_REGISTERS * features + (APART_REGISTERS if is_apart else 0)
    by_registers = device.registers // (tile.threads * min(MOST_REGISTERS, registers))
    return min(device.shared_bytes // nbytes, int(by_registers))


def fma_resident(tile: FmaAttendTile, device: GpuDevice) -> int:
    """The same without tensor cores."""
    by_registers = device.registers // (tile.threads * FMA_REGISTERS)
    return min((device.shared_bytes + RESERVED_BYTES) // (fma_bytes(tile) + RESERVED_BYTES), by_registers)


def _block_cycles(tile: AttendTile, device: GpuDevice) -> float:
    features, t = tile.d + tile.dv, device.timings.attention
    if isinstance(tile, FmaAttendTile):
        return t.fma_block * features
    if isinstance(tile, GroupTile):
        return t.warpgroup_block * features
    share = t.lane_share if isinstance(tile, LaneTile) else t.split_share
    return (t.warp_block + (share * tile.splits if tile.splits > 1 else 0)) * features


def _round_cycles(tile: AttendTile, blocks: int, device: GpuDevice) -> float:
    """Cycles of a round of all blocks of a multiprocessor. Each warp has a quarter of it, and those of a warpgroup all
    four."""
    features, quarters = tile.d + tile.dv, blocks * tile.warps * tile.splits / GROUP_WARPS
    masks, t = "keep" in tile.problem.strides, device.timings.attention
    if isinstance(tile, FmaAttendTile):
        # A warp has one instruction for 32 multiply-adds, and a quarter of the multiprocessor one in a cycle.
        each = 16 * tile.keys * features / LANES
        return t.fma_step + t.fma_share * blocks * features + max(1.0, quarters) * t.fma_factor * each
    if isinstance(tile, GroupTile):
        work = t.warpgroup_start + t.warpgroup_work * features + (t.warpgroup_mask if masks else 0)
        return t.warpgroup_latency * features + quarters * work + (t.shared_keys if tile.is_apart else 0)
    if isinstance(tile, LaneTile):
        # Each element is widened once, and multiplied for each query.
        queries = estimate(tile.problem.queries)
        return max(1.0, quarters) * tile.warp_keys * (features / LANES * (1 + queries) + t.lane_shuffles * queries)
    products = GROUP_ROWS * tile.warp_keys * features / device.timings.gemm.warp_products
    return max(1.0, quarters) * (t.warp_factor * products + (t.warp_mask if masks else 0))


__all__ = [
    "IS_FASTER",
    "LANES_ARE_FASTER",
    "cycles_of",
    "group_tile",
    "offer_attend",
    "offer_attend_fma",
    "offer_attend_groups",
    "offer_attend_lanes",
    "warp_tile",
]
