"""What a convolution step computes, whichever kernel takes it: operands, sizes, and what becomes of the sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16, f16, f32
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.problems.geometry import ConvGeometry
from dovetail.kernels.problems.region_steps import EpilogueSteps, find_convolution
from dovetail.kernels.problems.row_epilogue import RowEpilogue, RowSteps
from dovetail.kernels.spec import SizeFunction, TensorLocations
from dovetail.library.activation import Activation
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.ops.convolution import conv, conv_transpose
from dovetail.plan.liveness import results_of


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """The sizes of a convolution: images, groups, filters and channels of a group, spatial axes, strides of images and
    of channels in bytes; of a residual, strides along all its axes."""

    images: Size
    groups: int
    filters: int
    channels: int
    geometry: ConvGeometry
    steps: tuple[Size, Size]
    residual: tuple[Size, ...] = ()
    strides: tuple[tuple[str, Size], ...] = ()
    """Strides and offsets of the operands and results of an epilogue on rows, by name."""

    def known(self, number: SizeFunction) -> ConvProblem:
        """Replace symbols by the sizes of one run."""
        steps, residual = (number(self.steps[0]), number(self.steps[1])), tuple(map(number, self.residual))
        geometry, strides = self.geometry.known(number), tuple([(name, number(size)) for name, size in self.strides])
        images = number(self.images)
        return replace(self, images=images, geometry=geometry, steps=steps, residual=residual, strides=strides)

    @property
    def is_level(self) -> bool:
        """Whether each image of a residual, if there is one, is laid out as one of the result, and whether the pixels
        of each operand of an epilogue are equally far apart."""
        rows, columns = self.geometry.out
        level = self.residual[1:] in ((), (4 * rows * columns, 4 * columns, 4))
        strides = dict(self.strides)
        names = [name.removesuffix("_row") for name in strides if name.endswith("_row")]
        return level and (rows == 1 or all(strides[f"{n}_row"] == strides[f"{n}_column"] * columns for n in names))

    def sizes_by_name(self, *residual: str) -> dict[str, Size]:
        """Channels, filters, groups and strides, as kernels name their arguments; strides of the residual by name."""
        image, channel = self.steps
        sizes: dict[str, Size] = {
            "channels": self.channels, "filters": self.filters, "groups": self.groups, "image_step": image,
            "group_step": channel * self.channels, "channel_step": channel,
        }  # fmt: skip
        return sizes | dict(zip(residual, self.residual, strict=False)) | dict(self.strides)

    @property
    def sums(self) -> int:
        """Products of a result."""
        return self.channels * self.geometry.taps


def _added_to(value: Value) -> Value:
    """The convolution that a residual is added to."""
    options = {name: value.attrs[name] for name in ("strides", "dilations", "padding", "groups")}
    return conv(*value.operands[:2], **options)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, its bias, what is added to it, and its activation."""

    result: Value
    x: Value
    w: Value
    b: Value | None = None
    residual: Value | None = None
    act: Activation | EpilogueSteps = "none"
    call: Value | None = None
    """The convolution inside a region; None where the value is one itself."""
    region: Value | None = None
    has_row_steps: bool = False
    """Whether a region has steps that run on finished rows."""
    rows: RowEpilogue | None = None
    """Those steps, once they are code."""
    row_steps: RowSteps | None = None

    @property
    def is_rounded_to_16_bits(self) -> bool:
        """Whether the steps of its region see no more of its result than a 16-bit float holds."""
        if self.call is None or self.region is None:
            return False
        results = self.region.attrs["body"].results
        readers = [v for v in walk(results) if self.call in v.operands]
        return self.call not in results and all(v.op is ops.cast and v.dtype in (f16, bf16) for v in readers)

    @staticmethod
    def of(value: Value) -> Convolution | None:
        """The convolution that a value is."""
        inside = find_convolution(value)
        if inside is not None and inside.call.op is not conv_transpose:
            operands, result = inside.operands, results_of(value)[0]
            residual = operands.get("residual")
            if residual is not None and result.shape != _added_to(inside.call).shape:
                return None
            act, above = inside.applied, inside.steps is None
            return Convolution(
                result, operands["x"], operands["w"], operands.get("b"), residual, act, inside.call, value, above
            )  # fmt: skip
        if value.op is conv_bias_act:
            call = conv_bias_act.of(value)
            if call.residual is not None and value.shape != _added_to(value).shape:
                return None
            return Convolution(value, call.x, call.w, call.b, call.residual, call.act)
        x, w = value.operands[:2] if value.op is conv else (None, None)
        return None if x is None or w is None else Convolution(value, x, w)

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Strides, dilations, padding and groups."""
        return (self.result if self.call is None else self.call).attrs

    @property
    def epilogue(self) -> Epilogue:
        """What becomes of its sums."""
        return Epilogue(self.act, self.b is not None, self.residual is not None, self.rows)

    @property
    def is_dense(self) -> bool:
        """Whether it is of f32 along one or two axes, with a window of a known size."""
        read = [v for v in (self.x, self.residual, self.w, self.b) if v is not None]
        plain = self.x.rank <= 4 and all(v.dtype is f32 for v in read)
        return plain and self.w.tensor.is_static and 0 not in self.w.shape

    def has_bound_weights(self, locations: TensorLocations) -> bool:
        """Whether its weights are known when parameters are bound."""
        return locations.is_bound(self.w) and (self.b is None or locations.is_bound(self.b))

    def problem(self, locations: TensorLocations) -> ConvProblem:
        """Its sizes and strides."""
        attrs, steps, groups = self.attrs, locations(self.x).strides, int(self.attrs["groups"])
        geometry = ConvGeometry.of(
            self.x.shape[2:], steps[2:], self.result.shape[2:], [known(s) for s in self.w.shape[2:]],
            attrs["strides"], attrs["dilations"], attrs["padding"],
        )  # fmt: skip
        filters, channels = known(self.w.shape[0]) // groups, known(self.w.shape[1])
        residual: tuple[Size, ...] = ()
        if self.residual is not None:
            first, channel, *spatial = locations(self.residual).strides
            residual = (
                (first, channel, *spatial)
                if len(spatial) == 2
                else (first, channel, spatial[0] * geometry.out[1], spatial[0])
            )
        strides = () if self.row_steps is None else tuple(self.row_steps.strides.items())
        step = (steps[0], steps[1])
        return ConvProblem(self.x.shape[0], groups, filters, channels, geometry, step, residual, strides)


def known(size: Size) -> int:
    """A size of what is bound."""
    assert isinstance(size, int), "what is bound has sizes that are known"
    return size
