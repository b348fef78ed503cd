"""A step as a convolution, read once for all kernels."""

from __future__ import annotations

from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem
from dovetail.targets.cpu.conv.epilogue import WithRows, with_rows


def convolution_of(of: StepProblem[CpuDevice]) -> tuple[WithRows, ConvProblem] | Refused:
    """A step as a convolution."""
    plain = Convolution.of(of.value)
    if plain is None:
        return Refused("step_is_a_convolution", of.value.op.name, "one, with an epilogue that kernels apply")
    if not plain.is_dense:
        return Refused("convolution_is_of_f32", str(of.value.type), "f32 along one or two axes")
    found = with_rows(plain, of)
    return found if isinstance(found, Refused) else (found, found.convolution.problem(of.locations))


def with_bound_weights(of: StepProblem[CpuDevice]) -> tuple[WithRows, ConvProblem] | Refused:
    """A step as a convolution with weights that are known when parameters are bound."""
    read = of.once(convolution_of)
    if isinstance(read, Refused) or read[0].convolution.has_bound_weights(of.locations):
        return read
    return Refused("weights_are_bound", "weights of a run", "parameters, which are packed before the run")


def with_weights_of_a_run(of: StepProblem[CpuDevice]) -> tuple[WithRows, ConvProblem] | Refused:
    """A step as a convolution with weights that a run computes, or is given."""
    read = of.once(convolution_of)
    if isinstance(read, Refused) or not read[0].convolution.has_bound_weights(of.locations):
        return read
    return Refused("weights_are_of_a_run", "parameters", "weights that change, which are packed in the run")


__all__ = ["convolution_of", "with_bound_weights", "with_weights_of_a_run"]
