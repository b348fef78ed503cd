"""Convolution by a window of one pixel with filters in the lanes of vectors: where it wins, and how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.direct.variant import Candidate, Convolution, Expanse, known
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.patch import HEAD
from dovetail.targets.cpu.conv.pointwise_packed.kernel import panel_text
from dovetail.targets.cpu.conv.pointwise_packed.micro_kernel import forms_of
from dovetail.targets.cpu.conv.pointwise_packed.pack import packed_bytes

FEWEST_CHANNELS = 128
"""Channels below which turning results round costs more than full lanes save."""
MOST_PLACES, DEEP = 200, 512
"""Places up to which another kernel reads them where they lie, side by side or apart. With more, vectors along them
waste little, and it takes many channels or many filters to do better."""
MOST_WASTE = 1.12
"""Products with and without those that lanes and places that are not there take, at most."""
TILES, FEW = 14, 10
"""Register tiles that go over a panel before the next one, or twice as many; and below how many more is asked for."""
LINES, MANY_LINES = 1, 3
"""Of what comes next, that are asked for in each turn."""
ANY = 10_000
"""Places where their number is not known."""
FEW_PANELS, MANY_PANELS = 4, 8
"""Panels below which it is not worth while to lay out few places that lie apart, or what every thread needs by itself;
from `MANY_PANELS` on more places go together."""
MOST_BYTES = 464 * 1024
"""What some places see, at most, and half of it where they are many: it stays in the second cache beside weights."""


def panel(found: Convolution, expanse: Expanse, vectors: CpuDevice) -> list[Candidate]:
    """The kernels of a convolution whose places see a pixel each, none of it beside the image."""
    plain = expanse.field.window == (1, 1) and not any(found.attrs["padding"])
    if not plain or not expanse.is_level or expanse.channels < FEWEST_CHANNELS:
        return []
    out = expanse.field.out
    places = known(out[0]) * known(out[1]) if expanse.field.is_known else ANY
    form = _best(vectors, expanse.filters, places)
    if form is None:
        return []
    square = Square(vectors, *form, found.epilogue, True)
    lines = LINES if places >= FEW * square.places else MANY_LINES
    code = partial(panel_text, square, lines)
    return [Candidate(found.packed(square.block), Panel(expanse, square), code, "pointwise_packed")]


def _best(vectors: CpuDevice, filters: int, places: int) -> tuple[int, int] | None:
    """The register tile that wastes least, if that is little."""

    def products(form: tuple[int, int]) -> int:
        return _padded(filters, form[0] * vectors.lanes) * _padded(places, form[1])

    best = min(forms_of(vectors), key=products, default=None)
    return None if best is None or products(best) > MOST_WASTE * filters * places else best


def _padded(count: int, unit: int) -> int:
    """A number of units, in which a count has room."""
    return -(-count // unit) * unit


@dataclass(frozen=True, slots=True)
class Panel:
    """How the work of `conv_panel_text` is cut."""

    expanse: Expanse
    square: Square

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.expanse.known(number))

    def tiling(self, of: Expanse) -> Tiling | None:
        """The cut, where places are not too few for its lanes, nor too many for its filters."""
        square, field = self.square, of.field
        width = known(field.out[1])
        places = known(field.out[0]) * width
        tiles, panels = -(-places // square.places), -(-of.filters // square.block)
        waste = panels * square.block * tiles * square.places > MOST_WASTE * of.filters * places
        if places == 0 or waste or not self._worth_it(of, places, panels):
            return None
        size = packed_bytes(square, of.channels)
        together = max(1, min(TILES, MOST_BYTES // size))
        if panels >= MANY_PANELS:
            together = max(together, min(2 * TILES, MOST_BYTES // (2 * size)))
        parts = -(-tiles // together)
        # Two threads share an even number best.
        parts += parts % 2 if parts > 1 else 0
        part = -(-tiles // parts) * square.places
        parts = -(-places // part)
        image, channel = of.steps
        blocks = of.images * of.groups * parts
        if blocks == 1 and panels < MANY_PANELS:
            return None
        column = field.steps[1] * field.strides[1]
        row = width * column if field.out[0] == 1 else field.steps[0] * field.strides[0]
        sizes = (
            places, of.groups, of.channels, of.filters, image, channel * of.channels, channel,
            parts, part, panels, 1, width, row, column, *of.residual[:1],
        )  # fmt: skip
        scratch = HEAD + 4 * part * square.block + part // square.places * size + 8 * part
        work = part * square.block * of.channels // (2 * square.vectors.lanes)
        return Tiling(sizes, scratch, blocks * panels, work + 1)

    @staticmethod
    def _worth_it(of: Expanse, places: int, panels: int) -> bool:
        """Whether there are panels enough for what is laid out once for all of them."""
        if of.field.is_point:
            return places <= MOST_PLACES or (panels > 1 and of.channels >= DEEP) or panels >= MANY_PANELS
        return places > MOST_PLACES or panels >= FEW_PANELS
