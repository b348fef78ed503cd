"""The transpose of a convolution: a convolution over pixels with zeros between them, by weights turned round."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.errors import GraphError
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Field
from dovetail.kernels.spec import Job, Packed, TensorLocations
from dovetail.ops.convolution import conv_transpose
from dovetail.plan.plan import Step
from dovetail.targets.cpu.conv.direct.kernel import Shape, conv_text
from dovetail.targets.cpu.conv.direct.variant import Candidate, Direct, Expanse, Packing, first_of, known
from dovetail.targets.cpu.conv.epilogue import Epilogue
from dovetail.targets.cpu.conv.region_steps import find_convolution


def make_conv_transpose(step: Step, locations: TensorLocations, vectors: CpuDevice) -> Job | None:
    """The job of the transpose of a convolution with weights that are known when parameters are bound."""
    value = step.value
    inside = find_convolution(value)
    call = value if inside is None else inside.call
    if call.op is not conv_transpose or value.rank > 4 or value.dtype is not f32:
        return None
    x, w = value.operands
    if 0 in w.shape or not locations.is_bound(w):
        return None
    attrs, groups = call.attrs, int(call.attrs["groups"])
    filters, channels = known(w.shape[1]), known(w.shape[0]) // groups
    window = [known(size) for size in w.shape[2:]]
    before = [(n - 1) * d - p for n, d, p in zip(window, attrs["dilations"], attrs["padding"], strict=False)]
    ones = (1,) * len(window)
    steps = locations(x).strides
    field = Field.of(x.shape[2:], steps[2:], value.shape[2:], window, ones, attrs["dilations"], before)
    shape = Shape.of(vectors, filters, Epilogue() if inside is None else Epilogue(inside.steps), field.taps == 1, True)
    turned = Packed(w, f"conv transpose {groups} {shape.rows}", Turning(groups, shape.rows))
    bindings: dict[str, Value | Packed] = {"x": x, "w": turned, "y": value}
    apart = (*(1,) * (2 - len(window)), *attrs["strides"])
    try:
        expanse = Expanse(x.shape[0], groups, filters, channels, field, (steps[0], steps[1]))
        return first_of([Candidate(bindings, Direct(expanse, shape, apart), lambda: conv_text(shape), "direct")])
    except GraphError:
        # Sizes that are too long to be written down.
        return None


@dataclass(frozen=True, slots=True)
class Turning:
    """Weights [c, m / groups, *window] as those of a convolution, [m, c / groups, *window], and packed as those."""

    groups: int
    rows: int

    def __call__(self, w: Array) -> Array:
        split = w.reshape((self.groups, w.shape[0] // self.groups, *w.shape[1:])).swapaxes(1, 2)
        turned = split.reshape((self.groups * w.shape[1], w.shape[0] // self.groups, *w.shape[2:]))
        ends = (slice(None), slice(None), *(slice(None, None, -1) for _ in w.shape[2:]))
        return Packing(self.groups, self.rows)(turned[ends])
