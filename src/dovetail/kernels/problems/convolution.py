"""What a convolution step computes, whichever kernel takes it: operands, sizes, and what becomes of the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16, f16, f32
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.value import Op, Value, make
from dovetail.ir.walk import walk
from dovetail.kernels.problems.epilogue import Epilogue, RowSteps
from dovetail.kernels.problems.geometry import ConvGeometry
from dovetail.kernels.spec import SizeFunction, TensorLocations
from dovetail.library.activation import Activation, activation
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.ops.convolution import conv, conv_transpose
from dovetail.ops.region import anchor_of, region
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


ANCHORS = (conv, conv_bias_act, conv_transpose)
AXES = ("image", "channel", "row", "column")
"""The axes of a result. Where all operands are level, `column` counts the pixels of an image."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, its bias, what is added to it, and the steps on its sums."""

    result: Value
    x: Value
    w: Value
    b: Value | None
    residual: Value | None
    call: Value
    """The convolution of the arguments of the step, bias, residual and activation included."""
    results: tuple[Value, ...]
    """What the step makes of it."""
    act: Activation
    is_rounded_to_16_bits: bool
    """Whether steps see no more of it than a 16-bit float holds, after its activation."""
    epilogue: Epilogue = Epilogue()
    """What becomes of its sums, once that is code."""
    row_steps: RowSteps | None = None

    @staticmethod
    def of(value: Value, anchors: Sequence[Op] = (conv, conv_bias_act)) -> Convolution | None:
        """The convolution that a value is, or that is the anchor of a region."""
        if value.op is region:
            call, results = anchor_of(value.attrs["body"]), value.attrs["body"].results
            if call is None or any(v.op is not leaf.ARGUMENT for v in call.operands):
                return None
        elif value.op not in anchors:
            return None
        else:
            call = value.with_operands(tuple([leaf.argument(i, v.tensor) for i, v in enumerate(value.operands)]))
            results = (call,)
        if call.op not in anchors:
            return None
        read: dict[str, Value | None] = dict(zip(("x", "w"), call.operands, strict=False))
        readers = [v for v in walk(results) if call in v.operands]
        is_rounded = call not in results and all(v.op is ops.cast and v.dtype in (f16, bf16) for v in readers)
        act: Activation = "none"
        if call.op is conv_bias_act:
            inside = conv_bias_act.of(call)
            read |= {"b": inside.b, "residual": inside.residual}
            act = inside.act
            if inside.residual is not None and call.shape != _without_residual(call).shape:
                return None
        operands = {name: value.operands[int(v.attrs["index"])] for name, v in read.items() if v is not None}
        x, w, b, residual = map(operands.get, ("x", "w", "b", "residual"))
        assert x is not None and w is not None, "every convolution has them"
        return Convolution(results_of(value)[0], x, w, b, residual, call, results, act, is_rounded)

    @property
    def sums(self) -> Value:
        """The convolution without its activation."""
        if self.act == "none":
            return self.call
        return make(self.call.op, self.call.operands, {**self.call.attrs, "act": "none"})

    @property
    def results_of_sums(self) -> tuple[Value, ...]:
        """What the step makes of the sums: the activation, then the other steps."""
        activated = activation(self.act, self.sums)
        changed = rebuild_values(self.results, lambda v, _: activated if v is self.call else None)
        return tuple([changed[r] for r in self.results])

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Strides, dilations, padding and groups."""
        return self.call.attrs

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


def _without_residual(call: Value) -> Value:
    """The convolution that a residual is added to."""
    options = {name: call.attrs[name] for name in ("strides", "dilations", "padding", "groups")}
    return conv(*call.operands[:2], **options)


def known(size: Size) -> int:
    """A size of what is bound."""
    assert isinstance(size, int), "what is bound has sizes that are known"
    return size
