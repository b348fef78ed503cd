"""Blocks and channels, against onnxruntime, from one compile for all sizes."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import LoadError
from dovetail.frontends.onnx import import_model
from dovetail.ir.dtype import f32
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node


def x_of(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode: str) -> None:
    there = node("DepthToSpace x -> y", blocksize=2, mode=mode)
    m = model([there], {"x": f32["b", 12, "h", "w"]}, ["y"], opset=13)
    assert_like_onnxruntime(m, {"x": x_of(1, 12, 2, 3)}, {"x": x_of(2, 12, 1, 4)})
    back = node("SpaceToDepth y -> z", blocksize=2, mode=mode)
    both = model([there, back], {"x": f32["b", 12, "h", "w"]}, ["z"], opset=28)
    x = x_of(2, 12, 2, 3)
    assert np.array_equal(by_dovetail(both, {"x": x})[0]["z"], x)


@pytest.mark.slow
def test_space_to_depth() -> None:
    m = model([node("SpaceToDepth x -> y", blocksize=2)], {"x": f32["b", 3, "h", "w"]}, ["y"], opset=13)
    assert_like_onnxruntime(m, {"x": x_of(1, 3, 2, 6)}, {"x": x_of(2, 3, 4, 2)})
    with pytest.raises(LoadError, match="RCD"):
        import_model(model([node("DepthToSpace x -> y", blocksize=2, mode="RCD")], {"x": f32[1, 4, 1, 1]}, ["y"]))


@pytest.mark.slow
def test_col2im_adds_where_blocks_overlap() -> None:
    ints = np.array
    m = model(
        [node("Col2Im x image block -> y", pads=[1, 0, 0, 2], strides=[2, 1], dilations=[1, 2])],
        {"x": f32["b", "c", "l"]},
        ["y"],
        opset=18,
        initializers={"image": ints([5, 4]), "block": ints([2, 2])},
    )
    blocks = (5 + 1 - 1 - 1) // 2 + 1, 4 + 2 - 2 - 1 + 1
    for batch in (1, 2):
        x = x_of(batch, 8, blocks[0] * blocks[1])
        padded = np.zeros((batch, 2, 6, 6), np.float32)
        columns = x.reshape(batch, 2, 2, 2, *blocks)
        for i, j, row, column in np.ndindex(2, 2, *blocks):
            padded[:, :, row * 2 + i, column + j * 2] += columns[:, :, i, j, row, column]
        (result,) = by_dovetail(m, {"x": x})
        assert np.array_equal(result["y"], padded[:, :, 1:, :-2])
