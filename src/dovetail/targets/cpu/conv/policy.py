"""Numbers of convolution kernels that were measured, not derived: when each variant pays, and how its work is cut.

Thresholds were measured on machines with AVX-512, AVX2 and NEON. Cache sizes come from the device.
"""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.device import CpuDevice


@dataclass(frozen=True, slots=True)
class WinogradLimits:
    """When Winograd's transforms pay: fewer products, more weights to read."""

    channels: int
    """Channels below which the transforms cost more than the products save; the same for filters."""
    filters: int
    patches: range
    """Patches below which reading more weights costs more; with many the wider scheme is better."""


@dataclass(frozen=True, slots=True)
class DepthwiseLimits:
    """Which windows the depthwise kernel unrolls."""

    most_taps: int = 81
    farthest: int = 4
    """Rows from one pixel's window, or from one of its taps, to the next: each has an address of its own."""
    most_points: int = 256
    """Pixels of a channel that is multiplied by one number: more are not worth packing."""


@dataclass(frozen=True, slots=True)
class FewChannelsLimits:
    """When filters in lanes pay for few channels."""

    fewest_sums: int = 6
    """Products of a result for each lane, at least: below, transposing costs more than full lanes save."""
    most_sums: int = 256
    """Products of a result: above, the weights of a block of filters leave L1."""
    fewest_pixels: int = 800


@dataclass(frozen=True, slots=True)
class PackedLimits:
    """When packing pixels pays for a 1×1 window."""

    fewest_channels: int = 128
    """Channels below which transposing results costs more than full lanes save."""
    most_pixels: int = 200
    """Pixels up to which another kernel reads them where they are. With more, vectors along them waste little, and it
    takes many channels (`deep`) or many filters to do better."""
    deep: int = 512
    waste: float = 1.12
    """Products with and without those of empty lanes, at most."""
    few_panels: int = 4
    """Panels below which packing few strided pixels does not pay."""
    any_pixels: int = 10_000
    """Pixels where their number is not known."""


@dataclass(frozen=True, slots=True)
class FewPixelsKxkLimits:
    """When packing what pixels see pays."""

    most_pixels: int = 400
    fewest_sums: int = 2000
    most_points: int = 800
    """Strided pixels of a 1×1 window: packed once, all filters read them as contiguous ones."""
    fewest_channels: int = 128
    """Channels and filters from which on packing strided pixels pays; filters for each lane."""
    fewest_filters: int = 8


@dataclass(frozen=True, slots=True)
class FewPixelsLimits:
    """When filters in lanes pay for few pixels."""

    most_vectors: int = 13
    """Vectors of pixels of a 1×1 window, at most: with more, the last vector along them wastes little, and they need no
    transpose."""
    point_vectors: int = 4
    """Vectors of pixels up to which lanes of pixels waste too much in any case."""
    deep: int = 13
    """Channels for each lane where pixels are more, at least: shorter sums are not worth a transpose."""
    fewest_sums: int = 128


@dataclass(frozen=True, slots=True)
class PointwiseLimits:
    """When results of contiguous pixels are written to many rows in turn."""

    fewest_vectors: int = 5
    """Vectors of pixels below which the last one, which is not full, wastes too much."""
    fewest: int = 3
    """Channels for each lane below which lines of results are produced too fast to be written to many rows."""
    far: int = 1024
    """Pixels above which each row is in a page of its own: then it takes `fewest_far` channels for each lane."""
    fewest_far: int = 8
    fewest_residual: int = 2
    """With a residual, which is read from as many rows anyhow."""


@dataclass(frozen=True, slots=True)
class OfARunLimits:
    """When each thread packs filters of a run instead of copying pixels for a product."""

    most_bytes: int = 1 << 20
    """Filters, which each thread keeps in its workspace."""
    fewest_filters: int = 6
    """Filters of a group that read packed pixels. Loops read them where they are: 1.5 times as fast for four filters,
    4 times for one, 0.4 times for six (NEON)."""
    fewest_pixels: int = 1024
    """Pixels of all images: packing a filter's weight takes as long as the products of some dozens of them."""


@dataclass(frozen=True, slots=True)
class ConvLimits:
    """When each variant pays."""

    lanes_waste: float = 1.1
    """Lanes to filters, at most, where filters are in lanes."""
    depthwise: DepthwiseLimits = DepthwiseLimits()
    few_channels: FewChannelsLimits = FewChannelsLimits()
    packed: PackedLimits = PackedLimits()
    few_pixels_kxk: FewPixelsKxkLimits = FewPixelsKxkLimits()
    few_pixels: FewPixelsLimits = FewPixelsLimits()
    pointwise: PointwiseLimits = PointwiseLimits()
    of_a_run: OfARunLimits = OfARunLimits()
    winograd_4: WinogradLimits = WinogradLimits(32, 32, range(28, 1 << 62))
    winograd_2x4: WinogradLimits = WinogradLimits(32, 32, range(56, 1 << 62))
    winograd_2: WinogradLimits = WinogradLimits(64, 48, range(20, 111))
    winograd_5x5_4: WinogradLimits = WinogradLimits(16, 32, range(12, 1 << 62))
    winograd_5x5_2: WinogradLimits = WinogradLimits(16, 32, range(16, 1 << 62))
    winograd_waste: float = 0.9
    """Products of larger patches by those of 2×2 results, at most: where a dilated window fills few patches, both need
    as many, and smaller patches have fewer weights."""
    large_schemes: float = 1 / 3
    """The share of a network's layers that F(4×4, 3×3) and F(2×2, 5×5) may serve: they round three times as much as
    plain sums, and the root mean square over all layers stays below twice as much."""
    long_sums: int = 32
    """Products of a result from which a layer counts as one that rounds; a depthwise window has fewer."""


LIMITS = ConvLimits()


@dataclass(frozen=True, slots=True)
class Issue:
    """What a core needs to issue FMAs at its peak, as estimates of register tiles count it."""

    accumulators: int = 8
    """Independent sums: two FMAs a cycle with a latency of four."""
    fmas_per_load: float = 1.0
    """FMAs for each load: a core loads as often as it multiplies."""
    fmas: int = 2
    """FMAs a cycle."""
    l2_bytes: int = 32
    """Bytes a cycle from L2, where kernels stream weights."""


ISSUE = Issue()


@dataclass(frozen=True, slots=True)
class ConvTiles:
    """Register tiles of devices with embedded broadcasts or without, and with a number of registers.

    A pair is vectors of filters, and pixels.
    """

    embedded_broadcast: bool
    registers: int
    """Vector registers, at least."""
    broadcast: tuple[tuple[int, int], ...]
    """Contiguous pixels, which Winograd, few channels and few pixels of a window share."""
    few_pixels: tuple[tuple[int, int], ...]
    packed: tuple[tuple[int, int], ...]
    """Packed pixels of a 1×1 window; none where this was not measured yet."""
    most_pixels: int
    """Pixels up to which filters in lanes suit a window of several taps."""
    direct_filters: int
    """Filters of the tile with pixels in lanes, at most."""
    direct_spare: int
    """Registers that its accumulators leave free."""
    run_row: int
    """Pixels of a row from which on direct convolution by filters of a run beats products of copies (im2col).
    Broadcasts of weights take no slot of an FMA on x86-64; LD1R of NEON does."""
    few_results: tuple[int, int] | None
    """Vectors of filters, and results, of the tile that sums over pixels; None where products of copies are as fast."""


TILES = (
    ConvTiles(True, 32, ((2, 14), (3, 9)), ((4, 6), (2, 10)), ((4, 7), (3, 9), (2, 14)), 800, 8, 5, 8, (1, 27)),
    ConvTiles(True, 16, ((2, 6),), ((2, 6), (2, 5), (2, 4)), ((4, 7), (3, 9), (2, 14)), 800, 4, 4, 8, (2, 6)),
    ConvTiles(False, 32, ((4, 6), (2, 12)), ((4, 6), (2, 10)), (), 1 << 30, 8, 5, 32, None),
    ConvTiles(False, 16, ((2, 6),), ((2, 6), (2, 5), (2, 4)), (), 800, 4, 4, 8, (2, 6)),
)
"""A new ISA is a new row; the first that a device meets is taken."""


def tiles_of(device: CpuDevice) -> ConvTiles:
    """The row of the table that a device meets."""
    fitting = [row for row in TILES if row.embedded_broadcast == device.has("embedded_broadcast")]
    return next((row for row in fitting if device.registers >= row.registers), fitting[-1])


@dataclass(frozen=True, slots=True)
class DirectBlocks:
    """The kernel with pixels in lanes."""

    piece: int = 8
    """Channels that are summed by themselves before they are added to the rest: a short sum rounds less."""
    point_piece: int = 32
    """The same for a 1×1 window."""
    part_work: int = 500_000
    """Products of a tile: enough to hide what starting it costs, few enough that threads share a layer."""
    most_vectors: int = 8
    """Vectors of columns, at most."""


@dataclass(frozen=True, slots=True)
class DepthwiseBlocks:
    """The depthwise kernel."""

    most_rows: int = 8
    """Rows of a register tile."""
    few_rows: int = 4
    """The same where sizes are known at run time, and there is a register tile for every number of rows."""
    fewest_rows: int = 8
    """Rows of a band at least, even if they leave L1: each band packs again what the one before it saw last."""
    part_work: int = 4000
    """Products of vectors that a tile has, about."""


@dataclass(frozen=True, slots=True)
class PixelBlocks:
    """Kernels with filters in lanes."""

    piece: int
    """Products of a sum that one register tile takes at a time: their weights stay in L1; 0 takes all."""
    part_pixels: int
    """Pixels of a tile, about."""


@dataclass(frozen=True, slots=True)
class PointwiseBlocks:
    """The kernel of contiguous pixels."""

    depth: int = 128
    """Channels that go together, at most: what a band of pixels sees of them stays in L1."""
    together: int = 8
    """Register tiles of filters that go together even where that is much work."""
    fewest_tiles: int = 16
    """Tiles below which threads have too few to share."""
    row_bands: int = 4
    """Bands whose results steps on rows read together."""


@dataclass(frozen=True, slots=True)
class PackedPixels:
    """The kernel of packed pixels."""

    piece: int = 128
    """Channels that are summed at a time, at most: a sum of a thousand in one go would err twice as much."""
    unroll: int = 4
    """Channels of an iteration."""
    packed_together: int = 7
    """Register tiles whose pixels are packed in one iteration."""
    ahead: int = 6
    """Channels between the prefetch of a row and its copy."""
    apart: int = 192
    """Bytes between what two register tiles see."""
    tiles: int = 14
    """Register tiles that go over a panel before the next one, or twice as many."""
    few: int = 10
    """Register tiles below which an iteration prefetches `many_lines` lines of the next panel, else `lines`."""
    lines: int = 1
    many_lines: int = 3
    many_panels: int = 8
    """Panels from which on more pixels go together."""
    share: tuple[int, int] = (29, 64)
    """The part of L2 that packed pixels may take, and half of it where they are many: weights take the rest."""


@dataclass(frozen=True, slots=True)
class WinogradBlocks:
    """Winograd's kernel."""

    share: tuple[int, int] = (425, 512)
    """The part of L2 that the transformed patches of a tile may take: they stay there for all filters."""
    piece: int = 16
    """Channels that one register tile sums before it adds them to the rest: transforms enlarge what a sum loses, and
    short sums that are added round less than a long one."""


@dataclass(frozen=True, slots=True)
class Conv1dBlocks:
    """The kernel of one axis."""

    piece: int = 32
    """Steps of a row that are summed before they are added to the rest: a short sum rounds less than a long one."""
    few: int = 4
    """Vectors of pixels up to which this is the better code."""
    high: int = 4
    """Register tiles of pixels in a block: what they see stays in L2."""


@dataclass(frozen=True, slots=True)
class FewResultsBlocks:
    """The kernel with fewer results than taps."""

    unroll: int = 4
    """Pixels of an iteration."""
    most_lines: int = 12
    """Lines, each of which has a pointer in one of 16 general registers."""
    turn: int = 9
    """Results whose products with a block of filters take as long as to transpose these, about: log₂ lanes shuffles a
    vector, one a cycle."""


@dataclass(frozen=True, slots=True)
class ConvBlocks:
    """How the work of each variant is cut."""

    direct: DirectBlocks = DirectBlocks()
    depthwise: DepthwiseBlocks = DepthwiseBlocks()
    few_channels: PixelBlocks = PixelBlocks(0, 450)
    few_pixels: PixelBlocks = PixelBlocks(64, 112)
    few_pixels_kxk: PixelBlocks = PixelBlocks(64, 112)
    kxk_apart: int = 64
    """Bytes between what two register tiles see: a vector may end there."""
    pointwise: PointwiseBlocks = PointwiseBlocks()
    packed: PackedPixels = PackedPixels()
    winograd: WinogradBlocks = WinogradBlocks()
    conv1d: Conv1dBlocks = Conv1dBlocks()
    few_results: FewResultsBlocks = FewResultsBlocks()


BLOCKS = ConvBlocks()

ENOUGH = 0.85
"""The share of their time that threads must be busy: smaller parts read the weights more often."""


def shared_parts(parts: int, images: Size, tiles: int, most: int, device: CpuDevice) -> int:
    """The smallest number of parts, from `parts` on and at most `most`, that keeps threads busy; else the best.

    Each part of an image is `tiles` tiles. A number of images that is not known counts as one.
    """
    others = max(1, tiles * images if isinstance(images, int) else tiles)

    def busy(count: int) -> float:
        rounds = -(-count * others // device.threads)
        return count * others / (rounds * device.threads)

    enough = 2 * max(parts, -(-device.threads // others))
    choices = range(parts, max(parts, min(most, enough)) + 1)
    return next((count for count in choices if busy(count) >= ENOUGH), max(choices, key=busy))


__all__ = [
    "BLOCKS",
    "ISSUE",
    "LIMITS",
    "TILES",
    "ConvBlocks",
    "ConvLimits",
    "ConvTiles",
    "Issue",
    "WinogradLimits",
    "shared_parts",
    "tiles_of",
]
