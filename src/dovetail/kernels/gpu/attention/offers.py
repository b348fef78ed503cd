"""The kernels that an attention may have, with their estimates."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.choice import fma_tile, group_tile, lane_tile, seconds_of, warp_tile
from dovetail.kernels.gpu.attention.fma import FmaAttend
from dovetail.kernels.gpu.attention.sources import AttendSources, narrow_sources_of, sources_of
from dovetail.kernels.gpu.attention.tile import AttendTile
from dovetail.kernels.gpu.attention.writer import AttendWriter
from dovetail.kernels.matrix_instruction import LANES, MMA


def offer_attend(of: StepProblem[GpuDevice | None]) -> Offer | Refused:
    """The kernel of an attention of 16-bit floats whose warps multiply for themselves."""
    return _offered(of, warp_tile)


def offer_attend_lanes(of: StepProblem[GpuDevice | None]) -> Offer | Refused:
    """The same of few queries in a resident kernel, by multiply-adds."""
    return _offered(of, lane_tile)


def offer_attend_groups(of: StepProblem[GpuDevice | None]) -> Offer | Refused:
    """The same where four warps multiply together, which is faster in most cases."""
    return _offered(of, group_tile)


def _offered(
    of: StepProblem[GpuDevice | None], chosen: Callable[[AttendSources], AttendTile | Refused]
) -> Offer | Refused:
    found = of.once(narrow_sources_of)
    if isinstance(found, Refused):
        return found
    if not {*MMA} <= {*found.device.matrix_instructions}:
        return Refused("warps_multiply_by_mma", found.device.architecture)
    tile = chosen(found)
    if isinstance(tile, Refused):
        return tile
    name = "attend_cluster" if tile.is_cluster else "attend_parts" if tile.parts > 1 else ""
    name = "" if tile.sharing else name
    return Offer(lambda: AttendWriter(found, tile).job(), name=name, work=lambda: seconds_of(tile, found.device))


def offer_attend_fma(of: StepProblem[GpuDevice | None]) -> Offer | Refused:
    """The kernel of an attention of f32 with several queries, by multiply-adds."""
    found = of.once(sources_of)
    if isinstance(found, Refused):
        return found
    if found.device.warp != LANES:
        return Refused("warps_have_32_lanes", str(found.device.warp))
    tile = fma_tile(found)
    if isinstance(tile, Refused):
        return tile
    name = "attend_fma_parts" if tile.parts > 1 else ""
    return Offer(lambda: FmaAttend(found, tile).job(), name=name, work=lambda: seconds_of(tile, found.device))


__all__ = ["offer_attend", "offer_attend_fma", "offer_attend_groups", "offer_attend_lanes"]
