"""The rows of convolutions in the selection table, in the order of preference.

Each engine says which problems it takes, which sizes it declines and what it costs; what depends on sizes is asked when
they are known, if need be as a run is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from dovetail.kernels.choice import Answer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem
from dovetail.targets.cpu.conv.candidate import Candidates, with_bound_weights
from dovetail.targets.cpu.conv.conv1d import offer_conv1d
from dovetail.targets.cpu.conv.depthwise import depthwise
from dovetail.targets.cpu.conv.direct import direct
from dovetail.targets.cpu.conv.few_channels import few_channels
from dovetail.targets.cpu.conv.few_pixels import few_pixels
from dovetail.targets.cpu.conv.few_pixels_kxk import few_pixels_kxk
from dovetail.targets.cpu.conv.of_a_run import offer_direct, offer_few_results
from dovetail.targets.cpu.conv.pointwise import pointwise
from dovetail.targets.cpu.conv.pointwise_packed import pointwise_packed
from dovetail.targets.cpu.conv.transposed import offer_transposed
from dovetail.targets.cpu.conv.winograd.rounding import schemes_for
from dovetail.targets.cpu.conv.winograd.variant import winograd
from dovetail.targets.runtime.selection import Row

Finder: TypeAlias = Callable[[Convolution, ConvProblem, CpuDevice], Candidates]
"""The kernels of an engine for a problem, or the condition that refuses it."""


def _row(name: str, find: Finder) -> Row[CpuDevice]:
    return Row(name, partial(_answer, find))


def _answer(find: Finder, of: StepProblem[CpuDevice]) -> Answer:
    read = of.once(with_bound_weights)
    if isinstance(read, Refused):
        return read
    conv, problem = read
    candidates = find(conv.convolution, problem, of.device)
    if isinstance(candidates, Refused):
        return candidates
    sharing = [replace(one, shared=conv.shared) for one in candidates]
    refusals = [one.tiler.declines(one.tiler.problem) if one.is_known else None for one in sharing]
    offers = [one.offer() for one, refusal in zip(sharing, refusals, strict=True) if refusal is None]
    return offers or next(refusal for refusal in refusals if refusal is not None)


def _answer_winograd(of: StepProblem[CpuDevice]) -> Answer:
    read = of.once(with_bound_weights)
    if isinstance(read, Refused):
        return read
    if of.locations.strict:
        return Refused("sums_keep_their_order", "transforms")
    return _answer(partial(winograd, schemes_for(read[0].convolution, of.locations)), of)


ROWS: Sequence[Row[CpuDevice]] = (
    Row("conv1d", offer_conv1d),
    Row("winograd", _answer_winograd),
    _row("depthwise", depthwise),
    _row("few_channels", few_channels),
    _row("pointwise_packed", pointwise_packed),
    _row("few_pixels_kxk", few_pixels_kxk),
    _row("few_pixels", few_pixels),
    _row("pointwise", pointwise),
    _row("direct", direct),
    Row("few_results", offer_few_results),
    Row("direct_of_a_run", offer_direct),
)
"""The kernels of convolutions, in the order of preference."""

TRANSPOSED_ROWS: Sequence[Row[CpuDevice]] = (Row("direct", offer_transposed),)
"""The kernels of transposed convolutions."""

__all__ = ["ROWS", "TRANSPOSED_ROWS"]
