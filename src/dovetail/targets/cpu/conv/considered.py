"""The kernels that were considered for a convolution, and why one of them is taken: data for reports."""

from __future__ import annotations

from dovetail.declare.machine import Cost, Machine
from dovetail.ir.dim import Size
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cpu.conv.candidate import Candidate, ConvTiler
from dovetail.targets.cpu.conv.direct.variant import direct
from dovetail.targets.cpu.conv.rows import with_rows
from dovetail.targets.cpu.conv.select import declined, offers
from dovetail.targets.cpu.conv.winograd.variant import Winograd
from dovetail.targets.target import Considered


def considered(
    step: Step, locations: TensorLocations, device: CpuDevice, machine: Machine | None = None
) -> list[Considered]:
    """Every kernel of the table, in the order of preference; where sizes are not known, none is taken yet."""
    plain = Convolution.of(step.value)
    if plain is None or not plain.is_served(locations):
        return []
    above = with_rows(plain, step, locations, device)
    if above is None:
        return []
    found, _ = above
    problem = found.problem(locations)
    rows: list[Considered] = []
    taken = ""
    for name, offer in [*offers(found, problem, device, locations.strict), ("", [direct(found, problem, device)])]:
        if isinstance(offer, str):
            rows.append(Considered(name, False, offer))
            continue
        for one in offer:
            row = _considered(one, taken, device, machine)
            taken = row.name if row.taken else taken
            rows.append(row)
    return rows


def _considered(one: Candidate, taken: str, device: CpuDevice, machine: Machine | None) -> Considered:
    if not one.is_known:
        return Considered(one.name, False, "decided when sizes are known")
    reason = declined(one.tiler.problem, one.tiler)
    if reason is not None:
        return Considered(one.name, False, reason)
    seconds = None if machine is None else estimated_seconds(one.tiler, device, machine)
    return Considered(one.name, not taken, f"{taken} comes first" if taken else "", seconds)


def estimated_seconds(tiler: ConvTiler, device: CpuDevice, machine: Machine) -> float | None:
    """The machine model's estimate of one call: the products of its tiles, empty lanes included, and its traffic."""
    of = tiler.problem
    tiling = tiler.tiling(of)
    if tiling is None:
        return None
    # The work of a tile counts pairs of vector FMAs.
    flops = tiling.tiles * tiling.work * 4 * device.lanes
    weights = _weights(of, tiler)
    (height, width), (rows, columns) = of.geometry.sizes, of.geometry.out
    moved = 4 * of.images * of.groups * (height * width * of.channels + rows * columns * of.filters)
    return machine.seconds(Cost(flops, moved + weights, weights, flops, "conv"))


def _weights(of: ConvProblem, tiler: ConvTiler) -> Size:
    """Bytes of the weights; Winograd's are transformed."""
    taps = tiler.scheme.spots if isinstance(tiler, Winograd) else of.geometry.taps
    return 4 * of.groups * of.filters * of.channels * taps
