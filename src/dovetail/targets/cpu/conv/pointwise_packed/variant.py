"""1×1 convolution on packed panels of filters: when it is served so, and how its work is tiled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.pointwise_packed.kernel import arguments, pointwise_packed_code
from dovetail.targets.cpu.conv.pointwise_packed.micro_kernel import forms_of
from dovetail.targets.cpu.conv.pointwise_packed.pack import packed_bytes
from dovetail.targets.cpu.conv.register_tile import RegisterTile

FEWEST_CHANNELS = 128
"""Channels below which transposing results costs more than full lanes save."""
MOST_PIXELS, DEEP = 200, 512
"""Pixels up to which another kernel reads them where they are, contiguous or strided. With more, vectors along them
waste little, and it takes many channels or many filters to do better."""
MOST_WASTE = 1.12
"""Products with and without those of lanes and pixels that are not there, at most."""
TILES, FEW = 14, 10
"""Register tiles that go over a panel before the next one, or twice as many; and below how many more is prefetched."""
LINES, MANY_LINES = 1, 3
"""Lines of the next panel that an iteration prefetches."""
ANY = 10_000
"""Pixels where their number is not known."""
FEW_PANELS, MANY_PANELS = 4, 8
"""Panels below which packing few strided pixels, or what every thread needs by itself, does not pay; from
`MANY_PANELS` on more pixels go together."""
PACKED_SHARE = (29, 128)
"""The part of L2 that packed pixels may take, and half of it where they are many: it stays there next to weights."""


def pointwise_packed(found: Convolution, problem: ConvProblem, device: CpuDevice) -> list[Candidate]:
    """The kernels of a convolution whose pixels see a pixel each, none of it outside the image."""
    plain = problem.geometry.window == (1, 1) and not any(found.result.attrs["padding"])
    if not plain or not problem.is_level or problem.channels < FEWEST_CHANNELS:
        return []
    out = problem.geometry.out
    pixels = known(out[0]) * known(out[1]) if problem.geometry.is_known else ANY
    form = _best(device, problem.filters, pixels)
    if form is None:
        return []
    tile = RegisterTile(device, *form, found.epilogue, True)
    lines = LINES if pixels >= FEW * tile.pixels else MANY_LINES
    code = partial(pointwise_packed_code, tile, lines)
    return [Candidate(packed(found, tile.block), PointwisePacked(problem, tile), code, "pointwise_packed")]


def _best(device: CpuDevice, filters: int, pixels: int) -> tuple[int, int] | None:
    """The register tile that wastes least, if that is little."""

    def products(form: tuple[int, int]) -> int:
        return _padded(filters, form[0] * device.lanes) * _padded(pixels, form[1])

    best = min(forms_of(device), key=products, default=None)
    return None if best is None or products(best) > MOST_WASTE * filters * pixels else best


def _padded(count: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-count // unit) * unit


@dataclass(frozen=True, slots=True)
class PointwisePacked:
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling | None:
        """The tiling, where pixels are not too few for its lanes, nor too many for its filters."""
        tile, geometry = self.tile, of.geometry
        width = known(geometry.out[1])
        pixels = known(geometry.out[0]) * width
        tiles, panels = -(-pixels // tile.pixels), -(-of.filters // tile.block)
        waste = panels * tile.block * tiles * tile.pixels > MOST_WASTE * of.filters * pixels
        if pixels == 0 or waste or not self._worth_it(of, pixels, panels):
            return None
        size = packed_bytes(tile, of.channels)
        part = self._part(tiles, panels, size)
        parts = -(-pixels // part)
        blocks = of.images * of.groups * parts
        if blocks == 1 and panels < MANY_PANELS:
            return None
        column = geometry.steps[1] * geometry.strides[1]
        row = width * column if geometry.out[0] == 1 else geometry.steps[0] * geometry.strides[0]
        laid = arguments(tile.epilogue).laid_out(
            of.sizes_by_name("r_image")
            | {
                "pixels": pixels, "pixel_parts": parts, "pixel_part": part, "filter_parts": panels, "filter_part": 1,
                "width": width, "row_step": row, "column_step": column,
            },
            {"sums": 4 * part * tile.block, "seen": part // tile.pixels * size, "where": 8 * part},
        )  # fmt: skip
        work = part * tile.block * of.channels // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, blocks * panels, work + 1)

    def _part(self, tiles: int, panels: int, size: int) -> int:
        """Pixels of a tile: what they see stays in L2."""
        above, below = PACKED_SHARE
        room = self.tile.device.caches.l2 * above // below
        together = max(1, min(TILES, room // size))
        if panels >= MANY_PANELS:
            together = max(together, min(2 * TILES, room // (2 * size)))
        parts = -(-tiles // together)
        # Two threads share an even number best.
        parts += parts % 2 if parts > 1 else 0
        return -(-tiles // parts) * self.tile.pixels

    @staticmethod
    def _worth_it(of: ConvProblem, pixels: int, panels: int) -> bool:
        """Whether there are panels enough for what is packed once for all of them."""
        if of.geometry.is_point:
            return pixels <= MOST_PIXELS or (panels > 1 and of.channels >= DEEP) or panels >= MANY_PANELS
        return pixels > MOST_PIXELS or panels >= FEW_PANELS
