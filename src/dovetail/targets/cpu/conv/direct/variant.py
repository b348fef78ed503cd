"""Convolution with its bias, residual and activation, directly: what it is, and how its work is cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dovetail.codegen.llvm.module import Code
from dovetail.ir.dim import Size
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Field
from dovetail.kernels.spec import Job, Number, Packed, Template, TensorLocations, Tiling, Variant
from dovetail.library.activation import Activation
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.ops.convolution import conv, conv_transpose
from dovetail.targets.cpu.conv.direct.kernel import Shape, conv_text
from dovetail.targets.cpu.conv.epilogue import Epilogue
from dovetail.targets.cpu.conv.patch import HEAD
from dovetail.targets.cpu.conv.region_steps import Steps, find_convolution
from dovetail.targets.cpu.denormals import as_before, normal
from dovetail.targets.runtime.aligned import aligned

PART_WORK = 500_000
"""Multiplications of a tile: enough to hide what starting it costs, few enough to share a layer between threads."""


@dataclass(frozen=True, slots=True)
class Expanse:
    """What work is cut by: images, groups, filters and channels of a group, spatial axes, steps between images and
    between channels in bytes; of a residual, steps along all its axes."""

    images: Size
    groups: int
    filters: int
    channels: int
    field: Field
    steps: tuple[Size, Size]
    residual: tuple[Size, ...] = ()

    def known(self, number: Number) -> Expanse:
        """The same with sizes as they are in one run."""
        steps, residual = (number(self.steps[0]), number(self.steps[1])), tuple(map(number, self.residual))
        field = self.field.known(number)
        return replace(self, images=number(self.images), field=field, steps=steps, residual=residual)

    @property
    def is_level(self) -> bool:
        """Whether each image of a residual, if there is one, lies as one of the result."""
        rows, columns = self.field.out
        return self.residual[1:] in ((), (4 * rows * columns, 4 * columns, 4))

    @property
    def sums(self) -> int:
        """Products of a result."""
        return self.channels * self.field.taps


class ConvTiler(Protocol):
    """How the work of one kernel is cut, for sizes that are known now or later."""

    @property
    def expanse(self) -> Expanse: ...

    def __call__(self, number: Number) -> Tiling | None: ...

    def tiling(self, of: Expanse) -> Tiling | None:
        """The cut where all spatial sizes are known; None where another kernel is better."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel that may serve a convolution; its text is written once it is wanted."""

    bindings: Mapping[str, Value | Packed]
    tiler: ConvTiler
    code: Callable[[], Code]
    name: str
    """What reports call it."""

    @property
    def is_known(self) -> bool:
        """Whether sizes tell now whether it is the one."""
        return self.tiler.expanse.field.is_known

    def variant(self) -> Variant:
        """The kernel, for sizes that are known later."""
        return Variant(self._template((), 0), self.bindings, self.tiler)

    def job(self, variants: tuple[Variant, ...] = ()) -> Job | None:
        """The kernel with its work cut for the sizes as they are."""
        tiling = self.tiler.tiling(self.tiler.expanse)
        if tiling is None:
            return None
        return Job(self._template(tiling.sizes, tiling.scratch), self.bindings, tiling.launch, variants=variants)

    def _template(self, sizes: tuple[Size, ...], scratch: Size) -> Template:
        return replace(self.code().template(self.bindings, sizes, scratch), variant=self.name)


def first_of(candidates: Sequence[Candidate]) -> Job | None:
    """The job of the first that suits; the last one suits all sizes, and where they are not known, the others wait."""
    if all(candidate.is_known for candidate in candidates):
        return next((job for candidate in candidates if (job := candidate.job()) is not None), None)
    return candidates[-1].job(tuple([candidate.variant() for candidate in candidates]))


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
    act: Activation | Steps = "none"
    call: Value | None = None
    """The convolution inside a region; None where the value is one itself."""

    @staticmethod
    def of(value: Value) -> Convolution | None:
        """The convolution that a value is."""
        inside = find_convolution(value)
        if inside is not None and inside.call.op is not conv_transpose:
            given = inside.operands
            residual = given.get("residual")
            if residual is not None and value.shape != _added_to(inside.call).shape:
                return None
            return Convolution(value, given["x"], given["w"], given.get("b"), residual, inside.steps, inside.call)
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
        return (self.call or self.result).attrs

    @property
    def epilogue(self) -> Epilogue:
        """What becomes of its sums."""
        return Epilogue(self.act, self.b is not None, self.residual is not None)

    def is_served(self, locations: TensorLocations) -> bool:
        """Whether it is of f32 along one or two axes, with weights that are known when parameters are bound."""
        weights = [self.w] if self.b is None else [self.w, self.b]
        read = [self.x, *weights] if self.residual is None else [self.x, self.residual, *weights]
        plain = self.x.rank <= 4 and all(v.dtype is f32 for v in read)
        return plain and 0 not in self.w.shape and all(locations.is_bound(v) for v in weights)

    def expanse(self, locations: TensorLocations) -> Expanse:
        """Its sizes, as they lie."""
        attrs, steps, groups = self.attrs, locations(self.x).strides, int(self.attrs["groups"])
        field = Field.of(
            self.x.shape[2:], steps[2:], self.result.shape[2:], [known(s) for s in self.w.shape[2:]],
            attrs["strides"], attrs["dilations"], attrs["padding"],
        )  # fmt: skip
        filters, channels = known(self.w.shape[0]) // groups, known(self.w.shape[1])
        beside: tuple[Size, ...] = ()
        if self.residual is not None:
            first, channel, *spatial = locations(self.residual).strides
            beside = (
                (first, channel, *spatial)
                if len(spatial) == 2
                else (first, channel, spatial[0] * field.out[1], spatial[0])
            )
        return Expanse(self.x.shape[0], groups, filters, channels, field, (steps[0], steps[1]), beside)

    def bindings(self, w: Packed, rows: int) -> dict[str, Value | Packed]:
        """What a kernel points to, with so many filters together in the bias."""
        groups = int(self.attrs["groups"])
        b = {} if self.b is None else {"b": Packed(self.b, f"conv {groups} {rows}", Packing(groups, rows))}
        residual = {} if self.residual is None else {"r": self.residual}
        return {"x": self.x, "w": w, **b, **residual, "y": self.result}

    def packed(self, rows: int) -> dict[str, Value | Packed]:
        """The same, with so many filters together in the weights too."""
        groups = int(self.attrs["groups"])
        return self.bindings(Packed(self.w, f"conv {groups} {rows}", Packing(groups, rows)), rows)


def direct(found: Convolution, expanse: Expanse, vectors: CpuDevice) -> Candidate:
    """The kernel that serves every convolution."""
    if expanse.is_level:
        expanse = replace(expanse, field=expanse.field.flat())
    shape = Shape.of(vectors, expanse.filters, found.epilogue, expanse.field.taps == 1)
    return Candidate(found.packed(shape.rows), Direct(expanse, shape), lambda: conv_text(shape), "direct")


@dataclass(frozen=True, slots=True)
class Direct:
    """How the work of `conv_text` is cut."""

    expanse: Expanse
    shape: Shape
    spread: tuple[int, ...] = ()

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.expanse.known(number))

    def tiling(self, of: Expanse) -> Tiling:
        """The cut of work that may have symbols in its sizes."""
        shape, field, lanes = self.shape, of.field, self.shape.vectors.lanes
        blocks = field.blocks(of.channels, lanes, shape.columns)
        work = blocks.rows * blocks.columns * of.sums * shape.rows
        register_tiles = -(-of.filters // shape.rows)
        part = max(1, min(register_tiles, PART_WORK // max(1, work))) if isinstance(work, int) else 1
        parts = -(-register_tiles // part)
        image, channel = of.steps
        sizes = (
            *field.words(blocks), of.groups, of.channels, of.filters, image, channel * of.channels, channel,
            parts, part, *self.spread, *of.residual,
        )  # fmt: skip
        tiles = of.images * of.groups * blocks.down * blocks.across * parts
        # Offsets of taps, results of a register tile, and what a block sees: as the text lays them out.
        scratch = (
            HEAD
            + -(-field.taps // 8) * 64
            + 4 * (shape.rows * (field.run(blocks) + lanes) + field.seen(blocks, of.channels) + 2 * lanes)
        )
        # Multiplications are done a vector at a time, and two at once.
        return Tiling(sizes, scratch, tiles, work * part // (2 * lanes) + 1)


def known(size: Size) -> int:
    """A size of what is bound."""
    assert isinstance(size, int), "what is bound has sizes that are known"
    return size


@dataclass(frozen=True, slots=True)
class Packing:
    """Weights [m, c, *window] as [group][register tile][c][tap][filter], a bias without c and taps; 0 in what is left
    of the last register tile of a group."""

    groups: int
    rows: int

    def __call__(self, of: Array) -> Array:
        filters = of.shape[0] // self.groups
        tiles = -(-filters // self.rows)
        packed = np.zeros((self.groups, tiles * self.rows, of[:1].size), np.float32)
        packed[:, :filters] = of.reshape((self.groups, filters, packed.shape[2]))
        split = packed.reshape((self.groups, tiles, self.rows, packed.shape[2]))
        found = aligned((self.groups, tiles, packed.shape[2], self.rows))
        found[...] = split.swapaxes(2, 3)
        return normal(found)

    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether every element of weights of these shapes is laid out: always."""
        return len(shapes) == 1

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """The weights that were packed."""
        count, taps = shapes[0][0] // self.groups, math.prod(shapes[0][1:])
        tiles = -(-count // self.rows)
        split = as_before(packed, (self.groups, tiles, taps, self.rows))
        filters = split.swapaxes(2, 3).reshape((self.groups, tiles * self.rows, taps))
        return (filters[:, :count].reshape(shapes[0]),)
