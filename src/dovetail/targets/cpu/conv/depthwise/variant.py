"""Depthwise convolution: how its work is tiled."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import ConvGeometry
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.depthwise.kernel import DepthwiseTile, arguments, depthwise_code
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.policy import BLOCKS
from dovetail.targets.cpu.conv.rows import row_regions


def l1_bytes(device: CpuDevice) -> int:
    """Bytes of what is packed at a time: they stay in L1."""
    return device.caches.l1_room // 2


def depthwise(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidate:
    """The kernel of a convolution whose groups have one channel and one filter each."""
    geometry = problem.geometry
    most = min(
        BLOCKS.depthwise.most_rows if geometry.is_known else BLOCKS.depthwise.few_rows,
        rows_of(device, geometry.window[0], geometry.strides[0]),
    )
    most = 1 if geometry.window[0] == 1 else most
    heights = _heights(Bands.of(geometry, device), most) if geometry.is_known else tuple(range(1, most + 1))
    tile = DepthwiseTile(device, geometry.window, geometry.strides, geometry.dilations, heights, found.epilogue)
    return Candidate(packed(found, 1), Depthwise(problem, tile), lambda: depthwise_code(tile), "depthwise")


def rows_of(device: CpuDevice, window: int, stride: int) -> int:
    """Rows that a register tile may have: next to their sums there are the weights of a column, and what is read, which
    comes from as many columns at once as there are phases."""
    return min(BLOCKS.depthwise.most_rows, device.registers - window * stride - 3)


@dataclass(frozen=True, slots=True)
class Bands:
    """Bands of rows of a channel: how many, rows of a band and of the last; vectors of a packed row, bytes of it."""

    count: int
    rows: int
    last: int
    vectors: int
    pitch: int

    @staticmethod
    def of(geometry: ConvGeometry, device: CpuDevice) -> Bands:
        """Bands that fit L1 if they have enough rows then, as equal as they can be."""
        height, width = known(geometry.out[0]), known(geometry.out[1])
        across = -(-(width + geometry.over[1]) // device.lanes)
        pitch = 4 * device.lanes * across * geometry.strides[1]
        fitting = (l1_bytes(device) // max(1, pitch) - geometry.reach[0] - 1) // geometry.strides[0] + 1
        rows = -(-height // max(1, -(-height // max(BLOCKS.depthwise.fewest_rows, fitting))))
        count = -(-height // max(1, rows))
        return Bands(count, rows, height - rows * (count - 1), across, pitch)

    def plane(self, geometry: ConvGeometry) -> int:
        """Bytes that a band sees of a channel."""
        return self.pitch * ((self.rows - 1) * geometry.strides[0] + geometry.reach[0] + 1)


def _heights(bands: Bands, most: int) -> tuple[int, ...]:
    """Rows of the register tiles that share what is in a band."""
    found: set[int] = set()
    for rows in (bands.rows, bands.last):
        count = max(1, -(-rows // most))
        found |= {max(1, rows // count), max(1, -(-rows // count))}
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Depthwise:
    """How the work is tiled."""

    problem: ConvProblem
    tile: DepthwiseTile

    def __call__(self, number: Number) -> Tiling:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, device = of.geometry, self.tile.device
        bands = Bands.of(geometry, device)
        plane = bands.plane(geometry)
        # Packing a vector and storing one takes as long as a few products.
        work = bands.rows * -(-known(geometry.out[1]) // device.lanes) * (geometry.taps + 4 * geometry.strides[0])
        parts = -(-of.groups // max(1, min(of.groups, BLOCKS.depthwise.part_work // work)))
        part = -(-of.groups // parts)
        parts = -(-of.groups // part)
        together = max(1, min(part, l1_bytes(device) // plane))
        image, channel = of.steps
        laid = arguments(self.tile.epilogue).laid_out(
            {
                "height": geometry.sizes[0], "width": geometry.sizes[1], "row_step": geometry.steps[0],
                "out_height": geometry.out[0], "out_width": geometry.out[1], "above": geometry.before[0],
                "before": geometry.before[1], "channels": of.groups, "image_step": image, "channel_step": channel,
                "parts": parts, "part": part, "bands": bands.count, "band": bands.rows, "together": together,
                "vectors": bands.vectors, **dict(zip(("r_image",), of.residual, strict=False)), **dict(of.strides),
            },
            # What is read after the last row is not used.
            {
                "seen": together * plane + 4 * device.lanes * 8 + 4 * geometry.over[1],
                **row_regions(self.tile.epilogue, 4 * bands.rows * known(geometry.out[1])),
            },
        )  # fmt: skip
        return Tiling(laid.sizes, laid.scratch, of.images * parts * bands.count, work * part // 2 + 1)
