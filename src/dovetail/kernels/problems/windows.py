"""A convolution as a product of matrices: pixels × (taps, channels) by (taps, channels) × filters, with an epilogue."""

from __future__ import annotations

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused, StepProblem
from dovetail.kernels.loops.along import Along
from dovetail.kernels.loops.body import is_compiled, is_number, reads
from dovetail.kernels.problems.contraction import Contraction

CONVOLUTIONS = (ops.conv, ops.conv_transpose)


@dataclass(frozen=True, slots=True)
class Windowed:
    """A convolution and the elementwise steps on its sums."""

    contraction: Contraction
    axes: tuple[Along, ...]
    """The spatial axes under the window."""
    window: tuple[int, ...]
    groups: int
    filters: int
    """Of a group."""
    channels: int
    """Of a group."""

    @property
    def value(self) -> Value:
        """The convolution."""
        return self.contraction.products[0]

    @property
    def x(self) -> Value:
        return self.value.operands[0]

    @property
    def w(self) -> Value:
        return self.value.operands[1]

    @property
    def is_transposed(self) -> bool:
        return self.value.op is ops.conv_transpose

    @property
    def is_point(self) -> bool:
        """Whether each result sees one pixel, its own."""
        still = all(a.stride == 1 and a.before == 0 and a.size == a.out for a in self.axes)
        return still and all(n == 1 for n in self.window)

    @property
    def is_depthwise(self) -> bool:
        """Whether each filter sees one channel."""
        return self.channels == 1 and self.groups > 1 and not self.is_transposed


def find_windowed(of: StepProblem[object]) -> Windowed | Refused:
    """A step as one convolution with an elementwise epilogue."""
    body = of.body
    convolutions = [v for v in body.order if v.op in CONVOLUTIONS]
    if len(convolutions) != 1:
        return Refused("body_is_one_convolution", str(len(convolutions)), "1")
    value = convolutions[0]
    if any(v not in body.views for v in value.operands):
        return Refused("factors_are_operands", "a factor that is computed")
    odd = [v.dtype.name for v in value.operands if not body.scalars.has_dtype(v.dtype) or v.dtype is bool_]
    if odd:
        return Refused("factors_are_numbers", ", ".join(odd))
    known = {*body.order, *body.views}
    others = [v for v in body.order if v is not value]
    for v in others:
        if not is_compiled(v, body.scalars) or not all(x in known or is_number(x) for x in v.operands):
            return Refused("epilogue_is_compiled", v.op.name, "elementwise steps")
    if any(r.shape != value.shape for r in body.results):
        return Refused("results_have_the_shape_of_the_convolution", ", ".join(str(r.type) for r in body.results))
    x, w = value.operands
    sizes: tuple[Size, ...] = w.shape
    if not all(isinstance(n, int) and n > 0 for n in sizes):
        return Refused("filters_have_known_sizes", str(w.type))
    first, second, *window = [n for n in sizes if isinstance(n, int)]
    attrs, groups = value.attrs, int(value.attrs["groups"])
    axes = tuple(
        Along(x.shape[2 + i], value.shape[2 + i], attrs["strides"][i], attrs["dilations"][i], attrs["padding"][i])
        for i in range(len(window))
    )
    read = {operand for v in others for operand in v.operands}
    contraction = Contraction(body, (value,), 1, tuple(v for v in reads(body) if v in read))
    transposed = value.op is ops.conv_transpose
    filters, channels = (second, first // groups) if transposed else (first // groups, second)
    return Windowed(contraction, axes, tuple(window), groups, filters, channels)


__all__ = ["CONVOLUTIONS", "Windowed", "find_windowed"]
