"""Convolutions with a producer, whose TMA goes through the pixels that a tap sees: in lockstep, and as machine code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail import Graph, Value, library, ops
from dovetail.ir.dtype import bf16, f16
from dovetail.ir.literal import Array
from dovetail.kernels.gpu.conv import convolve
from dovetail.kernels.gpu.conv import folded as convolve_folded
from dovetail.kernels.gpu.conv.pixels import Pixels
from dovetail.kernels.gpu.gemm import tile as tiles
from dovetail.kernels.gpu.gemm.tile import TALL_TILES, BlockTile, pipelined_split_of
from dovetail.kernels.loops.along import Along
from dovetail.kernels.loops.ir import Call, Expr, Extent, Tensor
from dovetail.plan.plan import Plan, make_plan
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import kernels_of
from tests.targets.cuda.assembled import assembled, spilled_bytes
from tests.targets.cuda.graphs import Case, x_of
from tests.targets.cuda.images import image, layer, weights
from tests.targets.cuda.judged import check, feeds_of, run_in_lockstep
from tests.targets.cuda.phases import boxed
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.targets.cuda.timed import set_timings

SMALL = BlockTile(64, 64, 4, 1, 3, by_warpgroup=True)
FEW = replace(H200, multiprocessors=2)
"""Blocks go on to further tiles, in the middle of a phase."""


@pytest.fixture
def small_tiles() -> Iterator[None]:
    with (
        patch.object(tiles, "PIPELINED_TILES", (SMALL,)),
        patch.object(tiles, "TALL_TILES", ()),
        patch.object(convolve, "FEWEST_RESULTS", 1),
    ):
        yield


def _between(y: Value) -> Case:
    """An image between others, which is stored with its channels innermost."""
    return Case({"y": ops.max_pool(y, window=2)}, scale=8.0)


def _plan(case: Case) -> Plan:
    return make_plan(Graph.of(case.outputs), target=CLAIMS)


def _x(*shape: int | str) -> Value:
    return image(f16, *shape, channels_last=True)


LAYERS: dict[str, Value] = {
    "three": library.conv_bias_act(
        _x(2, 128, 5, 4), weights(f16, 72, 128, 3, 3), x_of(f16, 72, 1, 1, name="b"), padding=(1, 1, 1, 1), act="relu"
    ),
    "uneven": ops.conv(
        _x(3, 64, 6, 9), weights(f16, 64, 64, 3, 2), padding=(1, 0, 0, 2), strides=(2, 3), dilations=(1, 2)
    ),
    "point": ops.conv(_x(3, 72, 6, 9), weights(f16, 64, 72, 1, 1)),
    "strided_point": ops.conv(_x(3, 72, 6, 9), weights(f16, 64, 72, 1, 1), strides=(2, 2)),
}


@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", LAYERS)
def test_pixels_are_copied_for_every_tap(name: str) -> None:
    case = _between(LAYERS[name])
    plan, feeds = _plan(case), feeds_of(Graph.of(case.outputs), {})
    (_, made), *_ = kernels_of(plan, device=FEW)
    assert made.kernel.maps and (made.kernel.maps[0].traversal is None) == (name == "point")
    check(case, run_in_lockstep(plan, feeds, device=FEW), feeds)


@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
def test_k_goes_in_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _between(ops.conv(_x("n", 64, 5, 7), weights(f16, 72, 64, 3, 3), padding=1))
    sized = _between(ops.conv(_x(2, 64, 5, 7), weights(f16, 72, 64, 3, 3), padding=1))
    set_timings(monkeypatch, "gemm", sum_launch=-1e6)
    with patch.object(tiles, "SPLITS", (1, 3)):
        names = [made.kernel.name for _, made in kernels_of(_plan(sized), device=FEW)]
        assert names[:2] == ["convolve_parts", "convolve_sum"]
        feeds = feeds_of(Graph.of(sized.outputs), {})
        check(sized, run_in_lockstep(_plan(sized), feeds, device=FEW), feeds)
        assert next(made.kernel.name for _, made in kernels_of(_plan(case), device=FEW)) == "convolve"


@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
def test_images_of_any_count_run_on_a_device() -> None:
    """The driver encodes images for each launch: other arrays, and another count of them."""
    x, w = image(f16, "n", 64, 3, 4), weights(f16, 64, 64, 2, 3)
    y = ops.conv(ops.relu(x), w, padding=(0, 1, 1, 1), strides=(1, 2))
    graph = Graph.of({"y": ops.max_pool(y, window=2)})
    device = SimulatedDriver()
    program = dovetail.compile(graph, target=target_of(device), cache="off")
    for count in (2, 1, 2):
        feeds = feeds_of(graph, {"n": count})
        check(Case({"y": graph.outputs["y"]}, scale=8.0), program.run(feeds), feeds)
    assert any(m.traversal for kernel in device.library.kernels.values() for m in kernel.maps)


FEW_CHANNELS: dict[str, Value] = {
    "photograph": library.conv_bias_act(
        x_of(f16, 2, 3, 10, 9), weights(f16, 64, 3, 7, 7), x_of(f16, 64, 1, 1, name="b"),
        padding=(3, 3, 3, 3), strides=(2, 2), act="relu",
    ),
    "patches": ops.conv(x_of(bf16, 2, 3, 16, 24), weights(bf16, 64, 3, 4, 4), strides=(4, 4)),
    "uneven": ops.conv(image(f16, 2, 4, 6, 7, channels_last=True), weights(f16, 72, 4, 3, 3), padding=(1, 0, 1, 2)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", FEW_CHANNELS)
def test_strides_of_few_channels_become_channels(name: str) -> None:
    case = _between(FEW_CHANNELS[name])
    plan, feeds = _plan(case), feeds_of(Graph.of(case.outputs), {})
    with patch.object(convolve_folded, "FEWEST_RESULTS", 0):
        names = [made.kernel.name for _, made in kernels_of(plan, device=FEW)]
        assert names[:2] == ["convolve_fold", "convolve"]
        check(case, run_in_lockstep(plan, feeds, device=FEW), feeds)


@pytest.mark.parametrize(
    ("images", "strict", "first"), [(32, False, "convolve_fold"), (1, False, "convolve"), (32, True, "convolve")]
)
def test_a_few_images_are_not_folded(images: int, strict: bool, first: str) -> None:
    """One image is gathered: a second kernel costs more than it saves. Strict programs multiply no taps by 0."""
    y = ops.conv(x_of(f16, images, 3, 224, 224), weights(f16, 64, 3, 7, 7), padding=3, strides=2)
    plan = dovetail.compile(Graph.of(_between(y).outputs), target="cuda", strict=strict).plan
    assert next(made.kernel.name for _, made in kernels_of(plan)) == first


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of an image under a window."""

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def out(self) -> int:
        return (self.size + self.before + self.after - (self.taps - 1) * self.dilation - 1) // self.stride + 1

    def seen(self, tap: int) -> Array:
        """Which pixels of the padded axis a tap sees."""
        return tap * self.dilation + self.stride * np.arange(self.out)


@st.composite
def _axes(draw: st.DrawFn) -> _Axis:
    taps, stride, dilation = (draw(st.integers(1, high)) for high in (3, 3, 2))
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    reach = (taps - 1) * dilation + 1
    return _Axis(draw(st.integers(max(1, reach - before - after), reach + 4)), taps, stride, dilation, before, after)


@given(_axes(), _axes(), st.integers(0, 99))
def test_a_traversal_is_a_padded_image_at_strides(high: _Axis, wide: _Axis, first: int) -> None:
    """Copies of pixels for each tap, from any place on, are rows of im2col by NumPy."""
    x = np.random.default_rng(0).integers(1, 1 << 15, (3, high.size, wide.size, 64)).astype(np.uint16)
    padded = np.pad(x, ((0, 0), (high.before, high.after), (wide.before, wide.after), (0, 0)))
    axes = tuple([Along(a.size, a.out, a.stride, a.dilation, a.before) for a in (high, wide)])
    pixels = Pixels(3, axes, (high.taps, wide.taps), 64)
    assert pixels.fits()
    source, sizes, strides = pixels.source(Tensor("x", f16, x.strides), 16), x.shape[::-1], x.strides[2::-1]
    assert (source.sizes, source.strides) == (sizes, strides)
    row = first % (3 * high.out * wide.out)
    image, place = divmod(row, high.out * wide.out)
    begin = tuple([Extent(i) for i in (image, *divmod(place, wide.out))])
    for number in range(high.taps * wide.taps):
        at, taps = pixels.start(begin, Extent(number))
        start, offsets = [_number(e) for e in at], [_number(e) for e in taps]
        raw = boxed(x.reshape(-1).view(np.uint8), 0, sizes, strides, start, 16, source.traversal, offsets)
        found = raw.view(np.uint16).reshape(16, 8, 8)
        down, across = divmod(number, wide.taps)
        want = padded[:, high.seen(down)][:, :, wide.seen(across)].reshape(-1, 64)[row : row + 16]
        for line, expected in enumerate(want):
            order = np.arange(8) ^ (line % 8)
            assert (found[line][order].reshape(64) == expected).all()


def _number(expr: Expr) -> int:
    """What an index of known sizes is."""
    if isinstance(expr, Extent):
        assert isinstance(expr.size, int)
        return expr.size
    assert isinstance(expr, Call)
    x, y = map(_number, expr.operands)
    return {"add": x + y, "sub": x - y, "mul": x * y, "div": x // max(y, 1), "rem": x % max(y, 1)}[expr.op]


@pytest.mark.slow
@pytest.mark.parametrize("tile", TALL_TILES, ids=lambda t: f"{t.rows}x{t.columns}")
def test_tall_tiles_assemble_without_spills(tile: BlockTile, tmp_path: Path) -> None:
    value = layer(32, 256, 256, 14, 3, residual=True, dtype=bf16)
    with patch.object(tiles, "PIPELINED_TILES", (tile,)), patch.object(tiles, "TALL_TILES", ()):
        (_, made), *_ = kernels_of(make_plan(Graph.of({"y": value}), target=CLAIMS))
    told = assembled(made, "sm_90a", tmp_path)
    assert not spilled_bytes(told), told


def test_tiles_of_convolutions_fill_the_device() -> None:
    """3×3 windows over 28×28 pixels of 32 images: a tile for each of 131 multiprocessors."""
    chosen = pipelined_split_of(32 * 28 * 28, 128, 1152, H200, 2)
    assert chosen is not None
    tile, parts = chosen
    blocks = parts * -(-32 * 28 * 28 // tile.rows) * -(-128 // tile.columns)
    assert H200.multiprocessors * 0.9 <= blocks <= H200.multiprocessors
    assert pipelined_split_of(32 * 28 * 28, 128, 1152, replace(H200, matrix_instructions=()), 2) is None
