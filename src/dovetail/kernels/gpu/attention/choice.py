"""Which kernel an attention has: by warpgroups where conditions allow it and the estimate is lower, else by warps.

Both are estimated in cycles of a multiprocessor, fitted to an H200 (docs/design/0018). A round is 64 queries by 64
keys; a warp has 16 of the queries, and tensor cores of its own quarter of the multiprocessor.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dovetail.declare.machine import estimate
from dovetail.ir.dtype import f32
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.attention.fma_tile import fma_bytes
from dovetail.kernels.gpu.attention.sources import AttendSources
from dovetail.kernels.gpu.attention.tile import GROUP_WARPS, MOST_PARTS, AttendTile
from dovetail.kernels.gpu.gemm.block_tile import RESERVED_BYTES
from dovetail.kernels.gpu.gemm.tile import CHUNK, DEPTH, GROUP_ROWS, has_warpgroups
from dovetail.kernels.gpu.gemm.tile_cost import MULTIPLY_CYCLES
from dovetail.kernels.gpu.policy import FMA_WIDEST

MOST_TURNS = 2
"""Times 64 queries that a block goes through one after the other: each has instructions of its own."""
HELD = 96
"""Registers of a thread for queries and sums, so that scores of two rounds and addresses fit too."""
GROUPS = (1, 2)
"""Warpgroups of a block, which share its keys."""
IS_FASTER, LANES_ARE_FASTER = "warpgroups_are_faster", "multiply_adds_are_faster"
"""The conditions that the estimates decide."""
WARP_BLOCK, GROUP_BLOCK = 9.4, 11.5
"""Cycles of a block before its first round and after its last, by warps and by warpgroups, for each feature of a key
and of a value."""
LANE_SHUFFLES = 3
"""Shuffles and what goes with them for each key and query, in instructions of a warp."""
SHARE_CYCLES, LANE_SHARE = 2.6, 0.9
"""The same of warps along keys, which combine what they found: of 16 rows, and of queries without tensor cores."""
WARP_FACTOR = 2.3
"""What a round takes by warps, over its products."""
GROUP_LATENCY, GROUP_START, GROUP_WORK = 4.7, 245, 1.84
"""Cycles of a round by a warpgroup: for each feature, whatever others do meanwhile, and for each warpgroup of the
multiprocessor; the same for each feature."""
APART_CYCLES = 750
"""Further cycles of a round whose keys two warpgroups share."""
WARP_MASK, GROUP_MASK = 2000, 400
"""Further cycles of a round for a mask of bools, by warps and by warpgroups, which load bits ahead."""
REGISTERS, FEATURE_REGISTERS, APART_REGISTERS = 104, 0.4, -28
"""Of a thread, for each feature, and where two warpgroups share keys, which have no scores of the next round."""

FMA_WARPS = (8, 4, 2, 1)
"""Warps of such a block, 16 queries each."""
FMA_REGISTERS = 168
"""Of a thread."""
FMA_FACTOR, FMA_ROUND, FMA_SHARE, FMA_BLOCK = 1.5, 1500, 9, 50
"""What a round takes over its multiply-adds, and further cycles: of a round, of each block in it for each feature, and
of a block before its first round and after its last for each feature. Fitted to eight attentions by blocks of one to
eight warps."""
COMBINED_CYCLES = 7000
"""A second kernel, which combines what blocks found."""

MOST_REGISTERS = 255
LANE_QUERIES = 8
"""Queries of a head that lanes multiply without tensor cores, at most."""
LANE_SHARING = (8, 4)
"""Lanes that share the features of a key, the preferred first."""


def warp_tile(sources: AttendSources) -> AttendTile:
    """The tile whose warps multiply for themselves."""
    tile = AttendTile.of(sources.problem, sources.dtype, sources.device)
    if tile.is_cluster and not sources.copies:
        return AttendTile.of(sources.problem, sources.dtype, replace(sources.device, cluster=0))
    return tile


def lane_tile(sources: AttendSources) -> AttendTile | Refused:
    """The tile of few queries whose lanes multiply without tensor cores, or why there is none."""
    a, tile = sources.problem, warp_tile(sources)
    if not sources.device.as_parts:
        return Refused("kernel_is_a_part", "a launch", "a part of a resident kernel, which has no other tensor cores")
    if not sources.device.tensor_hertz:
        return Refused("tensor_cores_lower_the_clock", sources.device.architecture)
    if not tile.is_cluster:
        return Refused("blocks_share_keys", f"{tile.parts} blocks for the keys of a head")
    if not isinstance(a.queries, int) or a.queries > LANE_QUERIES:
        return Refused("queries_are_few", f"{a.queries}", f"at most {LANE_QUERIES}")
    if a.d % (LANE_SHARING[-1] * CHUNK) or a.dv % LANES:
        return Refused("features_are_shared_by_lanes", f"{a.d} and {a.dv}", f"multiples of {LANES}")
    if a.softcap is not None or a.fill not in (None, -math.inf) or ("mask" in a.strides and a.filled == "first"):
        return Refused("scores_are_scaled_or_hidden", "a soft cap, or what takes the place of a score")
    sharing = next(n for n in LANE_SHARING if a.d % (n * CHUNK) == 0)
    lanes = AttendTile.of(a, sources.dtype, sources.device, sharing)
    own, other = cycles_of(lanes, sources.device), cycles_of(tile, sources.device)
    if own >= other:
        return Refused(LANES_ARE_FASTER, f"{own:,.0f} cycles", f"less than {other:,.0f}, by tensor cores")
    return lanes


def group_tile(sources: AttendSources) -> AttendTile | Refused:
    """The tile whose warps multiply in groups of four, or why there is none."""
    a, device, warps = sources.problem, sources.device, warp_tile(sources)
    groups = _groups(sources)
    if not has_warpgroups(device):
        return Refused("device_multiplies_by_warpgroups", device.architecture, "wgmma, as sm_90a has it")
    if device.as_parts:
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


def fma_tile(sources: AttendSources) -> AttendTile | Refused:
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
    found: list[AttendTile] = []
    for warps in FMA_WARPS:
        whole = AttendTile(a, f32, warps, 1, by_fma=True)
        found.append(whole)
        parts = _fma_parts(whole, device)
        found += [replace(whole, parts=parts)] if parts > 1 else []
    return min(found, key=lambda tile: cycles_of(tile, device) + (COMBINED_CYCLES if tile.parts > 1 else 0))


def _fma_parts(tile: AttendTile, device: GpuDevice) -> int:
    """Blocks along keys where queries are few: enough to fill the device. Causal queries see other numbers of them."""
    a = tile.problem
    sizes = [*a.lead, a.heads, a.queries]
    if a.causal or not all([isinstance(size, int) for size in sizes]):
        return 1
    blocks = math.prod([estimate(size) for size in sizes[:-1]]) * math.ceil(estimate(a.queries) / tile.rows)
    rounds = math.ceil(estimate(a.keys) / tile.keys)
    return max(1, min(MOST_PARTS, rounds, 2 * device.multiprocessors // max(1, round(blocks))))


def _groups(sources: AttendSources) -> list[AttendTile]:
    """Blocks of one warpgroup, of two, and of one that goes through all queries where it has all keys at once."""
    a = sources.problem
    found = [AttendTile(a, sources.dtype, GROUP_WARPS, splits, by_group=True) for splits in GROUPS]
    turns = -(-a.queries // GROUP_ROWS) if isinstance(a.queries, int) else 1
    if 1 < turns <= MOST_TURNS and found[0].few_rounds:
        found.append(replace(found[0], turns=turns))
    return found


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
    blocks = heads * math.ceil(estimate(a.queries) / (tile.rows * tile.turns)) * tile.parts / device.multiprocessors
    at_once = min(math.ceil(blocks), fit)
    rounds = tile.turns * math.ceil(keys / (tile.keys * tile.parts))
    # Blocks of causal queries have half of the rounds in the mean, and the longest starts first.
    mean = rounds * (0.5 + 0.5 * tile.rows / max(keys, tile.rows) if a.causal else 1.0)
    around, each = _block_cycles(tile), _round_cycles(tile, at_once)
    turns = blocks / fit
    # Two turns are not shared out: multiprocessors that have one block less wait for the others.
    turns = turns if turns > 2 else math.ceil(turns)
    return max(around + rounds * each, turns * (around + mean * each))


def _resident(tile: AttendTile, device: GpuDevice) -> int:
    """Blocks of a multiprocessor at once, by shared memory and by registers."""
    item, features = tile.dtype.itemsize, tile.d + tile.dv
    if tile.by_fma:
        return fma_resident(tile, device)
    nbytes = (tile.rows * tile.d + 2 * tile.keys * features) * item
    nbytes += sum([alloc.count * alloc.dtype.itemsize for alloc in tile.shares_allocated()])
    registers = REGISTERS + FEATURE_REGISTERS * features + (APART_REGISTERS if tile.is_apart else 0)
    by_registers = device.registers // (tile.threads * min(MOST_REGISTERS, registers))
    return min(device.shared_bytes // nbytes, int(by_registers))


def fma_resident(tile: AttendTile, device: GpuDevice) -> int:
    """The same without tensor cores."""
    by_registers = device.registers // (tile.threads * FMA_REGISTERS)
    return min((device.shared_bytes + RESERVED_BYTES) // (fma_bytes(tile) + RESERVED_BYTES), by_registers)


def _block_cycles(tile: AttendTile) -> float:
    features = tile.d + tile.dv
    if tile.by_fma:
        return FMA_BLOCK * features
    if tile.by_group:
        return GROUP_BLOCK * features
    share = LANE_SHARE if tile.sharing else SHARE_CYCLES
    return (WARP_BLOCK + (share * tile.splits if tile.splits > 1 else 0)) * features


def _round_cycles(tile: AttendTile, blocks: int) -> float:
    """Cycles of a round of all blocks of a multiprocessor. Each warp has a quarter of it, and those of a warpgroup all
    four."""
    features, quarters = tile.d + tile.dv, blocks * tile.warps * tile.splits / GROUP_WARPS
    masks = "keep" in tile.problem.strides
    if tile.by_fma:
        # A warp has one instruction for 32 multiply-adds, and a quarter of the multiprocessor one in a cycle.
        each = 16 * tile.keys * features / LANES
        return FMA_ROUND + FMA_SHARE * blocks * features + max(1.0, quarters) * FMA_FACTOR * each
    if tile.by_group:
        work = GROUP_START + GROUP_WORK * features + (GROUP_MASK if masks else 0)
        return GROUP_LATENCY * features + quarters * work + (APART_CYCLES if tile.is_apart else 0)
    if tile.sharing:
        # Each element is widened once, and multiplied for each query.
        queries = estimate(tile.problem.queries)
        return max(1.0, quarters) * tile.warp_keys * (features / LANES * (1 + queries) + LANE_SHUFFLES * queries)
    products = GROUP_ROWS * tile.warp_keys * features
    return max(1.0, quarters) * (WARP_FACTOR * MULTIPLY_CYCLES * products + (WARP_MASK if masks else 0))


__all__ = [
    "IS_FASTER",
    "LANES_ARE_FASTER",
    "cycles_of",
    "fma_tile",
    "group_tile",
    "lane_tile",
    "seconds_of",
    "warp_tile",
]
